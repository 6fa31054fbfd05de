"""A GGUF file made into a model folder, once: weights dequantised, tokenizer and config as transformers wants them.

transformers drops how some vocabularies split text before merging; what it does not know is put right here, or refused.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.fingerprint import fingerprint

Progress = Callable[[str], None]

_FORMAT = 1
"""Part of the cache key: raised whenever what is written here changes."""
_DIGIT_SPLITTING = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
"""llama.cpp's pre-tokenizers that set every digit apart and then split as GPT-2 does (`llama-vocab.cpp`)."""
_GPT2_SPLITTING = {"default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe"}


def convert_gguf(file: Path, cache_dir: Path, progress: Progress) -> Path:
    """The model folder for `file`, converted if it is not in `cache_dir` yet.

    Two processes may convert the same file at once: each writes its own folder, and the first to finish wins.

    Raises:
        ModelLoadError: the file is broken, of an unknown architecture, or a needed package is missing.
    """
    revision = fingerprint([file])
    folder = cache_dir / f"{file.stem}-{revision}-tf{version('transformers')}-{_FORMAT}"
    if (folder / "config.json").exists():
        return folder
    progress(f"converting {file.name} once, into {folder}")
    cache_dir.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=cache_dir))
    try:
        _convert(file, scratch)
        (scratch / "tidegate.json").write_text(json.dumps({"source": file.name, "revision": revision}))
        _publish(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _publish(scratch: Path, folder: Path) -> None:
    """Make the folder appear whole or not at all, readable by all: temporary files are their owner's alone."""
    scratch.chmod(0o755)
    for file in scratch.iterdir():
        file.chmod(0o644)
    try:
        os.rename(scratch, folder)
    except OSError:
        if not (folder / "config.json").exists():  # not another process that was faster
            raise


def _convert(file: Path, target: Path) -> None:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**where)
        tokenizer = _split_as_trained(tokenizer, _pre_tokenizer(file))
        model = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except ModelLoadError:
        raise
    except ImportError as error:
        raise ModelLoadError(f"reading {file} needs more packages: pip install 'tidegate[gguf]' ({error})") from error
    except Exception as error:  # whatever the readers raise for a broken or unknown file
        raise ModelLoadError(f"{file} cannot be converted: {str(error).strip().splitlines()[0]}") from error


def _pre_tokenizer(file: Path) -> str | None:
    """How a byte-level vocabulary's text was split, by llama.cpp's name for it; None for other vocabularies."""
    from transformers.integrations.gguf import get_gguf_tokenizer

    _, vocabulary, _ = get_gguf_tokenizer(str(file))
    name = vocabulary.get("pre_tokenizer_type") if vocabulary.get("tokenizer_type") == "gpt2" else None
    return None if name is None else str(name)


def _split_as_trained(tokenizer: Any, name: str | None) -> Any:
    from tokenizers import pre_tokenizers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    if name is None or name in GGUF_PRE_TOKENIZER_SPLITS or name in _GPT2_SPLITTING:
        return tokenizer
    if name not in _DIGIT_SPLITTING:
        raise ModelLoadError(
            f"the GGUF's pre-tokenizer {name!r} is not known, and text would be split wrongly: use the model in its "
            "transformers format"
        )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return tokenizer

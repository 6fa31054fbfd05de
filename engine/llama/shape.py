"""What a Llama-shaped model looks like, read from its transformers configuration."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of one model; head counts and dims are per layer, `windows` has one entry a layer (None: no bound)."""

    num_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    tied: bool
    windows: tuple[int | None, ...]
    """Tokens a position sees at most, itself included."""
    inv_freq: Tensor
    """Rotary frequencies, float32 (head_dim / 2,)."""
    rope_scale: float
    """Factor on cos and sin (YaRN)."""

    @property
    def softmax_scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes that one token's keys and values take over all layers."""
        return 2 * self.num_layers * self.kv_heads * self.head_dim * dtype.itemsize


def supports(config: Any) -> str | None:
    """Why this forward cannot compute the model; None if it can. `config` is a transformers configuration."""
    rope = getattr(config, "rope_parameters", None) or {}
    checks = (
        (config.model_type in FAMILIES, f"model type {config.model_type!r} is not one of {', '.join(FAMILIES)}"),
        (getattr(config, "hidden_act", "silu") == "silu", f"activation {getattr(config, 'hidden_act', '')!r}"),
        (not getattr(config, "mlp_bias", False), "biases in the MLP"),
        (getattr(config, "quantization_config", None) is None, "quantised weights"),
        (rope.get("rope_type", "default") in ROPE_TYPES, f"rope type {rope.get('rope_type')!r}"),
        (all(not isinstance(value, dict) for value in rope.values()), "rope that differs by layer"),
        (rope.get("partial_rotary_factor", 1.0) == 1.0, "rotary dimensions that do not fill a head"),
        (set(getattr(config, "layer_types", None) or ()) <= set(LAYER_TYPES), f"layer types other than {LAYER_TYPES}"),
    )
    return next((f"not supported: {reason}" for fine, reason in checks if not fine), None)


def read_shape(config: Any) -> LlamaShape:
    """Sizes of a model that `supports` accepts."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    inv_freq, rope_scale = _rope(config, head_dim)
    return LlamaShape(
        num_layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        windows=_windows(config),
        inv_freq=inv_freq.float().contiguous(),
        rope_scale=float(rope_scale),
    )


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _rope(config: Any, head_dim: int) -> tuple[Tensor, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        return 1.0 / (rope["rope_theta"] ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)), 1.0
    scaled: Callable[..., tuple[Tensor, float]] = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    return scaled(config, torch.device("cpu"))

"""A model's tensors, fused for the forward and taken out of the state they came in."""

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from engine.llama.shape import LlamaShape

State = MutableMapping[str, Tensor]
"""Tensors by their transformers names; what is read is popped, so that memory goes as the forward takes it over."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, weights as (out, in) in the model's dtype; norms and biases in float32."""

    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    gate: Tensor
    up: Tensor
    down: Tensor
    attn_norm: Tensor
    mlp_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None

    def to(self, device: torch.device) -> "LayerWeights":
        """The same on another device."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in values.items() if value is not None})


@dataclass(frozen=True, slots=True)
class OuterWeights:
    """What surrounds the layers. `embedding` and `head` are (vocab, hidden), the same tensor where they are tied."""

    embedding: Tensor
    head: Tensor
    final_norm: Tensor


def take_layers(state: State, shape: LlamaShape, dtype: torch.dtype) -> Iterator[LayerWeights]:
    """Yield the layers in order; each is popped from `state` when it is asked for."""
    for index in range(shape.num_layers):
        yield _take_layer(state, f"model.layers.{index}.", dtype)


def take_outer(state: State, shape: LlamaShape, dtype: torch.dtype) -> OuterWeights:
    """Pop the embedding, the head and the last norm."""
    embedding = state.pop("model.embed_tokens.weight").to(dtype)
    head = state.pop("lm_head.weight", None)
    return OuterWeights(
        embedding=embedding,
        head=embedding if shape.tied or head is None else head.to(dtype),
        final_norm=state.pop("model.norm.weight").float(),
    )


def _take_layer(state: State, prefix: str, dtype: torch.dtype) -> LayerWeights:
    def weight(name: str) -> Tensor:
        return state.pop(f"{prefix}{name}.weight").to(dtype)

    def small(name: str) -> Tensor | None:
        tensor = state.pop(prefix + name, None)
        return None if tensor is None else tensor.float()

    attention = [f"self_attn.{part}_proj" for part in "qkv"]
    biases = [bias for bias in (small(f"{name}.bias") for name in attention) if bias is not None]
    return LayerWeights(
        qkv=torch.cat([weight(name) for name in attention]),
        qkv_bias=torch.cat(biases) if biases else None,
        o=weight("self_attn.o_proj"),
        o_bias=small("self_attn.o_proj.bias"),
        gate=weight("mlp.gate_proj"),
        up=weight("mlp.up_proj"),
        down=weight("mlp.down_proj"),
        attn_norm=weight("input_layernorm").float(),
        mlp_norm=weight("post_attention_layernorm").float(),
        q_norm=small("self_attn.q_norm.weight"),
        k_norm=small("self_attn.k_norm.weight"),
    )

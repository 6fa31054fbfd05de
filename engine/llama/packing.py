"""Weights in the order in which the kernels read them: see `engine/native/src/gemm.h`."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.llama.shape import LlamaShape
from engine.llama.slab import ALIGNMENT, Slab
from engine.llama.weights import LayerWeights, OuterWeights
from engine.native.library import Config, Layer

PANEL = 32
"""Columns of a weight panel."""


class Packer:
    """Owns what a model's pointers point at: packed weights in one slab, norms and biases beside it."""

    def __init__(self, shape: LlamaShape, dtype: torch.dtype) -> None:
        self._shape = shape
        self._slab = Slab(_packed_bytes(shape, dtype))
        self._small: list[Tensor] = []

    def layer(self, weights: LayerWeights, window: int | None, kv: Tensor) -> Layer:
        """Pack one layer; `kv` is its part of the pool."""
        return Layer(
            qkv=self._pack(weights.qkv),
            o=self._pack(weights.o),
            gate_up=self._pack(interleave(weights.gate, weights.up)),
            down=self._pack(weights.down),
            qkv_bias=self._bias(weights.qkv_bias),
            o_bias=self._bias(weights.o_bias),
            attn_norm=self._pointer(weights.attn_norm),
            mlp_norm=self._pointer(weights.mlp_norm),
            q_norm=self._pointer(weights.q_norm),
            k_norm=self._pointer(weights.k_norm),
            kv=kv.data_ptr(),
            window=window or 0,
        )

    def config(self, outer: OuterWeights, block_size: int) -> Config:
        """Pack the rest; an embedding that is tied to the head is not kept a second time."""
        shape = self._shape
        tied = outer.head is outer.embedding
        return Config(
            layers=shape.num_layers,
            hidden=shape.hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            intermediate=shape.intermediate,
            vocab=shape.vocab,
            block_size=block_size,
            norm_eps=shape.norm_eps,
            softmax_scale=shape.softmax_scale,
            rope_scale=shape.rope_scale,
            inv_freq=self._pointer(shape.inv_freq),
            embedding=None if tied else self._copy(outer.embedding),
            head=self._pack(outer.head),
            final_norm=self._pointer(outer.final_norm),
        )

    def _pack(self, weight: Tensor) -> int:
        return self._copy(to_panels(weight))

    def _copy(self, tensor: Tensor) -> int:
        kept = self._slab.take(tensor.numel(), tensor.dtype)
        kept.view(tensor.shape).copy_(tensor)
        return int(kept.data_ptr())

    def _bias(self, bias: Tensor | None) -> int | None:
        return None if bias is None else self._pointer(pad(bias, (0, -len(bias) % PANEL)))

    def _pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._small.append(tensor.contiguous())
        return int(self._small[-1].data_ptr())


def to_panels(weight: Tensor) -> Tensor:
    """View (out, in) as panels of 32 columns: int32 (out / 32, in / word, 32), each word 32 bits of one column.

    Both dimensions are zero-padded to a multiple of 32.
    """
    weight = pad(weight, (0, -weight.shape[1] % PANEL, 0, -weight.shape[0] % PANEL)).contiguous()
    words = weight.view(torch.int32)
    return words.view(-1, PANEL, words.shape[1]).transpose(1, 2)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """16 rows of `gate`, the same 16 of `up`, and so on: each panel then holds both factors of its products."""
    return torch.stack([gate.view(-1, 16, gate.shape[1]), up.view(-1, 16, up.shape[1])], 1).view(-1, gate.shape[1])


def _packed_bytes(shape: LlamaShape, dtype: torch.dtype) -> int:
    def padded(out: int, into: int) -> int:
        return -(-out // PANEL) * PANEL * -(-into // PANEL) * PANEL * dtype.itemsize + ALIGNMENT

    layer = padded(sum(shape.qkv_sizes), shape.hidden) + padded(shape.hidden, shape.qkv_sizes[0])
    layer += padded(2 * shape.intermediate, shape.hidden) + padded(shape.hidden, shape.intermediate)
    return shape.num_layers * layer + (1 if shape.tied else 2) * padded(shape.vocab, shape.hidden)

"""The forward in plain torch: where there is no compiler, and the reference for the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from engine.batch import SequenceWork
from engine.llama.shape import LlamaShape
from engine.llama.weights import LayerWeights, State, take_layers, take_outer


@dataclass(frozen=True, slots=True)
class _Layer:
    weights: LayerWeights
    keys: Tensor
    """(slots, kv_heads, head_dim); a slot is block * block_size + offset."""
    values: Tensor
    window: int | None


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of a step share. `rows` slices the step's tokens, `seen` are the slots a sequence attends to."""

    cos: Tensor
    sin: Tensor
    slots: Tensor
    sequences: tuple[tuple[slice, Tensor, Tensor], ...]
    """(rows, positions (n,), seen (start + n,))."""


class TorchLlama:
    """`LlamaForward` in torch operations; see `load_forward` for the arguments."""

    def __init__(
        self,
        state: State,
        shape: LlamaShape,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.name = f"torch ({device})"
        self._shape, self._block_size, self._device = shape, block_size, device
        pool = (shape.num_layers, 2, num_blocks * block_size, shape.kv_heads, shape.head_dim)
        self._kv = torch.zeros(pool, dtype=dtype, device=device)
        self._layers = [self._layer(weights, index) for index, weights in enumerate(take_layers(state, shape, dtype))]
        outer = take_outer(state, shape, dtype)
        self._embedding = outer.embedding.to(device)
        self._head = self._embedding if outer.head is outer.embedding else outer.head.to(device)
        self._final_norm = outer.final_norm.to(device)
        self._inv_freq = shape.inv_freq.to(device)

    @torch.inference_mode()
    def step(self, batch: Sequence[SequenceWork]) -> Tensor:
        """See `LlamaForward.step`."""
        step = self._prepare(batch)
        hidden = self._embedding[self._index([token for work in batch for token in work.token_ids])]
        for layer in self._layers:
            hidden = hidden + self._attention(layer, step, self._norm(hidden, layer.weights.attn_norm))
            hidden = hidden + self._mlp(layer.weights, hidden)
        rows = [part.stop - 1 for (part, *_), work in zip(step.sequences, batch, strict=True) if work.sample]
        return linear(self._norm(hidden[self._index(rows)], self._final_norm), self._head).float()

    def close(self) -> None:
        """See `LlamaForward.close`."""
        self._layers.clear()
        del self._kv, self._embedding, self._head

    def _layer(self, weights: LayerWeights, index: int) -> _Layer:
        return _Layer(weights.to(self._device), self._kv[index, 0], self._kv[index, 1], self._shape.windows[index])

    def _prepare(self, batch: Sequence[SequenceWork]) -> _Step:
        sequences, row = [], 0
        for work in batch:
            end = work.start + len(work.token_ids)
            at = torch.arange(end, device=self._device)
            blocks = self._index(work.block_table)
            seen = blocks[at // self._block_size] * self._block_size + at % self._block_size
            sequences.append((slice(row, row + len(work.token_ids)), at[work.start :], seen))
            row += len(work.token_ids)
        positions = torch.cat([positions for _, positions, _ in sequences])
        angles = positions[:, None].float() * self._inv_freq
        cos, sin = angles.cos() * self._shape.rope_scale, angles.sin() * self._shape.rope_scale
        dtype = self._kv.dtype
        slots = torch.cat([seen[-len(positions) :] for _, positions, seen in sequences])
        return _Step(cos[:, None].to(dtype), sin[:, None].to(dtype), slots, tuple(sequences))

    def _attention(self, layer: _Layer, step: _Step, hidden: Tensor) -> Tensor:
        weights, shape = layer.weights, self._shape
        qkv = linear(hidden, weights.qkv, None if weights.qkv_bias is None else weights.qkv_bias.to(hidden.dtype))
        q, k, v = (part.view(len(hidden), -1, shape.head_dim) for part in torch.split(qkv, list(shape.qkv_sizes), -1))
        if weights.q_norm is not None and weights.k_norm is not None:
            q, k = self._norm(q, weights.q_norm), self._norm(k, weights.k_norm)
        layer.keys[step.slots] = _rotate(k, step)
        layer.values[step.slots] = v
        q = _rotate(q, step)
        out = [self._attend(layer, q[rows], positions, seen) for rows, positions, seen in step.sequences]
        bias = None if weights.o_bias is None else weights.o_bias.to(hidden.dtype)
        return linear(torch.cat(out), weights.o, bias)

    def _mlp(self, weights: LayerWeights, hidden: Tensor) -> Tensor:
        normed = self._norm(hidden, weights.mlp_norm)
        return linear(silu(linear(normed, weights.gate)) * linear(normed, weights.up), weights.down)

    def _attend(self, layer: _Layer, q: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        """One sequence: q (n, heads, head_dim) over the slots `seen`; returns (n, heads * head_dim)."""
        at = torch.arange(len(seen), device=self._device)
        mask = at <= positions[:, None]
        if layer.window is not None:
            mask &= at > positions[:, None] - layer.window
        q, k, v = (part.transpose(0, 1)[None] for part in (q, layer.keys[seen], layer.values[seen]))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self._shape.softmax_scale, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden.float(), weight.shape, weight, self._shape.norm_eps).to(hidden.dtype)

    def _index(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def _rotate(x: Tensor, step: _Step) -> Tensor:
    """Rotary embedding (Su et al. 2021) of (n, heads, head_dim), halves as transformers pairs them."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * step.cos - second * step.sin, second * step.cos + first * step.sin], -1)

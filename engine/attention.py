"""Attention over the paged KV pool, for sequences packed without padding.

Registered as an attention function of transformers, whose model code calls it once a layer; the step it works on
comes with the call as the keyword `paged`. transformers builds no mask for an attention that has no mask function.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine.errors import ModelLoadError
from engine.pool import KVPool

PAGED_ATTENTION = "tidegate_paged"
_UNSUPPORTED = {"s_aux": "attention sinks", "position_bias": "a position bias"}
_GATHER_TOKENS = 32_768
"""The most positions that decodes read together: it bounds the scratch memory."""
_GROUP_FILL = 0.6
"""Decodes share a gather only if the shortest fills this much of the longest: what lies beyond is padding."""


class Span(NamedTuple):
    """One sequence's rows in the packed step: positions `start .. start + length - 1` of a sequence in `blocks`."""

    row: int
    length: int
    start: int
    blocks: Sequence[int]


class LayerCall(NamedTuple):
    """How a model's layer wants attention: its number, the score scale, and what bends the scores."""

    layer: int
    scale: float
    window: int | None
    softcap: float | None


class Step(Protocol):
    """What a model's attention layers are given for one forward pass."""

    def attend(self, call: LayerCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(tokens, heads, head_dim) query and (tokens, kv_heads, head_dim) key and value to (tokens, heads, dim)."""
        ...


@dataclass(frozen=True, slots=True)
class _Gather:
    """Sequences that attend together: their rows, the blocks they read, and which of those positions each row sees.

    `blocks` None: a whole prompt at once, which attends to its own rows. `mask` is additive, (sequences, 1, rows or 1,
    positions); None is causal.
    """

    rows: Tensor | slice
    num_sequences: int
    blocks: Tensor | None
    mask: Tensor | None


class PagedStep:
    """One step's packed sequences over a pool. Plans what to gather once for each sliding window, not each layer."""

    def __init__(self, pool: KVPool, spans: Sequence[Span], dtype: torch.dtype, device: torch.device) -> None:
        self._pool, self._spans, self._dtype, self._device = pool, spans, dtype, device
        self._plans: dict[int | None, list[_Gather]] = {}
        self.positions = torch.tensor([p for s in spans for p in range(s.start, s.start + s.length)], device=device)
        self._slots = torch.cat([self._span_slots(span) for span in spans])

    def attend(self, call: LayerCall, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write this step's keys and values, then attend, each sequence to its own positions."""
        self._pool.write(call.layer, self._slots, key, value)
        if call.window not in self._plans:
            self._plans[call.window] = self._plan(call.window)
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for gather in self._plans[call.window]:
            if gather.blocks is None:
                keys, values = key[gather.rows], value[gather.rows]
            else:
                keys, values = self._pool.read(call.layer, gather.blocks)
            tensors = query[gather.rows], keys, values
            q, k, v = (t.reshape(gather.num_sequences, -1, *t.shape[1:]).transpose(1, 2) for t in tensors)
            output[gather.rows] = _attention(q, k, v, gather.mask, call).transpose(1, 2).flatten(0, 1)
        return output

    def _span_slots(self, span: Span) -> Tensor:
        size = self._pool.block_size
        positions = torch.arange(span.start, span.start + span.length, device=self._device)
        first = span.start // size
        blocks = torch.tensor(span.blocks[first : -(-(span.start + span.length) // size)], device=self._device)
        return blocks[positions // size - first] * size + positions % size

    def _plan(self, window: int | None) -> list[_Gather]:
        gathers = [self._prefill(span, window) for span in self._spans if span.length > 1]
        decodes = sorted((s for s in self._spans if s.length == 1), key=lambda s: -self._num_read(s, window))
        while decodes:
            longest = self._num_read(decodes[0], window)
            most = max(1, _GATHER_TOKENS // (longest * self._pool.block_size))
            group = [span for span in decodes[:most] if self._num_read(span, window) >= _GROUP_FILL * longest]
            decodes = decodes[len(group) :]
            gathers.append(self._decode(group, longest, window))
        return gathers

    def _first_block(self, span: Span, window: int | None) -> int:
        return 0 if window is None else max(0, span.start - window + 1) // self._pool.block_size

    def _num_read(self, span: Span, window: int | None) -> int:
        return -(-(span.start + span.length) // self._pool.block_size) - self._first_block(span, window)

    def _prefill(self, span: Span, window: int | None) -> _Gather:
        rows = slice(span.row, span.row + span.length)
        if span.start == 0 and (window is None or span.length <= window):
            return _Gather(rows, 1, None, None)
        first, count = self._first_block(span, window), self._num_read(span, window)
        blocks = torch.tensor(span.blocks[first : first + count], device=self._device)
        queries = torch.arange(span.start, span.start + span.length, device=self._device)
        return _Gather(rows, 1, blocks, self._mask(queries[None], torch.tensor([first]), count, window))

    def _decode(self, group: Sequence[Span], longest: int, window: int | None) -> _Gather:
        firsts = [self._first_block(span, window) for span in group]
        tables = [
            [*span.blocks[first : first + self._num_read(span, window)]]
            for span, first in zip(group, firsts, strict=True)
        ]
        padded = torch.tensor([table + table[:1] * (longest - len(table)) for table in tables], device=self._device)
        rows = torch.tensor([span.row for span in group], device=self._device)
        queries = torch.tensor([[span.start] for span in group], device=self._device)
        return _Gather(rows, len(group), padded.flatten(), self._mask(queries, torch.tensor(firsts), longest, window))

    def _mask(self, queries: Tensor, first_blocks: Tensor, num_blocks: int, window: int | None) -> Tensor:
        """(sequences, 1, rows, positions): 0 where a query sees a position, -inf elsewhere."""
        size = self._pool.block_size
        positions = first_blocks.to(self._device)[:, None] * size + torch.arange(num_blocks * size, device=self._device)
        distance = queries[:, :, None] - positions[:, None, :]
        hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
        mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf"))[:, None]


def _attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: LayerCall) -> Tensor:
    """(sequences, heads, rows, dim) attention; key and value have the kv heads. Causal where `mask` is None."""
    if call.softcap is not None:
        return _softcap_attention(query, key, value, mask, call.scale, call.softcap)
    groups = query.shape[1] // key.shape[1]
    if query.shape[2] == 1 and groups > 1:  # one row a sequence: heads that share keys become rows
        packed = query.reshape(len(query), -1, groups, query.shape[3])
        return scaled_dot_product_attention(packed, key, value, mask, scale=call.scale).flatten(1, 2).unsqueeze(2)
    return scaled_dot_product_attention(
        query, key, value, mask, is_causal=mask is None, scale=call.scale, enable_gqa=groups > 1
    )


def _softcap_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """Attention with Gemma 2's bounded scores: softcap * tanh(score / softcap)."""
    grouped = query.reshape(len(query), key.shape[1], -1, *query.shape[2:])
    scores = (grouped @ key[:, :, None].mT).float() * scale
    scores = torch.tanh(scores / softcap) * softcap
    if mask is None:
        rows = query.shape[2]
        mask = torch.full((rows, rows), float("-inf"), device=query.device).triu(1)[None, None]
    weights = torch.softmax(scores + mask[:, :, None], dim=-1).to(value.dtype)
    return (weights @ value[:, :, None]).flatten(1, 2)


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: Step | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: (1, heads, tokens, head_dim) in, (1, tokens, heads, head_dim) out.

    Raises:
        ModelLoadError: the model wants something of attention that is not computed here, or passes no step on.
    """
    if paged is None:
        raise ModelLoadError(f"{type(module).__name__} does not pass keyword arguments on to its attention")
    wanted = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if wanted or is_causal is False or attention_mask is not None:
        name = _UNSUPPORTED[wanted[0]] if wanted else "attention that is not causal"
        raise ModelLoadError(f"{type(module).__name__} needs {name}, which paged attention does not compute")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    call = LayerCall(int(module.layer_idx), float(scale), sliding_window, softcap)  # type: ignore[arg-type]
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    return paged.attend(call, q, k, v)[None], None

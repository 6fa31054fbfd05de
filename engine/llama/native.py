"""The forward in one C++ call a step: packed weights, paged KV in the kernels' own order."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.batch import SequenceWork
from engine.llama.shape import LlamaShape
from engine.llama.slab import ALIGNMENT, Slab
from engine.llama.weights import LayerWeights, State, take_layers, take_outer
from engine.native.library import Batch, Config, Kernels, Layer

Int32Array = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

PANEL = 32
"""Columns of a weight panel: `src/gemm.h`."""
GROUP = 16
"""Tokens of a KV group: `src/kv.h`."""


def native_refuses(shape: LlamaShape, block_size: int, dtype: torch.dtype, device: torch.device | str) -> str | None:
    """Why the kernels cannot compute this model here; None if they can."""
    sizes = {"hidden": shape.hidden, "intermediate": shape.intermediate, "head_dim": shape.head_dim}
    odd = [f"{name} {size}" for name, size in sizes.items() if size % 16]
    checks = (
        (torch.device(device).type == "cpu", f"the device is {device}, not a CPU"),
        (dtype in (torch.float32, torch.bfloat16), f"{dtype} is neither float32 nor bfloat16"),
        (block_size % GROUP == 0, f"a KV block of {block_size} tokens is no multiple of {GROUP}"),
        (not odd, f"not a multiple of 16: {', '.join(odd)}"),
    )
    return next((reason for fine, reason in checks if not fine), None)


class NativeLlama:
    """`LlamaForward` over the C++ kernels; see `load_forward` for the arguments."""

    def __init__(
        self,
        state: State,
        shape: LlamaShape,
        kernels: Kernels,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        threads: int,
        use_tiles: bool = True,
    ) -> None:
        self.name = f"native ({kernels.level}, {threads} threads)"
        self._shape, self._kernels, self._threads = shape, kernels, threads
        self._num_blocks, self._block_size = num_blocks, block_size
        self._weights = Slab(_weight_bytes(shape, dtype))
        kv_elements = num_blocks * block_size * 2 * shape.kv_heads * shape.head_dim
        self._kv = Slab(shape.num_layers * (kv_elements * dtype.itemsize + ALIGNMENT))
        self._keep: list[Tensor] = []
        self._logits = torch.empty(0, shape.vocab)
        layers = (Layer * shape.num_layers)()
        for index, weights in enumerate(take_layers(state, shape, dtype)):
            layers[index] = self._layer(weights, dtype, shape.windows[index] or 0)
            layers[index].kv = self._kv.take(kv_elements, dtype).data_ptr()
        config = self._config(state, block_size, dtype)
        self._handle = kernels.llama_new(config, layers, dtype == torch.bfloat16, use_tiles)
        if not self._handle:
            raise MemoryError("the kernels found no memory for the model's sizes")

    def step(self, batch: Sequence[SequenceWork]) -> Tensor:
        """See `LlamaForward.step`."""
        counts = [len(work.token_ids) for work in batch]
        ends = list(accumulate(counts))
        tables = [work.block_table for work in batch]
        table_ends = list(accumulate(len(table) for table in tables))
        token_ids = _int32([token for work in batch for token in work.token_ids])
        flat_tables = _int32([block for table in tables for block in table])
        sequences = _int32(
            [
                (end - count, count, work.start, table_end - len(table))
                for work, count, end, table, table_end in zip(batch, counts, ends, tables, table_ends, strict=True)
            ]
        )
        rows = _int32([end - 1 for work, end in zip(batch, ends, strict=True) if work.sample])
        self._check(batch, token_ids, flat_tables)
        logits = self._room(len(rows))
        call = Batch(
            token_ids=token_ids.ctypes.data,
            sequences=sequences.ctypes.data,
            tables=flat_tables.ctypes.data,
            rows=rows.ctypes.data,
            logits=logits.data_ptr(),
            num_tokens=len(token_ids),
            num_sequences=len(batch),
            num_rows=len(rows),
            threads=self._threads,
        )
        if not batch:
            return logits
        if self._kernels.llama_step(self._handle, call) != 0:
            raise MemoryError(f"no memory for a step of {len(token_ids)} tokens")
        return logits

    def close(self) -> None:
        """See `LlamaForward.close`."""
        handle, self._handle = self._handle, None
        if handle:
            self._kernels.llama_delete(handle)
        del self._weights, self._kv
        self._keep.clear()

    def _check(self, batch: Sequence[SequenceWork], token_ids: Int32Array, tables: Int32Array) -> None:
        """The kernels take what they are given: a wrong index would read or write foreign memory."""
        for work in batch:
            end, room = work.start + len(work.token_ids), len(work.block_table) * self._block_size
            if not work.token_ids or work.start < 0 or end > room:
                raise ValueError(
                    f"sequence {work.seq_id}: positions {work.start} to {end - 1} do not fit its table of {room} slots"
                )
        for name, values, bound in (("token id", token_ids, self._shape.vocab), ("block", tables, self._num_blocks)):
            if values.size and not 0 <= values.min() <= values.max() < bound:
                raise ValueError(f"a {name} of {values.min()} to {values.max()} is outside 0 to {bound - 1}")

    def _room(self, rows: int) -> Tensor:
        if rows > self._logits.shape[0]:
            self._logits = torch.empty(rows, self._shape.vocab)
        return self._logits[:rows]

    def _config(self, state: State, block_size: int, dtype: torch.dtype) -> Config:
        shape = self._shape
        outer = take_outer(state, shape, dtype)
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
            embedding=None if tied else self._copy(outer.embedding).data_ptr(),
            head=self._pack(outer.head),
            final_norm=self._pointer(outer.final_norm),
        )

    def _layer(self, weights: LayerWeights, dtype: torch.dtype, window: int) -> Layer:
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
            window=window,
        )

    def _pack(self, weight: Tensor) -> int:
        words = to_panels(weight)
        packed = self._weights.take(words.numel(), torch.int32).view(words.shape).copy_(words)
        return int(packed.data_ptr())

    def _copy(self, tensor: Tensor) -> Tensor:
        return self._weights.take(tensor.numel(), tensor.dtype).view(tensor.shape).copy_(tensor)

    def _bias(self, bias: Tensor | None) -> int | None:
        return None if bias is None else self._pointer(pad(bias, (0, -len(bias) % PANEL)))

    def _pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._keep.append(tensor.contiguous())
        return int(self._keep[-1].data_ptr())


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


def _weight_bytes(shape: LlamaShape, dtype: torch.dtype) -> int:
    def padded(out: int, into: int) -> int:
        return -(-out // PANEL) * PANEL * -(-into // PANEL) * PANEL * dtype.itemsize + ALIGNMENT

    queries, keys, values = shape.qkv_sizes
    layer = padded(queries + keys + values, shape.hidden) + padded(shape.hidden, queries)
    layer += padded(2 * shape.intermediate, shape.hidden) + padded(shape.hidden, shape.intermediate)
    return shape.num_layers * layer + (1 if shape.tied else 2) * padded(shape.vocab, shape.hidden)


def _int32(values: Sequence[object]) -> Int32Array:
    return np.ascontiguousarray(values, dtype=np.int32)

"""The forward in one C++ call a step: packed weights, paged KV in the kernels' own order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from engine.batch import SequenceWork
from engine.llama.packing import Packer
from engine.llama.shape import LlamaShape
from engine.llama.slab import ALIGNMENT, Slab
from engine.llama.weights import State, take_layers, take_outer
from engine.native.library import Batch, Kernels, Layer

Int32Array = np.ndarray[tuple[int, ...], np.dtype[np.int32]]

GROUP = 16
"""Tokens of a KV group: `engine/native/src/kv.h`."""


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
        self._logits = torch.empty(0, shape.vocab)
        kv_elements = num_blocks * block_size * 2 * shape.kv_heads * shape.head_dim
        kv = Slab(shape.num_layers * (kv_elements * dtype.itemsize + ALIGNMENT))
        packer = Packer(shape, dtype)
        layers = (Layer * shape.num_layers)(
            *(
                packer.layer(weights, window, kv.take(kv_elements, dtype))
                for weights, window in zip(take_layers(state, shape, dtype), shape.windows, strict=True)
            )
        )
        config = packer.config(take_outer(state, shape, dtype), block_size)
        self._memory: list[object] = [kv, packer]
        self._handle = kernels.llama_new(config, layers, dtype == torch.bfloat16, use_tiles)
        if not self._handle:
            raise MemoryError("the kernels found no memory for the model's sizes")

    def step(self, batch: Sequence[SequenceWork]) -> Tensor:
        """See `LlamaForward.step`."""
        if not self._handle:
            raise RuntimeError("the forward is closed")
        flat = flatten(batch)
        self._check(batch, flat)
        logits = self._room(len(flat.rows))
        call = Batch(
            token_ids=flat.token_ids.ctypes.data,
            sequences=flat.sequences.ctypes.data,
            tables=flat.tables.ctypes.data,
            rows=flat.rows.ctypes.data,
            logits=logits.data_ptr(),
            num_tokens=len(flat.token_ids),
            num_sequences=len(batch),
            num_rows=len(flat.rows),
            threads=self._threads,
        )
        if batch and self._kernels.llama_step(self._handle, call) != 0:
            raise MemoryError(f"no memory for a step of {len(flat.token_ids)} tokens")
        return logits

    def close(self) -> None:
        """See `LlamaForward.close`."""
        handle, self._handle = self._handle, None
        if handle:
            self._kernels.llama_delete(handle)
        self._memory.clear()

    def _check(self, batch: Sequence[SequenceWork], flat: "Flat") -> None:
        """The kernels take what they are given: a wrong index would read or write foreign memory."""
        for work in batch:
            num, room = len(work.token_ids), len(work.block_table) * self._block_size
            if num < 1 or work.start < 0 or work.start + num > room:
                raise ValueError(
                    f"sequence {work.seq_id}: {num} tokens from {work.start} on do not fit a table of {room} slots"
                )
        bounds = (("token id", flat.token_ids, self._shape.vocab), ("block", flat.tables, self._num_blocks))
        for name, values, bound in bounds:
            if values.size and not 0 <= values.min() <= values.max() < bound:
                raise ValueError(f"a {name} of {values.min()} to {values.max()} is outside 0 to {bound - 1}")

    def _room(self, rows: int) -> Tensor:
        if rows > self._logits.shape[0]:
            self._logits = torch.empty(rows, self._shape.vocab)
        return self._logits[:rows]


@dataclass(frozen=True, slots=True)
class Flat:
    """A batch as the kernels take it: tokens and block tables end to end."""

    token_ids: Int32Array
    sequences: Int32Array
    """(sequences, 4): first row, tokens, first position, start of the table among all tables."""
    tables: Int32Array
    rows: Int32Array
    """Rows whose logits are asked for."""


def flatten(batch: Sequence[SequenceWork]) -> Flat:
    """Lay a batch's sequences end to end."""
    counts = [len(work.token_ids) for work in batch]
    table_sizes = [len(work.block_table) for work in batch]
    ends, table_ends = list(accumulate(counts)), list(accumulate(table_sizes))
    return Flat(
        token_ids=_int32(chain.from_iterable(work.token_ids for work in batch), sum(counts)),
        sequences=np.array(
            [
                (end - count, count, work.start, table_end - size)
                for work, count, end, size, table_end in zip(batch, counts, ends, table_sizes, table_ends, strict=True)
            ],
            dtype=np.int32,
        ),
        tables=_int32(chain.from_iterable(work.block_table for work in batch), sum(table_sizes)),
        rows=np.array([end - 1 for work, end in zip(batch, ends, strict=True) if work.sample], dtype=np.int32),
    )


def _int32(values: Iterable[int], count: int) -> Int32Array:
    return np.fromiter(values, dtype=np.int32, count=count)

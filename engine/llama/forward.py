"""The forward's one interface, and the choice between the native and the torch one."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.batch import SequenceWork
from engine.llama.native import NativeLlama, native_refuses
from engine.llama.plain import TorchLlama
from engine.llama.shape import read_shape, supports
from engine.llama.weights import State
from engine.native import Kernels


class LlamaForward(Protocol):
    """Computes steps over a KV pool of its own. One caller at a time."""

    name: str
    """How it computes, for logs and `doctor`."""

    def step(self, batch: Sequence[SequenceWork]) -> Tensor:
        """Compute a step and write its keys and values.

        Decode tokens and prefill chunks may be mixed. Blocks below `start` are only read.

        Returns:
            Logits, float32 (number of works with `sample`, vocab), in the order of the works. They are overwritten by
            the next step.
        """
        ...

    def close(self) -> None:
        """Give the memory back; no step may follow."""
        ...


def load_forward(
    state: State,
    config: Any,
    *,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    kernels: Kernels | None = None,
    threads: int | None = None,
) -> LlamaForward:
    """Make a forward of a model's tensors, which are taken out of `state` one by one.

    Args:
        state: tensors by their transformers names; give the only reference, or memory holds the weights twice.
        config: the transformers configuration; `supports(config)` must be None.
        num_blocks: blocks of the KV pool; a block takes `block_size` times the model's KV bytes for a token.
        block_size: tokens in a block.
        dtype: of weights, activations and KV.
        device: where the torch forward computes.
        kernels: the native library; used on a CPU where the model's sizes fit it, see `native_refuses`.
        threads: for the native forward; None takes torch's number.

    Raises:
        ValueError: the model is not supported.
        MemoryError: the KV pool does not fit.
    """
    reason = supports(config)
    if reason is not None:
        raise ValueError(reason)
    shape = read_shape(config)
    if kernels is not None and native_refuses(shape, block_size, dtype, device) is None:
        return NativeLlama(state, shape, kernels, num_blocks, block_size, dtype, threads or torch.get_num_threads())
    return TorchLlama(state, shape, num_blocks, block_size, dtype, torch.device(device))

"""The KV pool: one pair of paged tensors a layer, sized before anything is allocated."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from engine.config import EngineConfig
from engine.errors import OutOfMemoryError

_DEFAULT_SHARE = 0.25
_DEFAULT_CPU_BYTES = 2 << 30
_MIB = 1 << 20


class LayerShape(NamedTuple):
    """What one layer keeps for each token."""

    kv_heads: int
    key_dim: int
    value_dim: int


class KVPool:
    """Keys and values by layer, each (num_blocks, block_size, kv_heads, head_dim), zero at first.

    Positions that no token was written to are masked, but must be finite.
    """

    def __init__(
        self, layers: Sequence[LayerShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size

        def zeros(heads: int, dim: int) -> torch.Tensor:
            return torch.zeros(num_blocks, block_size, heads, dim, dtype=dtype, device=device)

        self.keys = [zeros(layer.kv_heads, layer.key_dim) for layer in layers]
        self.values = [zeros(layer.kv_heads, layer.value_dim) for layer in layers]
        self._scratch = torch.empty(0, dtype=dtype, device=device), torch.empty(0, dtype=dtype, device=device)

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store (tokens, kv_heads, head_dim) keys and values at `slots`, which are block * block_size + offset."""
        self.keys[layer].flatten(0, 1).index_copy_(0, slots, keys)
        self.values[layer].flatten(0, 1).index_copy_(0, slots, values)

    def read(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of whole blocks, (len(blocks) * block_size, kv_heads, head_dim) each, valid until the next read.

        They go to scratch memory that is kept: pages fresh from the system would cost more than the copy.
        """
        return self._gather(self.keys[layer], blocks, 0), self._gather(self.values[layer], blocks, 1)

    def _gather(self, paged: torch.Tensor, blocks: torch.Tensor, which: int) -> torch.Tensor:
        shape = (len(blocks), *paged.shape[1:])
        out = self._scratch[which].resize_(max(self._scratch[which].numel(), math.prod(shape)))
        return torch.index_select(paged, 0, blocks, out=out[: math.prod(shape)].view(shape)).flatten(0, 1)


def bytes_per_token(layers: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """KV bytes that one token takes, all layers together."""
    return sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


def pool_blocks(config: EngineConfig, token_bytes: int, device: torch.device) -> int:
    """How many blocks the pool gets: `num_blocks`, else what fits `kv_bytes`, else a share of free memory.

    Raises:
        OutOfMemoryError: they do not fit in free memory, or not even one block would.
    """
    block_bytes = token_bytes * config.block_size
    free = free_bytes(device)
    if config.num_blocks is not None:
        num_blocks = config.num_blocks
    elif config.kv_bytes is not None:
        num_blocks = config.kv_bytes // block_bytes
    else:
        share = int(free * _DEFAULT_SHARE)
        num_blocks = (min(share, _DEFAULT_CPU_BYTES) if device.type == "cpu" else share) // block_bytes
    if num_blocks < 1:
        raise OutOfMemoryError(f"a KV block takes {block_bytes:,} bytes, more than the pool may have: raise kv_bytes")
    check_fits(num_blocks * block_bytes, free, f"the KV pool of {num_blocks:,} blocks", "lower kv_bytes or num_blocks")
    return num_blocks


def check_fits(needed_bytes: int, free: int, what: str, remedy: str) -> None:
    """Refuse an allocation before it is tried.

    Raises:
        OutOfMemoryError: `needed_bytes` is more than `free`.
    """
    if needed_bytes > free:
        raise OutOfMemoryError(
            f"{what} needs {needed_bytes / _MIB:,.0f} MiB, but {free / _MIB:,.0f} MiB are free: {remedy}"
        )


def free_bytes(device: torch.device) -> int:
    """Memory that can still be taken on `device`; on a CPU, within the container's limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    available: int = psutil.virtual_memory().available
    return min(available, _cgroup_free(available))


def _cgroup_free(default: int) -> int:
    """What cgroup v2 leaves: `memory.max` less `memory.current` without its reclaimable page cache."""
    root = Path("/sys/fs/cgroup")
    try:
        limit, current = int((root / "memory.max").read_text()), int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return default
    return max(0, limit - current + int(stat.get("inactive_file", 0)))

"""Large memory on huge pages, so that reading it end to end costs few address translations."""

import mmap

import torch
from torch import Tensor

ALIGNMENT = 64
HUGE_PAGE = 2 << 20


class Slab:
    """Zeroed memory handed out piece by piece and freed as a whole, when the last tensor over it goes.

    Pages are taken from the system when they are first written: a slab that is not used costs nothing.
    """

    def __init__(self, num_bytes: int) -> None:
        """Reserve `num_bytes`.

        Raises:
            MemoryError: the system does not give that much; the message has the number.
        """
        self._used = 0
        try:
            self._memory = mmap.mmap(-1, max(num_bytes, 1) + HUGE_PAGE)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"the system has no {num_bytes / 2**20:.0f} MiB for the engine: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        whole = torch.frombuffer(self._memory, dtype=torch.uint8)
        start = -whole.data_ptr() % HUGE_PAGE
        self._bytes = whole[start : start + num_bytes]

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        """A tensor (count,) over the next free bytes, aligned to a cache line."""
        start = self._used
        size = count * dtype.itemsize
        if start + size > self._bytes.numel():
            raise MemoryError(f"the slab has {self._bytes.numel() - start} bytes left, not {size}")
        self._used = start + -(-size // ALIGNMENT) * ALIGNMENT
        return self._bytes[start : start + size].view(dtype)

"""The pool of KV blocks: which are free, cached or held, and for how long.

A block is *free* (its content is worth nothing), *idle* (cached, held by nobody, evictable) or *in use* (in one or
more block tables). The three partition the pool.
"""

from collections import OrderedDict


class BlockPool:
    """Block ids 0 .. num_blocks - 1 with reference counts; idle blocks in LRU order."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a KV pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self.now = 0.0
        """The instant at which holds begin and end; whoever drives the pool moves it."""
        self._refs = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._share_s = [0.0] * num_blocks
        self._since = [0.0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without content."""
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Cached blocks that nobody holds."""
        return len(self._idle)

    @property
    def num_in_use(self) -> int:
        """Blocks in at least one table."""
        return self.num_blocks - len(self._free) - len(self._idle)

    def refs(self, block: int) -> int:
        """How many tables hold this block."""
        return self._refs[block]

    def take(self) -> int:
        """A free block, now held once.

        Raises:
            RuntimeError: no block is free; evict an idle one first.
        """
        if not self._free:
            raise RuntimeError(f"none of {self.num_blocks} KV blocks is free ({len(self._idle)} idle)")
        block = self._free.pop()
        self._settle(block)
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """Hold a cached block once more; an idle one becomes in use."""
        self._settle(block)
        if self._refs[block] == 0:
            del self._idle[block]
        self._refs[block] += 1

    def release(self, block: int, cached: bool) -> None:
        """Give up one hold; the last leaves the block idle (most recently used) if it is cached, else free."""
        self._settle(block)
        self._refs[block] -= 1
        if self._refs[block] == 0:
            if cached:
                self._idle[block] = None
            else:
                self._free.append(block)

    def oldest_idle(self) -> int:
        """The idle block that was released first.

        Raises:
            RuntimeError: nothing is idle.
        """
        if not self._idle:
            raise RuntimeError(f"none of {self.num_blocks} KV blocks is idle")
        return next(iter(self._idle))

    def idle_blocks(self) -> list[int]:
        """Idle blocks, least recently used first."""
        return list(self._idle)

    def free_idle(self, block: int) -> None:
        """Make an idle block free; its content is forgotten."""
        del self._idle[block]
        self._free.append(block)

    def share_s(self, block: int) -> float:
        """Integral over time of 1 / holders, in seconds, up to `now`.

        The difference between two readings is what one holder is charged for the time between them.
        """
        self._settle(block)
        return self._share_s[block]

    def check(self) -> None:
        """Prove the partition.

        Raises:
            RuntimeError: naming the block that is in two places or in none.
        """
        places = sorted([*self._free, *self._idle, *(b for b, refs in enumerate(self._refs) if refs > 0)])
        if places != list(range(self.num_blocks)):
            raise RuntimeError(f"free, idle and in use do not partition {self.num_blocks} blocks: {places}")
        if min(self._refs) < 0:
            raise RuntimeError(f"negative reference count: {self._refs}")

    def _settle(self, block: int) -> None:
        if self._refs[block]:
            self._share_s[block] += (self.now - self._since[block]) / self._refs[block]
        self._since[block] = self.now

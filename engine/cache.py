"""The KV cache: sequences lease blocks, full blocks are filed by prefix, and later sequences find them again."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice

from engine.blocks import BlockPool
from engine.integrity import check_idle, check_leases
from engine.lease import Lease
from engine.prefix import Namespace, Node, PrefixTree, Tokens, tokens_themselves


class KVCache:
    """Joins pool and tree. One thread writes; `probe` may be called from any thread.

    Shared blocks are full and filed, and work is only ever written behind the filed part of a table; so a shared
    block is never written.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens a block holds.
        sharing: False files nothing and finds nothing.
        key: see `PrefixTree`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        sharing: bool = True,
        key: Callable[[Tokens], Hashable] = tokens_themselves,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.num_releases = 0
        """Grows whenever blocks may have become available."""
        self._tree = PrefixTree(block_size, key)
        self._sharing = sharing
        self._reserved = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds and that are promised to nobody."""
        return self.pool.num_free + self.pool.num_idle - self._reserved

    def look_up(self, namespace: Namespace, tokens: Sequence[int], found: list[Node]) -> int:
        """Bring `found`, what was cached of `tokens` when they were last looked up, up to date.

        Returns how many tokens are not cached; the last never is, so that it is left to compute. Blocks are evicted
        from the end of a prefix, so only the last nodes can have gone.
        """
        while found and found[-1] not in self._tree:
            found.pop()
        most = (len(tokens) - 1) // self.block_size - len(found) if self._sharing else 0
        if most > 0:
            found += islice(self._tree.find(namespace, tokens, found[-1] if found else None, len(found)), most)
        return len(tokens) - len(found) * self.block_size

    def admit(
        self, namespace: Namespace, tokens: Sequence[int], num_blocks: int, found: list[Node] | None = None
    ) -> Lease | None:
        """Lease `num_blocks` in all for a sequence that knows `tokens`, beginning with what is cached of them.

        `found` is what `look_up` says, if it was asked. Blocks that are not cached are promised, and taken by
        `allocate` as they are needed. None if that promise could not be kept now.
        """
        lease = Lease(namespace, tokens, num_blocks)
        found = self._find(lease) if found is None else found
        idle_found = sum(self.pool.refs(node.block) == 0 for node in found)
        if lease.reserved - len(found) > self.num_available - idle_found:
            return None
        self._reserved += lease.reserved
        self._adopt(lease, found)
        return lease

    def match(self, lease: Lease, num_computed: int) -> int:
        """Take what others have filed meanwhile right after `num_computed`; returns how many tokens that spares."""
        if num_computed != lease.num_filed * self.block_size or len(lease.table) != lease.num_filed:
            return 0
        found = self._find(lease)
        self._adopt(lease, found)
        return len(found) * self.block_size

    def next_block(self, lease: Lease) -> Hashable | None:
        """What identifies the block that `lease` has to fill next, wherever others have to fill the same.

        None where no other sequence could use it. Valid until the tree changes.
        """
        return self._place(lease.namespace, lease.tokens, lease.node, lease.num_filed) if not lease.unfiled else None

    def block_after(self, namespace: Namespace, tokens: Sequence[int], found: list[Node]) -> Hashable | None:
        """What `next_block` would say of a sequence that begins with the blocks `found`."""
        return self._place(namespace, tokens, found[-1] if found else None, len(found))

    def promise(self, lease: Lease, num_tokens: int) -> bool:
        """See to it that blocks for `num_tokens` are promised; False if there are too few."""
        missing = self.blocks_for(num_tokens) - len(lease.table) - lease.reserved
        if missing > self.num_available:
            return False
        lease.reserved += max(0, missing)
        self._reserved += max(0, missing)
        return True

    def allocate(self, lease: Lease, num_tokens: int) -> None:
        """Take promised blocks until the table covers `num_tokens`, evicting idle blocks where none is free."""
        while len(lease.table) * self.block_size < num_tokens:
            if not self.pool.num_free:
                self._forget(self.pool.oldest_idle())
            block = self.pool.take()
            self._append(lease, block)

    def commit(self, lease: Lease, num_computed: int) -> None:
        """File the blocks that `num_computed` tokens have filled.

        Where another sequence was first with the same tokens after the same prefix, the table switches to its block
        and the duplicate becomes free: no other table can hold it, since it was never filed.
        """
        size = self.block_size
        while self._sharing and not lease.unfiled and (lease.num_filed + 1) * size <= num_computed:
            first = lease.num_filed * size
            block = lease.table[lease.num_filed]
            tokens = tuple(lease.tokens[first : first + size])
            node = self._tree.insert(lease.namespace, lease.node, tokens, block)
            if node is None:
                lease.unfiled = True
                return
            if node.block != block:
                self._switch(lease, lease.num_filed, node.block)
            lease.node = node
            lease.num_filed += 1

    def release(self, lease: Lease) -> None:
        """Give everything back. Filed blocks become idle, deepest first, so that eviction meets leaves first."""
        for index in range(len(lease.table) - 1, -1, -1):
            self._drop(lease, lease.table[index], cached=index < lease.num_filed)
        self._reserved -= lease.reserved
        lease.reserved = 0
        lease.table.clear()
        self.num_releases += 1

    def probe(self, namespace: Namespace, token_ids: Sequence[int]) -> int:
        """Tokens of this prefix that are in full cached blocks. Takes no lock and moves nothing in LRU order."""
        return self.block_size * sum(1 for _ in self._tree.find(namespace, token_ids, None, 0))

    def blocks_by_namespace(self) -> dict[Namespace, int]:
        """Cached blocks, in use and idle, by namespace; from any thread."""
        return self._tree.num_blocks_by_namespace()

    def flush(self, namespace: Namespace | None = None) -> int:
        """Free all idle blocks, or those of one namespace; returns how many."""
        blocks = [b for b in self.pool.idle_blocks() if namespace in (None, self._tree.node(b).namespace)]
        for block in blocks:
            self._forget(block)
        return len(blocks)

    def check_integrity(self, leases: Iterable[Lease]) -> None:
        """Prove pool, tree and the given leases (all there are) consistent.

        Raises:
            RuntimeError: naming what is wrong.
        """
        self.pool.check()
        self._tree.check()
        check_leases(self.pool, self._tree, list(leases), self._reserved)
        check_idle(self.pool, self._tree)

    def _find(self, lease: Lease) -> list[Node]:
        most = (len(lease.tokens) - 1) // self.block_size - lease.num_filed
        if not self._sharing or lease.unfiled or most <= 0:
            return []
        return list(islice(self._tree.find(lease.namespace, lease.tokens, lease.node, lease.num_filed), most))

    def _place(self, namespace: Namespace, tokens: Sequence[int], node: Node | None, index: int) -> Hashable | None:
        end = (index + 1) * self.block_size
        if not self._sharing or end >= len(tokens):
            return None
        return node or namespace, tuple(tokens[end - self.block_size : end])

    def _adopt(self, lease: Lease, found: list[Node]) -> None:
        for node in found:
            self.pool.share(node.block)
            self._append(lease, node.block)
            lease.node = node
        lease.num_filed += len(found)
        lease.num_shared += len(found)

    def _append(self, lease: Lease, block: int) -> None:
        lease.table.append(block)
        lease.share_s -= self.pool.share_s(block)
        lease.reserved -= 1
        self._reserved -= 1

    def _switch(self, lease: Lease, index: int, block: int) -> None:
        self.pool.share(block)
        lease.share_s -= self.pool.share_s(block)
        self._drop(lease, lease.table[index], cached=False)
        lease.table[index] = block
        lease.num_shared += 1
        self.num_releases += 1

    def _drop(self, lease: Lease, block: int, cached: bool) -> None:
        lease.share_s += self.pool.share_s(block)
        self.pool.release(block, cached)

    def _forget(self, block: int) -> None:
        self._tree.remove(block)
        self.pool.free_idle(block)

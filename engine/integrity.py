"""Proofs that pool, prefix tree and leases agree; tests ask for them after every step."""

from collections.abc import Sequence

from engine.blocks import BlockPool
from engine.lease import Lease
from engine.prefix import PrefixTree


def check_leases(pool: BlockPool, tree: PrefixTree, leases: Sequence[Lease], num_promised: int) -> None:
    """Prove that the tables of `leases`, which are all there are, are what the pool counts, and promises can be kept.

    Raises:
        RuntimeError: naming what is wrong.
    """
    holders = [0] * pool.num_blocks
    for lease in leases:
        lease.check(tree.block_size)
        own = lease.table[lease.num_filed :]
        if any(pool.refs(block) != 1 or tree.has_block(block) for block in own):
            raise RuntimeError(f"blocks {own} may still be written and are shared or filed")
        for block in lease.table:
            holders[block] += 1
    wrong = [block for block, held in enumerate(holders) if held != pool.refs(block)]
    if wrong:
        raise RuntimeError(f"blocks {wrong} are held by {[holders[b] for b in wrong]} tables, counted otherwise")
    available = pool.num_free + pool.num_idle
    if not sum(lease.reserved for lease in leases) == num_promised <= available:
        raise RuntimeError(f"{num_promised} blocks are promised, {available} are available")


def check_idle(pool: BlockPool, tree: PrefixTree) -> None:
    """Prove that leaves are evicted before their parents, and that no free block is still in the tree.

    Raises:
        RuntimeError: naming the block.
    """
    seen: set[int] = set()
    for block in pool.idle_blocks():
        if not seen.issuperset(child.block for child in tree.node(block).children.values()):
            raise RuntimeError(f"idle block {block} would be evicted before its children")
        seen.add(block)
    unheld = (block for block in range(pool.num_blocks) if not pool.refs(block) and block not in seen)
    filed_free = [block for block in unheld if tree.has_block(block)]
    if filed_free:
        raise RuntimeError(f"free blocks {filed_free} are still in the tree")

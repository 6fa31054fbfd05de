"""Pool and prefix tree by themselves."""

import pytest

from engine.blocks import BlockPool
from engine.prefix import PrefixTree


def test_three_states_partition_the_pool() -> None:
    """A block moves free, in use, idle and back, and is counted in exactly one place."""
    pool = BlockPool(3)
    block = pool.take()
    assert (pool.num_free, pool.num_in_use, pool.num_idle) == (2, 1, 0)
    pool.release(block, cached=True)
    assert (pool.num_free, pool.num_in_use, pool.num_idle) == (2, 0, 1)
    pool.share(block)
    pool.share(block)
    pool.release(block, cached=True)
    assert (pool.num_in_use, pool.refs(block)) == (1, 1)
    pool.release(block, cached=False)
    assert pool.num_free == 3
    pool.check()


def test_empty_pool_is_refused() -> None:
    """A pool without blocks, and taking or evicting where there is nothing, are clear errors."""
    with pytest.raises(ValueError, match="at least one block, got 0"):
        BlockPool(0)
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(RuntimeError, match="none of 1 KV blocks is free"):
        pool.take()
    with pytest.raises(RuntimeError, match="idle"):
        pool.oldest_idle()


def test_idle_blocks_are_in_order_of_release() -> None:
    """The block that was given up first is evicted first; one that was used again moves to the end."""
    pool = BlockPool(3)
    first, second, third = (pool.take() for _ in range(3))
    for block in (second, first, third):
        pool.release(block, cached=True)
    pool.share(second)
    pool.release(second, cached=True)
    assert pool.idle_blocks() == [first, third, second]
    assert pool.oldest_idle() == first


def test_a_shared_second_is_split_among_holders() -> None:
    """Time is charged whole to a sole holder and in equal parts to sharers; all charges add up to the time in use."""
    pool = BlockPool(1)
    block = pool.take()
    first = -pool.share_s(block)
    pool.now = 2.0
    pool.share(block)
    second = -pool.share_s(block)
    pool.now = 6.0
    first += pool.share_s(block)
    pool.release(block, cached=True)
    pool.now = 7.0
    second += pool.share_s(block)
    pool.release(block, cached=True)
    assert (first, second) == (4.0, 3.0), "together the seven seconds in which the block was held"
    before = pool.share_s(block)
    pool.now = 100.0
    assert pool.share_s(block) == before, "an idle block is charged to nobody"


def test_tree_finds_full_blocks_after_the_same_prefix_only() -> None:
    """Equal tokens under another parent or namespace are another block."""
    tree = PrefixTree(2)
    a = tree.insert(("t",), None, (1, 2), 0)
    b = tree.insert(("t",), a, (3, 4), 1)
    assert [n.block for n in tree.find(("t",), [1, 2, 3, 4, 5], None, 0)] == [0, 1]
    assert [n.block for n in tree.find(("t",), [1, 2, 3, 4], a, 1)] == [1]
    assert [n.block for n in tree.find(("t",), [3, 4], None, 0)] == []
    assert [n.block for n in tree.find((), [1, 2], None, 0)] == []
    assert tree.insert(("t",), a, (3, 4), 7) is b
    tree.check()


def test_removing_the_last_leaf_removes_the_root() -> None:
    """A namespace leaves nothing behind; an inner node cannot be removed."""
    tree = PrefixTree(2)
    node = tree.insert(("t",), None, (1, 2), 0)
    tree.insert(("t",), node, (3, 4), 1)
    with pytest.raises(RuntimeError, match="no leaf"):
        tree.remove(0)
    tree.remove(1)
    tree.remove(0)
    assert len(tree) == 0
    assert not tree._roots
    tree.check()


def test_a_constant_key_costs_hits_and_nothing_else() -> None:
    """With one key for all blocks the second kind of tokens is not filed, and is never found as the first."""
    tree = PrefixTree(2, key=lambda tokens: 0)
    assert tree.insert((), None, (1, 2), 0) is not None
    assert tree.insert((), None, (3, 4), 1) is None
    assert [n.block for n in tree.find((), [3, 4], None, 0)] == []
    assert [n.block for n in tree.find((), [1, 2], None, 0)] == [0]

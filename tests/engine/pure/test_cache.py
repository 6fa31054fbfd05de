"""Leases over pool and tree: sharing, eviction order, promises."""

import pytest

from engine.cache import KVCache
from engine.lease import Lease


def prefill(cache: KVCache, tokens: list[int], num_blocks: int, namespace: tuple[str, ...] = ()) -> Lease:
    """Admit and compute a whole prompt."""
    lease = cache.admit(namespace, tokens, num_blocks)
    assert lease is not None
    cache.allocate(lease, len(tokens))
    cache.commit(lease, len(tokens))
    return lease


def test_match_leaves_a_token_to_compute() -> None:
    """A prompt of whole blocks that is cached entirely still computes its last block."""
    cache = KVCache(8, 4)
    cache.release(prefill(cache, list(range(8)), 2))
    again = cache.admit((), list(range(8)), 2)
    assert again is not None
    assert again.num_filed == 1
    longer = cache.admit((), list(range(9)), 3)
    assert longer is not None
    assert longer.num_filed == 2


def test_second_writer_switches_to_the_first_block() -> None:
    """Two sequences that compute the same block end up with one; the duplicate is free and in no table."""
    cache = KVCache(8, 4)
    first, second = cache.admit((), [1, 2, 3, 4, 5], 2), cache.admit((), [1, 2, 3, 4, 6], 2)
    assert first is not None
    assert second is not None
    for lease in (first, second):
        cache.allocate(lease, 5)
    duplicate = second.table[0]
    for lease in (first, second):
        cache.commit(lease, 5)
    assert first.table[0] == second.table[0] != duplicate
    assert duplicate not in first.table + second.table
    assert cache.pool.refs(duplicate) == 0
    assert second.num_shared == 1
    cache.check_integrity([first, second])


def test_eviction_is_exact_lru_with_leaves_before_parents() -> None:
    """Blocks are evicted in the order in which their prefixes were last used, deepest first."""
    cache = KVCache(6, 2)
    a = prefill(cache, [1, 2, 3, 4, 5, 6], 3)
    b = prefill(cache, [7, 8, 9, 10], 2)
    order_a, order_b = list(a.table), list(b.table)
    cache.release(a)
    cache.release(b)
    again = cache.admit((), [1, 2, 3, 4, 0], 3)  # uses a's first two blocks again
    assert again is not None
    cache.release(again)
    assert cache.pool.idle_blocks() == [order_a[2], order_b[1], order_b[0], order_a[1], order_a[0]]
    taken = prefill(cache, [20, 21, 22, 23, 24, 25], 3)
    assert set(taken.table) >= {order_a[2], order_b[1]}
    assert cache.probe((), [1, 2, 3, 4, 5, 6]) == 4
    assert cache.probe((), [7, 8, 9, 10]) == 2
    cache.check_integrity([taken])


def test_a_taken_block_loses_its_old_entry() -> None:
    """Once a block is reused, its old prefix is not found any more."""
    cache = KVCache(1, 2)
    cache.release(prefill(cache, [1, 2], 1))
    assert cache.probe((), [1, 2]) == 2
    lease = prefill(cache, [3, 4], 1)
    assert cache.probe((), [1, 2]) == 0
    assert cache.probe((), [3, 4]) == 2
    cache.check_integrity([lease])


def test_promised_blocks_are_not_given_to_others() -> None:
    """Blocks that a lease was promised and has not taken yet count as gone; found idle ones do too."""
    cache = KVCache(4, 2)
    first = cache.admit((), [1, 2], 3)
    assert first is not None
    assert cache.admit((), [3, 4], 2) is None
    second = cache.admit((), [3, 4], 1)
    assert second is not None
    cache.check_integrity([first, second])
    cache.release(second)
    cache.release(first)
    cache.release(prefill(cache, [1, 2, 3, 4], 2))
    held = cache.admit(("other",), [9], 2)
    assert held is not None
    found = cache.admit((), [1, 2, 3, 4, 5], 3)
    assert found is None, "two cached blocks, one more to take, and only the two cached ones are left"


def test_flush_drops_idle_blocks_of_one_namespace() -> None:
    """A flush spares other namespaces and whatever is in use."""
    cache = KVCache(8, 2)
    cache.release(prefill(cache, [1, 2, 3, 4], 2, ("a",)))
    cache.release(prefill(cache, [1, 2], 1, ("b",)))
    held = prefill(cache, [1, 2, 9], 2, ("a",))
    assert cache.flush(("a",)) == 1
    assert cache.probe(("a",), [1, 2, 3, 4]) == 2
    assert cache.probe(("b",), [1, 2]) == 2
    assert cache.flush() == 1
    assert cache.pool.num_idle == 0
    cache.check_integrity([held])


def test_without_sharing_nothing_is_filed() -> None:
    """`sharing` off finds nothing and leaves every block free."""
    cache = KVCache(4, 2, sharing=False)
    lease = prefill(cache, [1, 2, 3], 2)
    assert cache.probe((), [1, 2, 3]) == 0
    cache.release(lease)
    assert cache.pool.num_free == 4


def test_probe_counts_without_touching_lru_order() -> None:
    """Probing a prefix does not save it from eviction."""
    cache = KVCache(4, 2)
    cache.release(prefill(cache, [1, 2], 1))
    cache.release(prefill(cache, [3, 4], 1))
    before = cache.pool.idle_blocks()
    assert cache.probe((), [1, 2, 3]) == 2
    assert cache.pool.idle_blocks() == before


@pytest.mark.parametrize("fault", ["refs", "writable", "promise", "entry"])
def test_integrity_check_notices(fault: str) -> None:
    """A wrong count, a filed block that may be written, a lost promise and a stale entry are each found."""
    cache = KVCache(4, 2)
    lease = prefill(cache, [1, 2, 3], 2)
    if fault == "refs":
        cache.pool._refs[lease.table[0]] += 1
    elif fault == "writable":
        lease.num_filed = 0
    elif fault == "promise":
        cache._reserved += 1
    else:
        cache.release(lease)
        block = cache.pool.oldest_idle()
        cache.pool.free_idle(block)
        with pytest.raises(RuntimeError):
            cache.check_integrity([])
        return
    with pytest.raises(RuntimeError):
        cache.check_integrity([lease])

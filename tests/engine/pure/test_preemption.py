"""Over-commit: more is promised than there is, and the last arrived gives way when it shows."""

import random
from typing import Any

import pytest


def small(bench: Any, **options: Any) -> Any:
    """Eight blocks of four, over-committed."""
    return bench(**{"num_blocks": 8, "block_size": 4, "overcommit": 4.0, "step_s": 1.0, **options})


def test_the_last_arrived_gives_way_and_is_computed_again(bench: Any) -> None:
    """Both run at once, the second is preempted when blocks run out, and both answers are what they must be."""
    b = small(bench)
    b.add("first", bytes(range(8)), 16)
    b.add("second", bytes(range(50, 58)), 16)
    b.step()
    assert b.core.stats().num_running == 2
    b.finish_all()
    assert [b.tokens(name) for name in b.requests] == [b.solo(name) for name in b.requests]
    first, second = b.finish("first").usage, b.finish("second").usage
    assert (first.preemptions, first.recomputed_tokens) == (0, 0)
    assert second.preemptions == 1
    assert second.recomputed_tokens > 0
    assert (second.cached_tokens, second.computed_tokens, second.output_tokens) == (0, 8, 16)
    stats = b.core.stats()
    assert (stats.preemptions_total, stats.recomputed_tokens_total) == (1, second.recomputed_tokens)


def test_without_overcommit_nobody_is_preempted(bench: Any) -> None:
    """At 1.0 the same two run one after the other."""
    b = small(bench, overcommit=1.0)
    b.add("first", bytes(range(8)), 16)
    b.add("second", bytes(range(50, 58)), 16)
    b.step()
    assert b.core.stats().num_running == 1
    b.finish_all()
    assert b.core.stats().preemptions_total == 0


def test_low_priority_gives_way_before_late_arrival(bench: Any) -> None:
    """The lowest priority goes first, though it came first."""
    b = small(bench)
    b.add("low", bytes(range(8)), 16, priority=-1)
    b.add("high", bytes(range(50, 58)), 16)
    b.finish_all()
    assert (b.finish("low").usage.preemptions, b.finish("high").usage.preemptions) == (1, 0)


def test_a_preempted_request_goes_to_the_head(bench: Any) -> None:
    """Nobody who came later, or waits with a higher priority, begins before it runs again."""
    b = small(bench, num_blocks=9)
    b.add("first", bytes(range(8)), 16)
    b.add("second", bytes(range(50, 58)), 16)
    while not b.core.stats().preemptions_total:
        b.step()
    for n in range(4):
        b.add(f"urgent{n}", bytes([200 + n] * 12), 8, priority=3)
    b.finish_all()
    order = [seq for batch in b.batches[-60:] for seq, _ in batch]
    resumed = max(index for index, seq in enumerate(order) if seq == 2)
    assert b.finish("second").usage.preemptions == 1
    assert all(b.times[f"urgent{n}"][0] >= min(b.times["second"][8:]) for n in range(4)), resumed
    assert all(b.tokens(name) == b.solo(name) for name in b.requests)


def test_what_stays_cached_is_not_computed_again(bench: Any) -> None:
    """A preempted sequence finds its own blocks again where nobody needed them."""
    b = small(bench, num_blocks=12, max_running=2)
    b.add("first", bytes(range(8)), 24)
    b.add("second", bytes(range(50, 58)), 24)
    b.finish_all()
    usage = b.finish("second").usage
    assert usage.preemptions == 1
    assert 0 < usage.recomputed_tokens < 20
    assert b.tokens("second") == b.solo("second")


def test_preempted_in_its_prefill(bench: Any) -> None:
    """A sequence that gives way between two chunks counts each prompt token once, and the rest as computed again."""
    b = small(bench, num_blocks=10, step_tokens=5, overcommit=8.0)
    b.add("first", bytes(range(4)), 30)
    b.step(14)
    b.add("second", bytes(range(50, 70)), 4)
    b.finish_all()
    usage = b.finish("second").usage
    assert usage.preemptions >= 1
    assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens == 20
    assert all(b.tokens(name) == b.solo(name) for name in b.requests)


def test_waiting_again_does_not_pass_the_queue_deadline(bench: Any) -> None:
    """A request that ran has met its queue deadline; preemption does not bring it back, the total one stands."""
    b = small(bench)
    b.add("first", bytes(range(8)), 16)
    b.add("second", bytes(range(50, 58)), 16, queue=2.0, total=20.5)
    b.finish_all()
    assert b.finish("second").usage.preemptions == 1
    assert (b.finish("second").reason, b.finish("second").phase) == ("timeout", "total")
    assert b.tokens("second") == b.solo("second")[: len(b.tokens("second"))]


def test_a_preempted_request_can_be_cancelled(bench: Any) -> None:
    """Where it waits again it holds nothing, and ends like any other."""
    b = small(bench)
    b.add("first", bytes(range(8)), 16)
    b.add("second", bytes(range(50, 58)), 16)
    while not b.core.stats().preemptions_total:
        b.step()
    b.cancel("second")
    usage = b.finish("second").usage
    assert usage.kv_blocks_peak == 4
    assert usage.kv_byte_seconds > 0
    b.finish_all()
    assert b.core.stats().blocks_in_use == 0


@pytest.mark.parametrize("overcommit", [0.9, float("nan")])
def test_less_than_one_is_refused(bench: Any, overcommit: float) -> None:
    """A ratio below 1 would promise more than a request can need."""
    with pytest.raises(ValueError, match=r"engine\.overcommit is"):
        bench(overcommit=overcommit)


@pytest.mark.parametrize("seed", range(4))
def test_any_overcommit_serves_everyone(bench: Any, seed: int) -> None:
    """Small pools, large promises: everybody ends with the answer of an engine of its own."""
    rng = random.Random(seed)
    b = small(bench, num_blocks=rng.randrange(8, 20), overcommit=rng.choice([1.5, 3.0, 20.0]), max_running=6)
    for n in range(30):
        b.add(f"r{n}", rng.randbytes(rng.randrange(1, 15)), rng.randrange(1, 16), priority=rng.randrange(2))
        b.step(rng.randrange(3))
    b.finish_all()
    assert b.core.stats().preemptions_total > 0
    assert all(b.tokens(name) == b.solo(name) for name in b.requests)
    for name in b.requests:
        usage = b.finish(name).usage
        assert usage.cached_tokens + usage.computed_tokens == usage.prompt_tokens


def test_a_newcomer_does_not_take_the_block_of_a_decode(bench: Any) -> None:
    """What a decode needs in a step is promised before anyone else begins in it."""
    b = small(bench, num_blocks=6, overcommit=16.0, max_running=2, step_tokens=1, prefix_sharing=False)
    for n in range(3):
        b.add(f"r{n}", bytes(range(200, 204)), 21)
    b.finish_all()
    assert all(b.tokens(name) == b.solo(name) for name in b.requests)

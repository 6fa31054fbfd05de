"""What a step computes, and who may begin."""

from typing import Any

import pytest


def test_decodes_come_first_then_prefill_in_chunks(bench: Any) -> None:
    """A long prompt is computed in chunks within the budget while others go on decoding."""
    b = bench(step_tokens=9, block_size=4)
    b.add("a", b"abc", 12)
    b.step()
    b.add("long", bytes(range(30)), 2)
    b.finish_all()
    assert b.batches[:6] == [[(1, 3)], *[[(1, 1), (2, 8)]] * 3, [(1, 1), (2, 6)], [(1, 1), (2, 1)]]
    assert b.finish("long").usage.prefill_chunks == 4
    assert b.tokens("long") == b.solo("long")


def test_no_step_exceeds_its_budget(bench: Any) -> None:
    """Decodes and chunks together never exceed step_tokens, whatever waits."""
    b = bench(step_tokens=7, num_blocks=64)
    for n in range(20):
        b.add(f"r{n}", bytes(range(n, n + 11)), 5)
    b.finish_all()
    assert max(sum(tokens for _, tokens in batch) for batch in b.batches) <= 7
    assert all(b.tokens(f"r{n}") == b.solo(f"r{n}") for n in range(20))


def test_one_request_may_take_the_whole_pool(bench: Any) -> None:
    """A request that needs every block runs, alone, even when all of them hold cached content."""
    b = bench(num_blocks=4, block_size=4)
    b.add("warm", bytes(range(14)), 3)
    b.finish_all()
    b.add("all", bytes(range(50, 60)), 7)
    b.finish_all()
    assert b.finish("all").reason == "length"
    assert b.finish("all").usage.kv_blocks_peak == 4


def test_prompt_and_output_are_promised_at_admission(bench: Any) -> None:
    """Two requests whose prompts fit together but whose outputs do not run one after the other, unpreempted."""
    b = bench(num_blocks=6, block_size=4)
    b.add("a", bytes(range(8)), 9)
    b.add("b", bytes(range(50, 58)), 9)
    b.step()
    assert b.core.stats().num_running == 1
    assert b.core.stats().num_waiting == 1
    b.finish_all()
    assert [b.tokens(r) for r in "ab"] == [b.solo(r) for r in "ab"]
    assert b.finish("b").usage.preemptions == 0


def test_small_requests_overtake_a_large_one_for_a_while(bench: Any) -> None:
    """While a request waits for blocks, others get at most as many as it needs itself; then it is next."""
    b = bench(num_blocks=16, block_size=4, step_s=1.0)
    b.add("running", bytes(range(4)), 40)
    b.step()
    b.add("large", bytes(range(60, 100)), 8)
    b.step()
    for n in range(40):
        b.now += 60.0
        b.add(f"small{n}", [n], 7)
        b.step(2)
    b.finish_all()
    before = [n for n in range(40) if b.times[f"small{n}"][0] < b.times["large"][0]]
    assert len(before) == 6, "two blocks each, twelve for the large one"


def test_the_next_that_does_not_fit_gets_its_turn(bench: Any) -> None:
    """After one large request had its turn, the next is waited for in the same way, and a cancelled one is not."""
    b = bench(num_blocks=8, block_size=4, step_s=1.0)
    b.add("running", bytes(range(4)), 13)
    b.step()
    for n in range(3):
        b.add(f"large{n}", bytes([60 + n] * 20), 9)
    b.step(2)
    b.cancel("large0")
    for n in range(30):
        b.now += 60.0
        b.add(f"small{n}", [n], 5)
        b.step()
    b.finish_all()
    first, second = b.times["large1"][0], b.times["large2"][0]
    assert 0 < sum(b.times[f"small{n}"][0] < first for n in range(30)) <= 4
    assert sum(first < b.times[f"small{n}"][0] < second for n in range(30)) <= 4


def test_max_running_bounds_the_batch(bench: Any) -> None:
    """No more than max_running sequences hold blocks at once."""
    b = bench(max_running=3)
    for n in range(8):
        b.add(f"r{n}", [n], 3)
    b.finish_all()
    assert max(len(batch) for batch in b.batches) == 3


def test_priority_then_arrival(bench: Any) -> None:
    """Higher priority goes first; equals go in order of arrival."""
    b = bench(max_running=1)
    for name, priority in [("first", 0), ("low", 0), ("high", 1), ("low2", 0), ("high2", 1)]:
        b.add(name, [len(name)], 1, priority=priority)
    b.finish_all()
    assert [batch[0][0] for batch in b.batches] == [3, 5, 1, 2, 4]


def test_ageing_lets_low_priority_through(bench: Any) -> None:
    """An unending stream of urgent requests cannot keep an old one waiting for ever."""
    b = bench(max_running=1, step_s=1.0)
    b.add("patient", [1], 1, priority=0)
    b.add("running", [2], 1, priority=9)
    for n in range(60):
        b.add(f"urgent{n}", [3], 1, priority=2)
        b.step()
        if b.events["patient"]:
            break
    assert b.finish("patient").reason == "length"
    assert b.now <= 30


def test_queue_bounds_refuse_with_a_retry_time(bench: Any) -> None:
    """A full queue, in requests or in tokens, is `rejected`, with numbers and a time that follows from the load."""
    b = bench(max_running=1, max_queue_requests=2, max_queue_tokens=100, step_s=0.5)
    b.add("running", bytes(20), 4)
    b.step()
    b.add("w1", bytes(60), 4)
    b.add("too_many_tokens", bytes(50), 4)
    b.add("w2", bytes(40), 4)
    b.add("too_many", [1], 4)
    for name, number in [("too_many_tokens", "60 of 100"), ("too_many", "2 of 2 requests")]:
        finish = b.finish(name)
        assert (finish.reason, finish.retryable) == ("rejected", True)
        assert number in finish.message
        assert finish.retry_after_s == 1.0, "nothing is known of step times yet"
    b.finish_all()
    assert b.core.stats().waiting_tokens == 0
    assert b.core.stats().aborts_total == {"rejected_full": 2}


def test_one_prompt_larger_than_the_queue_bound_may_wait_alone(bench: Any) -> None:
    """The token bound never makes a request impossible that the pool could run."""
    b = bench(max_queue_tokens=10)
    b.add("big", bytes(40), 2)
    b.finish_all()
    assert b.finish("big").reason == "length"


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"prompt": b""}, ["empty"]),
        ({"prompt": [1], "max_tokens": 0}, ["max_tokens is 0"]),
        ({"prompt": [4096]}, ["4096", "vocabulary"]),
        ({"prompt": [-1]}, ["-1"]),
        ({"prompt": [1], "stop": ("",)}, ["stop string"]),
        ({"prompt": bytes(190), "max_tokens": 11}, ["190", "11", "201", "context of 200"]),
        ({"prompt": bytes(100), "max_tokens": 30}, ["100", "30", "33 KV blocks", "pool has 32"]),
        ({"prompt": [None]}, ["not a valid request"]),
        ({"prompt": [1], "priority": None}, ["not a valid request"]),
    ],
)
def test_what_can_never_run_is_refused_at_once(bench: Any, fields: dict[str, Any], parts: list[str]) -> None:
    """Such a request is `rejected` before any step, with the numbers, and without a retry time."""
    b = bench(max_context_tokens=200)
    b.add("bad", fields.pop("prompt"), **fields)
    finish = b.finish("bad")
    assert (finish.reason, finish.retry_after_s, finish.retryable) == ("rejected", None, False)
    assert all(part in finish.message for part in parts), finish.message
    assert len(b.core) == 0


def test_bounds_below_one_are_refused(bench: Any) -> None:
    """A configuration under which nothing could ever run is an error at start."""
    with pytest.raises(ValueError, match=r"engine\.step_tokens is 0"):
        bench(step_tokens=0)


def test_a_prefix_filed_meanwhile_is_taken_between_chunks(bench: Any) -> None:
    """A prompt that waits for another's blocks is computed from where they part, and nothing twice."""
    b = bench(step_tokens=16, block_size=4)
    prompt = bytes(range(10))
    b.add("a", prompt, 3)
    b.add("b", prompt, 3)
    b.finish_all()
    assert b.batches[:2] == [[(1, 10)], [(1, 1), (2, 2)]]
    usage = b.finish("b").usage
    assert (usage.cached_tokens, usage.computed_tokens, usage.kv_blocks_shared) == (8, 2, 3), "one of them of output"
    assert b.tokens("a") == b.tokens("b") == b.solo("b")


@pytest.mark.parametrize("step_tokens", [5, 16, 64])
def test_the_same_new_prompt_many_times_is_computed_once(bench: Any, step_tokens: int) -> None:
    """Of eight prompts that begin alike, the common part is computed once, whatever the chunks."""
    b = bench(step_tokens=step_tokens, block_size=4, num_blocks=128)
    for n in range(8):
        b.add(f"r{n}", [*range(40), 50 + n, 60], 2)
    b.finish_all()
    assert sum(b.finish(f"r{n}").usage.computed_tokens for n in range(8)) == 40 + 8 * 2
    assert all(b.tokens(name) == b.solo(name) for name in b.requests)


@pytest.mark.parametrize("end", ["cancel", "fail", "timeout"])
def test_who_waits_for_blocks_does_not_wait_for_their_owner(bench: Any, end: str) -> None:
    """When the one that computes the common part ends early, the next computes it."""
    b = bench(step_tokens=8, block_size=4, step_s=1.0, raise_at_step=3 if end == "fail" else None)
    b.add("a", bytes(range(30)), 2, total=2.5 if end == "timeout" else None)
    b.add("b", bytes(range(30)), 2)
    b.step(2)
    if end == "cancel":
        b.cancel("a")
    b.finish_all()
    assert b.finish("b").reason == "length"
    assert b.tokens("b") == b.solo("b")
    assert b.finish("b").usage.cached_tokens >= 16


def test_another_prompt_goes_on_while_one_waits_for_blocks(bench: Any) -> None:
    """The budget that a waiting prompt leaves goes to the next."""
    b = bench(step_tokens=32, block_size=4, num_blocks=64)
    b.add("a", bytes(range(20)), 2)
    b.add("same", bytes(range(20)), 2)
    b.add("other", bytes(range(100, 110)), 2)
    b.step()
    assert b.batches == [[(3, 10), (1, 20)]]
    b.finish_all()


def test_nobody_waits_for_blocks_that_are_not_shared(bench: Any) -> None:
    """Other namespaces, and sharing turned off, compute side by side."""
    for options, spaces in [({}, [("a",), ("b",)]), ({"prefix_sharing": False}, [(), ()])]:
        b = bench(step_tokens=64, block_size=4, **options)
        for n, namespace in enumerate(spaces):
            b.add(f"r{n}", bytes(range(20)), 2, namespace=namespace)
        b.step()
        assert sorted(b.batches[0]) == [(1, 20), (2, 20)]
        b.finish_all()

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


def test_nobody_overtakes_a_head_that_does_not_fit(bench: Any) -> None:
    """A large request at the head is not starved by small ones behind it that would fit."""
    b = bench(num_blocks=8, block_size=4)
    b.add("running", bytes(range(4)), 12)
    b.step()
    b.add("large", bytes(range(60, 80)), 8)
    for n in range(5):
        b.add(f"small{n}", [n], 2)
    b.finish_all()
    first_steps = {seq: index for index, batch in reversed([*enumerate(b.batches)]) for seq, _ in batch}
    assert first_steps[2] <= min(first_steps[n] for n in (3, 4, 5, 6, 7))


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
        assert 1.0 <= finish.retry_after_s <= 60.0
    assert b.finish("too_many").retry_after_s == pytest.approx((100 + 8) / 40)  # 20 tokens took half a second
    b.finish_all()
    assert b.core.stats().waiting_tokens == 0


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
    """A sequence in prefill takes over the blocks that another one filed after its admission."""
    b = bench(step_tokens=16, block_size=4)
    prompt = bytes(range(10))
    b.add("a", prompt, 3)
    b.add("b", prompt, 3)
    b.finish_all()
    assert b.batches[:2] == [[(1, 10), (2, 4)], [(1, 1), (2, 2)]]
    usage = b.finish("b").usage
    assert (usage.cached_tokens, usage.computed_tokens, usage.kv_blocks_shared) == (4, 6, 3), (
        "one, one at its end, one of output"
    )
    assert b.tokens("a") == b.tokens("b") == b.solo("b")

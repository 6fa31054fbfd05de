"""Finishes, deadlines, cancels, failures and the usage of one request."""

from typing import Any

import pytest

from engine.core import MAX_FAILURES_IN_A_ROW
from engine.errors import EngineError


def test_length_eos_and_stop_tokens(bench: Any) -> None:
    """max_tokens ends with `length`; the end token and stop ids end with `stop`, count as output and have no text."""
    b = bench(scripts=[b"abcdef", b"ab", b"abcdef", b"ab"])
    b.add("length", [1], 3)
    b.add("eos", [2], 9)
    b.add("stop_id", [3], 9, stop_token_ids=(ord("c"),))
    b.add("ignored", [4], 5, ignore_eos=True)
    b.finish_all()
    found = {n: (b.finish(n).reason, b.text(n), b.finish(n).usage.output_tokens) for n in b.requests}
    assert found == {
        "length": ("length", "abc", 3), "eos": ("stop", "ab", 3), "stop_id": ("stop", "ab", 3),
        "ignored": ("length", "ab", 5),
    }  # fmt: skip
    assert all(len(b.tokens(n)) == b.finish(n).usage.output_tokens for n in b.requests)


def test_stop_string_ends_and_is_not_sent(bench: Any) -> None:
    """A stop string over several tokens ends the text before it; a beginning of it is sent when the end comes first."""
    b = bench(scripts=[b"one</s>two", b"one</s"])
    b.add("a", [1], 20, stop=("</s>",))
    b.add("b", [2], 6, stop=("</s>",))
    b.finish_all()
    assert (b.text("a"), b.finish("a").reason, b.finish("a").usage.output_tokens) == ("one", "stop", 7)
    assert (b.text("b"), b.finish("b").reason) == ("one</s", "length")


def test_held_text_comes_out_when_a_request_is_cut_short(bench: Any) -> None:
    """A timeout after `one<` still delivers the `<`."""
    b = bench(scripts=[b"one</s>"], step_s=1.0)
    b.add("a", [1], 20, stop=("</s>",), total=3.5)
    b.finish_all()
    assert (b.text("a"), b.finish("a").reason) == ("one<", "timeout")


def test_usage_adds_up(bench: Any) -> None:
    """Times follow the phases, tokens add up, KV is charged over time."""
    b = bench(step_s=1.0, step_tokens=8, block_size=4, max_running=1)
    b.add("first", bytes(range(8)), 1)
    b.add("a", bytes(range(100, 120)), 4)
    b.finish_all()
    usage = b.finish("a").usage
    assert (usage.queue_ms, usage.prefill_ms, usage.ttft_ms, usage.decode_ms) == (1000, 3000, 4000, 3000)
    assert (usage.inter_token_p50_ms, usage.inter_token_p95_ms) == (1000, 1000)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.computed_tokens, usage.output_tokens) == (20, 0, 20, 4)
    assert (usage.prefill_chunks, usage.batch_size_mean, usage.preemptions) == (3, 1.0, 0)
    assert (usage.kv_blocks_peak, usage.kv_blocks_shared, usage.kv_bytes_peak) == (6, 0, 6 * 4 * 8)
    block_s = 2 * 6 + 2 * 5 + 4 + 3  # blocks taken 1, 2, 3 and 4 s into the run, held until its end at 6 s
    assert usage.kv_byte_seconds == block_s * 4 * 8
    assert usage.kv_pool_used_ratio == 6 / 32


def test_inter_token_quantiles_are_nearest_rank(bench: Any) -> None:
    """Of twenty gaps, 1 ms to 20 ms, p50 is the tenth and p95 the nineteenth; one token alone has no gap."""
    b = bench()

    def tick(batch: Any) -> None:
        b.now += batch[0].output_index / 1000

    b.before_run = tick
    b.add("a", [1], 21)
    b.add("one", [2], 1)
    b.finish_all()
    usage = b.finish("a").usage
    assert (usage.inter_token_p50_ms, usage.inter_token_p95_ms) == (pytest.approx(10), pytest.approx(19))
    assert b.finish("one").usage.inter_token_p50_ms is None


def test_shared_blocks_are_charged_by_sharers(bench: Any) -> None:
    """Two that share a prompt's blocks pay half of them each, and count them as shared."""
    b = bench(step_s=1.0, block_size=4)
    prompt = bytes(range(17))
    b.add("warm", prompt, 1)
    b.finish_all()
    b.add("a", prompt, 2)
    b.add("b", prompt, 2)
    b.finish_all()
    for name in "ab":
        usage = b.finish(name).usage
        assert (usage.cached_tokens, usage.computed_tokens) == (16, 1)
        assert (usage.kv_blocks_peak, usage.kv_blocks_shared) == (5, 4)
        assert usage.kv_byte_seconds == (4 / 2 + 1) * 2 * 4 * 8


@pytest.mark.parametrize(
    ("limits", "phase", "queue_ms"),
    [
        ({"queue": 2.5}, "queue", 3000),
        ({"first_token": 3.0, "total": 9.0}, "first_token", 3000),
        ({"total": 2.0, "queue": 2.5}, "total", 2000),
    ],
)
def test_deadlines_end_waiting_work_before_its_prefill(bench: Any, limits: Any, phase: str, queue_ms: float) -> None:
    """A queued request ends in the phase whose instant passed first, and nothing of it is ever computed."""
    b = bench(max_running=1, step_s=1.0)
    b.add("running", [1], 6)
    b.add("late", [2], 2, **limits)
    b.finish_all()
    finish = b.finish("late")
    assert (finish.reason, finish.phase, finish.usage.queue_ms) == ("timeout", phase, queue_ms)
    assert finish.usage.computed_tokens == 0
    assert all(seq != 2 for batch in b.batches for seq, _ in batch)


def test_deadlines_by_phase_while_running(bench: Any) -> None:
    """The first-token deadline ends a prefill, the total one a decode; what has passed in time no longer counts."""
    b = bench(step_s=1.0, step_tokens=12, block_size=4, num_blocks=64)
    b.add("prefill", bytes(range(40)), 2, first_token=2.5)
    b.finish_all()
    assert (b.finish("prefill").phase, b.finish("prefill").usage.prefill_chunks) == ("first_token", 3)
    b.add("decode", [1], 9, queue=b.now + 0.5, first_token=b.now + 1.5, total=b.now + 4.5)
    b.finish_all()
    assert (b.finish("decode").phase, len(b.tokens("decode"))) == ("total", 5)
    assert b.core.stats().blocks_in_use == 0
    assert b.core.stats().cancel_to_free_steps == {1: 2}


def test_cancel_frees_blocks_wherever_the_request_is(bench: Any) -> None:
    """Queued, between chunks, mid-decode: blocks are free at once, and the histogram says within how many steps."""
    b = bench(step_tokens=4, block_size=4, max_running=2)
    b.add("decode", b"a", 9)
    b.step(2)
    b.add("chunks", bytes(range(20)), 2)
    b.step(2)
    b.add("queued", [3], 2)
    for name in ("queued", "chunks", "decode"):
        b.cancel(name, asked_at_step=b.core.counters.num_steps)
        assert b.finish(name).reason == "cancelled"
    b.cancel("decode")
    stats = b.core.stats()
    assert (stats.blocks_in_use, stats.num_running, stats.num_waiting, stats.waiting_tokens) == (0, 0, 0, 0)
    assert stats.cancel_to_free_steps == {0: 3}
    assert 0 < b.finish("chunks").usage.computed_tokens < 20


def test_a_failed_step_fails_its_batch_only(bench: Any) -> None:
    """Requests of the failed step end with `failed` and its message; the queue and later requests go on."""
    b = bench(max_running=2, raise_at_step=2)
    for name in ("a", "b", "waiting"):
        b.add(name, name.encode(), 3)
    b.finish_all()
    for name in "ab":
        finish = b.finish(name)
        assert (finish.reason, finish.retryable) == ("failed", True)
        assert "RuntimeError" in finish.message
        assert "step 2" in finish.message
    assert b.tokens("waiting") == b.solo("waiting")
    assert b.core.broken is None


def test_a_block_of_a_failed_step_is_not_reused_as_content(bench: Any) -> None:
    """What a failed step may have half written is never found by a later prompt."""
    b = bench(block_size=4, raise_at_step=1)
    b.add("a", bytes(range(12)), 2)
    b.step()
    assert b.core.probe((), list(range(12))) == 0
    b.add("again", bytes(range(12)), 2)
    b.finish_all()
    assert b.tokens("again") == b.solo("again")


def test_failures_in_a_row_stop_the_engine(bench: Any) -> None:
    """A runner that always fails does not spin: each request fails once, and then the engine says it is broken."""
    b = bench(raise_at_token=1, max_running=1)
    for n in range(MAX_FAILURES_IN_A_ROW):
        b.add(f"r{n}", [n], 3)
    b.finish_all()
    assert len(b.batches) == MAX_FAILURES_IN_A_ROW
    assert {b.finish(f"r{n}").reason for n in range(MAX_FAILURES_IN_A_ROW)} == {"failed"}
    assert not b.core.stats().healthy
    assert "5 steps in a row failed" in b.core.stats().detail


def test_success_forgives_earlier_failures(bench: Any) -> None:
    """Only failures in a row count."""
    b = bench(raise_at_token=4, max_running=1)
    for n in range(2 * MAX_FAILURES_IN_A_ROW):
        b.add(f"r{n}", [n], 6)
    b.finish_all()
    assert b.core.broken is None


def test_a_runner_that_draws_nonsense_fails_its_batch(bench: Any) -> None:
    """Too few answers, or none where one was asked for, is a failed step."""
    b = bench()
    b.runner.run = lambda batch: []
    b.add("a", [1], 2)
    b.finish_all()
    assert "drew [] for a batch of 1" in b.finish("a").message


def test_a_token_without_bytes_fails_its_request_only(bench: Any) -> None:
    """An id that cannot be detokenised ends that request, not the engine."""
    b = bench(scripts=[[1], ["bad"]])
    b.add("good", [1], 1)
    b.add("bad", [2], 3)
    b.finish_all()
    assert (b.finish("good").reason, b.finish("bad").reason) == ("length", "failed")


def test_live_ids_are_unique(bench: Any) -> None:
    """The same id again is an error while the first is live, and fine afterwards."""
    b = bench()
    b.add("a", [1], 2)
    with pytest.raises(EngineError, match="'a' is still live"):
        b.core.add(b.requests["a"], 0.0)
    b.finish_all()
    b.add("a", [1], 2)
    b.finish_all()
    assert b.finish("a").reason == "length"


def test_end_all_leaves_nothing(bench: Any) -> None:
    """Closing ends waiting and running requests alike."""
    b = bench(max_running=1)
    b.add("a", bytes(9), 5)
    b.add("b", bytes(9), 5)
    b.step(2)
    b._take(b.core.end_all("cancelled"))
    assert {b.finish(n).reason for n in "ab"} == {"cancelled"}
    assert b.core.stats().blocks_in_use == 0


def test_stats_count(bench: Any) -> None:
    """Counters add up over requests; gauges return to zero."""
    b = bench(block_size=4)
    for n in range(3):
        b.add(f"r{n}", bytes(range(9)), 2)
        b.finish_all()
    stats = b.core.stats()
    assert (stats.prompt_tokens_total, stats.cached_tokens_total, stats.output_tokens_total) == (27, 16, 6)
    assert stats.finished_total == {"length": 3}
    assert (stats.steps_total, stats.num_running, stats.num_waiting) == (6, 0, 0)
    assert stats.blocks_free + stats.blocks_idle + stats.blocks_in_use == stats.blocks_total


def test_penalties_see_the_history_and_others_do_not(bench: Any) -> None:
    """`history` is handed over only where a penalty needs it."""
    b = bench()
    seen = {}
    b.before_run = lambda batch: seen.update({work.seq_id: list(work.history) for work in batch})
    b.add("plain", [1, 2], 2)
    b.add("penalised", [3, 4], 2, sampling=type(b.requests["plain"].sampling)(repetition_penalty=1.2))
    b.finish_all()
    assert seen == {1: [], 2: [3, 4, b.tokens("penalised")[0]]}

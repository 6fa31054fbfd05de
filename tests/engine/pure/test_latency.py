"""What others feel of a prefill: inter-token latency, short prompts behind long ones, and who must not starve."""

from collections.abc import Callable
from statistics import mean, median
from typing import Any

import pytest


def streams(s: Any, num_streams: int, **fields: Any) -> list[str]:
    """Long answers that decode from now on."""
    names = [f"stream{n}" for n in range(num_streams)]
    for name in names:
        s.add(name, s.random_prompt(300), 2000, **fields)
    s.play(until=s.now + 1.0)
    return names


def gaps(s: Any, names: list[str], after: float) -> list[float]:
    """All inter-token times of these requests since `after`."""
    return [gap for name in names for gap in s.gaps(name, after)]


def test_a_prefill_every_second_beside_eight_streams(simulation: Any, p95: Callable[..., float]) -> None:
    """A 2,000-token prompt arrives every second: ITL p95 stays under 2.5 times the undisturbed step."""
    s = simulation()
    s.warm()
    names = streams(s, 8)
    quiet = s.now
    s.play(until=quiet + 2.0)
    undisturbed, began = median(gaps(s, names, quiet)), s.now
    for n in range(10):
        s.at(began + n, f"long{n}", s.random_prompt(2000), 1)
    s.play(until=began + 10.0)
    disturbed = gaps(s, names, began)
    assert 1.2 * undisturbed < p95(disturbed) < 2.5 * undisturbed
    assert max(disturbed) < 3 * undisturbed
    assert max(s.ttft(f"long{n}") for n in range(9)) < 1.0, "each is done before the next comes"


def test_streams_that_nobody_reads_do_not_slow_prefill(simulation: Any) -> None:
    """With throughput answers alone, a prompt is computed in steps as large as they may be."""
    chunks = {}
    for objective in ("interactive", "throughput"):
        s = simulation()
        s.warm()
        streams(s, 8, objective=objective)
        s.add("long", s.random_prompt(4000), 1)
        while not s.times["long"]:
            s.step()
        chunks[objective] = s.finish("long").usage.prefill_chunks
    assert chunks["throughput"] == 9
    assert chunks["interactive"] > 12


def test_the_more_expect_a_token_the_larger_the_chunks(simulation: Any) -> None:
    """One reader does not hold up twenty who wait for their first token."""
    s = simulation()
    s.warm()
    streams(s, 1)
    for n in range(20):
        s.add(f"r{n}", s.random_prompt(900), 4)
    s.step()
    assert sum(tokens for _, tokens in s.batches[-1]) > 400


def test_a_short_prompt_behind_long_ones(simulation: Any) -> None:
    """With long prefills running and queued, TTFT of 100 tokens is under 3 times its unloaded value plus one chunk."""
    ttft: dict[bool, list[float]] = {}
    for loaded in (False, True):
        s = simulation()
        s.warm()
        began = s.now
        for n in range(10 if loaded else 0):
            s.add(f"long{n}", s.random_prompt(4000), 4)
        for n in range(15):
            s.at(began + 0.3 + 0.3 * n, f"short{n}", s.random_prompt(100), 4)
        s.play()
        ttft[loaded] = [s.ttft(f"short{n}") for n in range(15)]
    assert max(ttft[True]) < 3 * max(ttft[False]) + max(s.step_s)
    assert max(s.ttft(f"long{n}") for n in range(10)) < 13.0, "forty thousand tokens take some nine seconds alone"


def test_few_long_prefills_are_half_done_at_once(simulation: Any) -> None:
    """Long prompts are begun one after the other, so that they do not hold blocks while they wait for each other."""
    s = simulation()
    for n in range(12):
        s.add(f"long{n}", s.random_prompt(3000), 2)
    while len(s.core):
        s.step()
        prefilling = [seq for seq in s.core._running.sequences.values() if not seq.decoding]
        assert len(prefilling) <= 2


def test_a_stream_of_short_prompts_does_not_starve_a_long_one(simulation: Any) -> None:
    """However many short prompts come, the long one gets half of every step's prefill."""
    s = simulation()
    s.warm()
    began = s.now
    for n in range(150):
        s.at(began + 0.05 * n, f"short{n}", s.random_prompt(120), 2)
    s.at(began + 1.0, "long", s.random_prompt(3000), 2)
    s.play()
    assert s.ttft("long") < 2.5, "3,000 tokens, at least 128 beside a short prompt's in a step of some 40 ms"
    assert max(s.ttft(f"short{n}") for n in range(150)) < 0.25


def test_a_long_prompt_gets_a_place_beside_short_ones(simulation: Any) -> None:
    """When places are few, the last free one goes by age: short prompts cannot take every one."""
    s = simulation(max_running=2)
    s.warm()
    s.feed("", 12, lambda: (20, 6))
    s.play(until=s.now + 1.0)
    s.add("long", s.random_prompt(2000), 2)
    s.play(until=s.now + 6.0)
    assert s.ttft("long") < 5.0


def test_the_ready_part_of_a_prompt_does_not_count_as_length(simulation: Any) -> None:
    """Order is by uncached tokens, as they are when it matters: a long prompt that is cached by now goes first."""
    s = simulation(max_running=1)
    s.warm()
    prefix = s.random_prompt(2000)
    s.add("running", [*prefix, 1], 12)
    s.step()
    s.add("new", s.random_prompt(700), 2)
    s.add("cached", [*prefix, *s.random_prompt(30)], 2)
    s.play()
    assert s.times["cached"][0] < s.times["new"][0]
    assert s.finish("cached").usage.cached_tokens == 2000


def test_first_token_times_are_foretold(simulation: Any) -> None:
    """Predictions are within a fifth on average when requests come at random, and the stats say so."""
    s = simulation()
    s.warm()
    instant = s.now
    for n in range(60):
        instant += s.rng.expovariate(3.0)
        s.at(instant, f"r{n}", s.random_prompt(s.rng.randrange(50, 1500)), s.rng.randrange(8, 60))
    s.play()
    usages = [s.finish(f"r{n}").usage for n in range(60)]
    errors = [abs(usage.predicted_ttft_ms - usage.ttft_ms) / usage.ttft_ms for usage in usages]
    assert mean(errors) < 0.2
    assert s.core.stats().ttft_error_ratio == pytest.approx(mean(errors), abs=0.1)


def test_waits_in_a_deep_queue_are_foretold(simulation: Any) -> None:
    """A hundred requests at once: the time for places and prefill of those ahead is foretold within a third."""
    s = simulation(max_running=8)
    s.warm()
    for n in range(100):
        s.add(f"r{n}", s.random_prompt(300), 20)
    s.play()
    usages = [s.finish(f"r{n}").usage for n in range(10, 100)]
    assert mean(abs(usage.predicted_ttft_ms - usage.ttft_ms) / usage.ttft_ms for usage in usages) < 0.35


def test_nothing_is_foretold_before_anything_was_measured(bench: Any) -> None:
    """The first request has no prediction, and refusals say the least time."""
    b = bench(max_queue_requests=1, max_running=1)
    b.add("first", bytes(20), 2)
    b.add("refused", [1], 2)
    assert b.finish("refused").retry_after_s == 1.0
    b.finish_all()
    assert b.finish("first").usage.predicted_ttft_ms is None


def test_retry_after_is_the_time_until_the_queue_has_begun(simulation: Any) -> None:
    """A refused request is told when what waits now will be running, from the measured speed."""
    s = simulation(max_queue_requests=40, max_running=8)
    s.warm()
    for n in range(48):
        s.add(f"r{n}", s.random_prompt(600), 40)
        s.step()
    for n in range(40 - s.core.stats().num_waiting):
        s.add(f"more{n}", s.random_prompt(600), 40)
    s.add("refused", [1], 4)
    told, waiting = s.finish("refused").retry_after_s, [seq.request.request_id for seq in s.core._running.waiting]
    began = s.now
    s.play()
    assert told == pytest.approx(max(s.times[name][0] for name in waiting) - began, rel=0.25)

"""Teams under load: shares by weight, a light team beside a flood, KV shares, and nothing earned by idling."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 4.0}


def served(s: Any, start: float) -> Counter[str]:
    """Prompt and output tokens of each team since `start`."""
    tokens: Counter[str] = Counter()
    for request_id, times in s.times.items():
        team = s.requests[request_id].team
        tokens[team] += sum(instant > start for instant in times)
        if times and times[0] > start:
            tokens[team] += len(s.requests[request_id].prompt_token_ids)
    return tokens


SHAPES = {
    "rag": (300, 64, {}),
    "prefill": (1200, 4, {}),
    "decode": (20, 100, {}),
    "few places": (300, 32, {"max_running": 8}),
    "fewer": (300, 32, {"max_running": 3}),
    "little kv": (300, 64, {"num_blocks": 200}),
    "over-committed": (300, 64, {"num_blocks": 200, "overcommit": 2.0}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_saturated_teams_get_tokens_by_weight(simulation: Any, shape: str) -> None:
    """Whatever is short (prefill, decode, places, KV blocks), weights 1:2:4 become token shares within 10 %."""
    num_prompt, max_tokens, options = SHAPES[shape]
    s = simulation(**options)
    for team, weight in WEIGHTS.items():
        s.feed(team, 24, lambda: (num_prompt, max_tokens), weight=weight)
    s.play(until=22.0)
    tokens = served(s, start=6.0)
    for team, weight in WEIGHTS.items():
        assert tokens[team] / tokens.total() == pytest.approx(weight / 7, rel=0.1)


def test_unequal_requests_still_share_by_weight(simulation: Any) -> None:
    """Teams with short and long, cheap and dear requests share service, in which an output token counts twice."""
    s = simulation()
    shapes = {"a": (900, 16), "b": (100, 100), "c": (400, 40)}
    for team, shape in shapes.items():
        s.feed(team, 24, lambda shape=shape: shape, weight=WEIGHTS[team])
    s.play(until=30.0)
    service: Counter[str] = Counter()
    for request_id, times in s.times.items():
        request = s.requests[request_id]
        service[request.team] += 2 * len(times) + (len(request.prompt_token_ids) if times else 0)
    for team, weight in WEIGHTS.items():
        assert service[team] / service.total() == pytest.approx(weight / 7, rel=0.1)


FLOODS = {
    "rag": ((900, 64), {}),
    "decode": ((60, 200), {}),
    "long prefill": ((4000, 8), {}),
    "few places": ((900, 64), {"max_running": 16}),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_light_team_beside_a_flood(simulation: Any, p95: Callable[..., float], flood: str) -> None:
    """p95 TTFT of a team that sends little is at most three times its unloaded value plus one step."""
    shape, options = FLOODS[flood]
    ttft = {}
    for loaded in (False, True):
        s = simulation(**options)
        s.warm()
        began = s.now
        if loaded:
            s.feed("flood", 80, lambda: shape)
        names = [f"light{n}" for n in range(16)]
        for n, name in enumerate(names):
            s.at(began + 2.0 + 1.3 * n, name, s.random_prompt(900), 40, team="light")
        s.play(until=began + 25.0)
        ttft[loaded] = p95([s.ttft(name) for name in names])
    assert ttft[True] <= 3 * ttft[False] + max(s.step_s)


def test_an_idle_team_earns_nothing(simulation: Any) -> None:
    """A team that comes late gets its share from then on; it is not served alone to catch up."""
    s = simulation()
    s.feed("early", 40, lambda: (300, 32))
    s.play(until=10.0)
    s.feed("late", 40, lambda: (300, 32))
    s.play(until=14.0)
    tokens = served(s, start=10.0)
    assert tokens["early"] >= 0.8 * tokens["late"]
    s.play(until=28.0)
    tokens = served(s, start=14.0)
    assert tokens["early"] == pytest.approx(tokens["late"], rel=0.1)


def test_a_team_alone_has_the_whole_engine(simulation: Any) -> None:
    """Without others, a small weight costs nothing: places and tokens are all the team's."""
    s = simulation(max_running=8)
    s.feed("alone", 20, lambda: (50, 40), weight=0.01)
    s.play(until=5.0)
    assert max(len(batch) for batch in s.batches) == 8
    assert s.core.stats().num_running == 8


def test_paused_decodes_take_turns(simulation: Any) -> None:
    """When a newcomer claims its share of places, no step has too many rows and no sequence pauses for long."""
    s = simulation(max_running=16)
    s.feed("flood", 40, lambda: (40, 400))
    s.play(until=2.0)
    s.feed("new", 2, lambda: (40, 100))
    s.play(until=8.0)
    assert max(len(batch) for batch in s.batches) == 16
    assert s.core.stats().teams["new"].num_running == 2
    new = next(name for name in s.times if name.startswith("new"))
    assert s.ttft(new) < 3 * max(s.step_s)
    steps = [{seq for seq, _ in batch} for batch in s.batches[-40:]]
    always = set.intersection(*(steps[n] | steps[n + 1] | steps[n + 2] for n in range(38)))
    assert len(always) >= 16


def test_a_team_at_its_kv_share_waits_alone(simulation: Any) -> None:
    """A capped flood never holds more than its share, and the other team is as fast as beside a small flood."""
    ttft = {}
    for num_clients in (2, 40):
        s = simulation(num_blocks=400)
        s.warm()
        s.feed("capped", num_clients, lambda: (400, 100), kv_share=0.2)
        names = [f"other{n}" for n in range(20)]
        for n, name in enumerate(names):
            s.at(s.now + 1.0 + 0.7 * n, name, s.random_prompt(600), 20, team="other")
        most = 0
        while not s.events.get(names[-1]) or len(s.times[names[-1]]) < 20:
            s.play(until=s.now + 0.05)
            most = max(most, s.core.stats().teams["capped"].blocks_promised)
        ttft[num_clients] = max(s.ttft(name) for name in names)
        assert 0 < most <= 80
        assert s.core.stats().num_waiting >= num_clients - 3
    assert ttft[40] <= 1.2 * ttft[2]


def test_what_never_fits_its_share_is_refused_with_numbers(bench: Any) -> None:
    """A request larger than its team's share can never run, and is told so."""
    b = bench(num_blocks=32, block_size=4)
    b.add("big", bytes(36), 5, team="t", kv_share=0.25)
    finish = b.finish("big")
    assert (finish.reason, finish.retry_after_s) == ("rejected", None)
    assert all(part in finish.message for part in ("10 KV blocks", "team 't' may hold 8 of 32", "kv_share 0.25"))
    b.add("fits", bytes(28), 5, team="t", kv_share=0.25)
    b.finish_all()
    assert b.finish("fits").reason == "length"


def test_a_full_queue_shuts_no_other_team_out(bench: Any) -> None:
    """A team whose flood fills the queue is refused; another still gets its fair share of it, and no more."""
    b = bench(max_running=1, max_queue_requests=8)
    b.add("running", [1], 30, team="flood")
    b.step()
    for n in range(10):
        b.add(f"flood{n}", [2], 2, team="flood")
    for n in range(6):
        b.add(f"light{n}", [3], 2, team="light")
    refused = [name for name, events in b.events.items() if events and name != "running"]
    assert refused == ["flood8", "flood9", "light4", "light5"]
    b.finish_all()


def test_priority_counts_within_a_team(bench: Any) -> None:
    """A flood of urgent requests of one team leaves another its share."""
    b = bench(max_running=1, step_s=1.0)
    b.add("running", [1], 1, team="urgent")
    for n in range(6):
        b.add(f"urgent{n}", [2], 1, team="urgent", priority=5)
        b.add(f"calm{n}", [3], 1, team="calm")
    b.finish_all()
    order = [seq for batch in b.batches for seq, _ in batch]
    assert [seq % 2 for seq in order[1:7]] in ([0, 1, 0, 1, 0, 1], [1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(bench: Any, weight: float) -> None:
    """Weights are positive numbers."""
    b = bench()
    b.add("a", [1], 2, weight=weight)
    assert "weight is" in b.finish("a").message

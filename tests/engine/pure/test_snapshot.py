"""What the engine says about itself: bounded in names, and it adds up."""

from typing import Any

import pytest

from engine.request import OTHER_NAMESPACES, OTHER_TEAMS, TeamStats


def test_blocks_by_namespace(bench: Any) -> None:
    """Cached blocks are counted by namespace, whether in use or idle, and leave with their last block."""
    b = bench(block_size=4, num_blocks=64)
    b.add("a", bytes(range(20)), 1, namespace=("team", "a"))
    b.add("b", bytes(range(9)), 8, namespace=("team", "b"))
    b.step()
    b.step()
    assert b.core.stats().blocks_by_namespace == {("team", "a"): 5, ("team", "b"): 2}
    b.finish_all()
    assert b.core.flush(("team", "a")) == 5
    assert set(b.core.stats().blocks_by_namespace) == {("team", "b")}


def test_namespaces_and_teams_are_bounded(bench: Any) -> None:
    """However many there are, at most twenty are told apart, the largest; the rest is one number."""
    b = bench(block_size=4, num_blocks=400, max_running=64)
    for n in range(30):
        b.add(f"r{n:02}", [n] * (5 if n < 5 else 9), 20, namespace=(f"n{n:02}",), team=f"t{n:02}")
    b.add("second", [1], 3, team="t07")
    b.step()
    stats = b.core.stats()
    assert len(stats.blocks_by_namespace) == len(stats.teams) == 21
    assert stats.blocks_by_namespace[OTHER_NAMESPACES] == 5 * 2 + 5 * 1
    assert sum(stats.blocks_by_namespace.values()) == 25 * 2 + 5
    assert stats.teams["t07"] == TeamStats(num_running=2, num_waiting=0, blocks_promised=7 + 1)
    assert stats.teams[OTHER_TEAMS].num_running == 10
    b.finish_all()
    assert b.core.stats().teams == {}


def test_causes_of_aborts(bench: Any) -> None:
    """Whatever did not end by itself is counted by its cause."""
    b = bench(max_running=1, max_queue_requests=3, step_s=1.0, raise_at_step=6)
    b.add("runs", [1], 4)
    b.step()
    b.add("late", [2], 2, queue=2.5)
    b.add("gone", [3], 2)
    b.add("slow", [4], 9, first_token=3.0)
    b.add("full", [5], 2)
    b.add("never", b"", 2)
    b.cancel("gone")
    b.finish_all()
    b.add("long", [6], 9, total=b.now + 0.5)
    b.add("fails", [7], 9)
    b.finish_all()
    assert b.core.stats().aborts_total == {
        "timeout_queue": 1, "timeout_first_token": 1, "timeout_total": 1, "cancelled": 1, "rejected_full": 1,
        "rejected_invalid": 1, "failed": 1,
    }  # fmt: skip


def test_step_times(bench: Any) -> None:
    """The histogram, the total and the mean are of the same steps; stalls are those that nobody expected."""
    durations = iter([0.004, 0.004, 0.004, 0.004, 0.3, *[0.004] * 20])
    b = bench(cost=lambda batch: next(durations))
    for n in range(6):
        b.add(f"r{n}", [n], 2)
        b.finish_all()
    stats = b.core.stats()
    assert {le: count for le, count in stats.step_ms_histogram.items() if count} == {5.0: 11, 500.0: 1}
    assert list(stats.step_ms_histogram)[-1] == float("inf")
    assert stats.step_ms_total == pytest.approx(11 * 4 + 300)
    assert stats.step_ms_mean == pytest.approx(stats.step_ms_total / stats.steps_total)


def test_stalls(simulation: Any) -> None:
    """A step that takes ten times as long as it should is counted."""
    s = simulation()
    s.warm()
    usual, before = s.cost, s.core.stats().stalls_total
    s.add("a", s.random_prompt(50), 20)
    s.step(5)
    s.cost = lambda batch: 10 * usual(batch)
    s.step()
    s.cost = usual
    s.play()
    assert s.core.stats().stalls_total == before + 1

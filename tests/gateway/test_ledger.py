"""The accounts: atomic over all levels, exact over their windows, never giving back what was not taken."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.ledger import Amounts, Claim, LedgerLost, Limit, LimitExceeded, UsageEntry, window
from gateway.store import SqliteLedger

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()


class Clock:
    """A wall clock that a test moves."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """At noon."""
    return Clock()


@pytest.fixture
async def ledger(clock: Clock) -> AsyncIterator[SqliteLedger]:
    """In memory."""
    ledger = SqliteLedger(clock=clock)
    yield ledger
    await ledger.close()


def tokens_a_minute(bound: float, scope: str = "team a") -> Limit:
    """The commonest limit."""
    return Limit(scope, "tokens_per_minute", bound)


def claim(name: str, tokens: int, *limits: Limit, least: int | None = None, lifetime_s: float = 60.0) -> Claim:
    """A request for `tokens`, or at least `least`."""
    return Claim(name, limits, Amounts(tokens if least is None else least), Amounts(tokens), lifetime_s)


async def admitted(ledger: SqliteLedger, claim: Claim) -> bool:
    """Whether the claim got in."""
    try:
        await ledger.reserve(claim)
    except LimitExceeded:
        return False
    return True


async def left(ledger: SqliteLedger, *limits: Limit) -> list[float]:
    """What remains of each limit, seen by a request that takes nothing."""
    standing = await ledger.reserve(Claim("look", limits, Amounts(requests=0), Amounts(requests=0), 1))
    await ledger.settle("look", Amounts(requests=0))
    return [balance.remaining for balance in standing]


async def test_concurrent_claims(ledger: SqliteLedger) -> None:
    """Of five claims of 60 tokens at one moment over 100, exactly one passes (litellm#18730)."""
    limit = tokens_a_minute(100)
    passed = await asyncio.gather(*(admitted(ledger, claim(f"r{n}", 60, limit)) for n in range(5)))
    assert sum(passed) == 1
    assert await left(ledger, limit) == [40]


async def test_settling_corrects_the_reservation(ledger: SqliteLedger) -> None:
    """What was reserved and not used comes back; a second settlement changes nothing."""
    limit = tokens_a_minute(100)
    await ledger.reserve(claim("r", 90, limit))
    await ledger.resize("r", Amounts(70))
    assert await left(ledger, limit) == [30]
    await ledger.settle("r", Amounts(25))
    await ledger.settle("r", Amounts(99))
    assert await left(ledger, limit) == [75]


async def test_never_fits(ledger: SqliteLedger) -> None:
    """A claim larger than the whole bound has no retry time (litellm#4829)."""
    with pytest.raises(LimitExceeded) as caught:
        await ledger.reserve(claim("r", 1000, tokens_a_minute(100)))
    assert caught.value.retry_after_s is None
    assert (caught.value.asked, caught.value.limit.bound) == (1000, 100)


async def test_refusals_give_nothing_back(ledger: SqliteLedger) -> None:
    """Thirty refusals leave a used-up account as it is (milvus#33335)."""
    limit = tokens_a_minute(100)
    await ledger.reserve(claim("first", 100, limit))
    await ledger.settle("first", Amounts(100))
    for n in range(30):
        assert not await admitted(ledger, claim(f"r{n}", 10, limit))
        await ledger.settle(f"r{n}", Amounts(0))
    assert not await admitted(ledger, claim("again", 10, limit))
    assert await left(ledger, limit) == [0]


async def test_failed_levels_are_undone(ledger: SqliteLedger, clock: Clock) -> None:
    """A claim that one level refuses takes nothing from the others (aws-samples#83)."""
    team = tokens_a_minute(80, "team")
    users = [tokens_a_minute(100, f"user {n}") for n in (1, 2)]
    await ledger.reserve(claim("a", 50, users[0], team))
    assert not await admitted(ledger, claim("b", 80, users[1], team))
    assert await left(ledger, users[1]) == [100]
    clock.now += 61
    assert await admitted(ledger, claim("b", 80, users[1], team))


async def test_retry_after_is_exact(ledger: SqliteLedger, clock: Clock) -> None:
    """After the told time the claim passes, a second before it does not."""
    limit = tokens_a_minute(100)
    for n in range(4):
        await ledger.reserve(claim(f"r{n}", 25, limit))
        clock.now += 10
    with pytest.raises(LimitExceeded) as caught:
        await ledger.reserve(claim("late", 50, limit))
    assert caught.value.retry_after_s == pytest.approx(30, abs=1)
    start, wait_s = clock.now, caught.value.retry_after_s
    assert wait_s is not None
    clock.now = start + wait_s - 1
    assert not await admitted(ledger, claim("early", 50, limit))
    clock.now = start + wait_s
    assert await admitted(ledger, claim("in time", 50, limit))


async def test_least_where_most_does_not_fit(ledger: SqliteLedger) -> None:
    """A rough upper bound alone refuses nobody; the exact amount does, and then the reservation is gone."""
    limit = tokens_a_minute(100)
    await ledger.reserve(claim("a", 500, limit, least=10))
    assert await left(ledger, limit) == [90]
    await ledger.resize("a", Amounts(60))
    await ledger.reserve(claim("b", 500, limit, least=10))
    with pytest.raises(LimitExceeded) as caught:
        await ledger.resize("b", Amounts(60))
    assert caught.value.retry_after_s is not None
    assert await left(ledger, limit) == [40]
    await ledger.reserve(claim("c", 500, limit, least=10))
    with pytest.raises(LimitExceeded) as caught:
        await ledger.resize("c", Amounts(101))
    assert caught.value.retry_after_s is None


async def test_concurrency(ledger: SqliteLedger, clock: Clock) -> None:
    """Places come back at the end of a request, or when its reservation expires after a crash."""
    limit = Limit("team", "concurrency", 2)
    for name in "ab":
        await ledger.reserve(claim(name, 0, limit, lifetime_s=30))
    assert not await admitted(ledger, claim("c", 0, limit))
    await ledger.settle("a", Amounts())
    assert await admitted(ledger, claim("c", 0, limit, lifetime_s=300))
    clock.now += 31
    assert await admitted(ledger, claim("d", 0, limit))
    assert not await admitted(ledger, claim("e", 0, limit))


async def test_day_in_its_time_zone(ledger: SqliteLedger, clock: Clock) -> None:
    """A day's quota renews at midnight over there, and says when that is."""
    limit = Limit("team", "tokens_per_day", 100, "Asia/Shanghai")  # noon UTC is 20:00 there
    await ledger.reserve(claim("a", 100, limit))
    with pytest.raises(LimitExceeded) as caught:
        await ledger.reserve(claim("b", 1, limit))
    assert caught.value.retry_after_s == 4 * 3600
    clock.now += 4 * 3600
    assert await admitted(ledger, claim("b", 1, limit))


@pytest.mark.parametrize(
    ("kind", "zone", "at", "seconds"),
    [
        ("tokens_per_day", "Europe/Berlin", "2026-03-29T01:30+01:00", 23 * 3600 - 1.5 * 3600),
        ("tokens_per_day", "Europe/Berlin", "2026-10-25T01:30+02:00", 25 * 3600 - 1.5 * 3600),
        ("cost_per_month", "UTC", "2026-02-28T12:00+00:00", 12 * 3600),
        ("cost_per_month", "UTC", "2026-12-31T23:00+00:00", 3600),
    ],
)
def test_calendar_windows(kind: Any, zone: str, at: str, seconds: float) -> None:
    """Days around a clock change and the ends of months have their true length."""
    now = datetime.fromisoformat(at).timestamp()
    ends = window(Limit("team", kind, 1, zone), now).ends
    assert ends is not None
    assert ends - now == seconds


async def test_cost(ledger: SqliteLedger) -> None:
    """A month's cost is settled on what was spent, even where that is more than was reserved."""
    limit = Limit("team", "cost_per_month", 1.0)
    await ledger.reserve(Claim("a", (limit,), Amounts(cost=0.3), Amounts(cost=0.3), 60))
    (balance,) = await ledger.settle("a", Amounts(cost=0.9))
    assert balance.remaining == pytest.approx(0.1)


async def test_survives_a_restart(tmp_path: Path, clock: Clock) -> None:
    """Accounts and usage totals are there after the process came back; the folder is made at need."""
    path, limit = str(tmp_path / "state" / "ledger.sqlite3"), tokens_a_minute(100)
    first = SqliteLedger(path, clock)
    await first.reserve(claim("a", 60, limit))
    entry = UsageEntry("support", "helpdesk", "u-1", "chat", 50, 10, 5, 1e6, 0.25)
    first.record(entry)
    first.record(entry)
    await first.close()
    second = SqliteLedger(path, clock)
    assert await left(second, limit) == [40]
    (line,) = await second.usage()
    assert (line["day"], line["team"], line["requests"], line["prompt_tokens"]) == ("2026-03-10", "support", 2, 100)
    assert line["cost"] == 0.5
    await second.close()


async def test_two_processes_share_a_file(tmp_path: Path, clock: Clock) -> None:
    """Claims of two ledgers over one file together never pass the bound."""
    path, limit = str(tmp_path / "ledger.sqlite3"), tokens_a_minute(100)
    ledgers = [SqliteLedger(path, clock) for _ in range(2)]
    passed = await asyncio.gather(*(admitted(ledgers[n % 2], claim(f"r{n}", 10, limit)) for n in range(30)))
    assert sum(passed) == 10
    for ledger in ledgers:
        await ledger.close()


async def test_lost_store_heals_and_loses_no_settlement(tmp_path: Path, clock: Clock) -> None:
    """While the file cannot be used every call says so; what was to be settled meanwhile is settled afterwards."""
    path, limit = tmp_path / "ledger.sqlite3", tokens_a_minute(100)
    ledger = SqliteLedger(str(path), clock)
    await ledger.reserve(claim("a", 90, limit))
    await ledger.reserve(claim("b", 10, limit))
    keep = tmp_path / "kept"
    await _break(ledger, path, keep)
    with pytest.raises(LedgerLost, match="cannot be used"):
        await ledger.reserve(claim("c", 1, limit))
    with pytest.raises(LedgerLost):
        await ledger.settle("a", Amounts(5))
    path.rmdir()
    keep.rename(path)
    assert await left(ledger, limit) == [85]
    await ledger.close()


async def _break(ledger: SqliteLedger, path: Path, keep: Path) -> None:
    """Put a folder where the file was."""

    def close(accounts: Any) -> None:
        accounts.close()
        path.rename(keep)
        path.mkdir()
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(LedgerLost):
        await ledger._ask(close)


STEPS = st.lists(
    st.tuples(st.sampled_from(["reserve", "resize", "settle", "wait"]), st.integers(0, 5), st.integers(0, 70)),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
async def test_accounts_never_pass_their_bounds(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is reserved, resized, settled and waited for: 0 <= remaining <= bound, and all ends where it began."""
    clock = Clock()
    ledger = SqliteLedger(clock=clock)
    limits = (tokens_a_minute(100), tokens_a_minute(150, "team b"), Limit("team", "concurrency", 3))
    for action, who, amount in steps:
        name = f"r{who}"
        try:
            match action:
                case "reserve":
                    standing = await ledger.reserve(claim(name, amount, *limits, lifetime_s=1e9))
                case "resize":
                    standing = await ledger.resize(name, Amounts(amount))
                case "settle":
                    standing = await ledger.settle(name, Amounts(min(amount, 10)))
                case _:
                    clock.now += amount
                    continue
        except LimitExceeded as refused:
            standing = refused.standing
        assert all(0 <= balance.remaining <= balance.bound for balance in standing)
    for who in range(6):
        await ledger.settle(f"r{who}", Amounts(0))
    clock.now += 120
    assert await left(ledger, *limits) == [100, 150, 2]
    await ledger.close()

"""What teams may use and have used: the accounts, the windows they run over, and the `Ledger` protocol.

A reservation is made in one atomic step over all of a request's limits: either every account takes it or none does.
It remembers which window it was booked in, so that a later correction changes that window alone: what was never
taken cannot be given back, and an account never falls below zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol
from zoneinfo import ZoneInfo

LimitKind = Literal["requests_per_minute", "tokens_per_minute", "tokens_per_day", "cost_per_month", "concurrency"]
Unit = Literal["requests", "tokens", "cost", "open"]
UNIT_OF: Mapping[LimitKind, Unit] = {
    "requests_per_minute": "requests",
    "tokens_per_minute": "tokens",
    "tokens_per_day": "tokens",
    "cost_per_month": "cost",
    "concurrency": "open",
}
MINUTE_S = 60
QUARTER_S = 900
"""Every time zone's midnight falls on a quarter of an hour, so within one the calendar does not change."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on one account. `scope` names whose account it is; `time_zone` is where days and months begin."""

    scope: str
    kind: LimitKind
    bound: float
    time_zone: str = "UTC"


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a request takes. A refused request takes nothing, an admitted one is one request whatever became of it."""

    tokens: int = 0
    cost: float = 0.0
    requests: int = 1

    def of(self, kind: LimitKind) -> float:
        """The amount that counts against this kind of limit."""
        match UNIT_OF[kind]:
            case "tokens":
                return self.tokens
            case "cost":
                return self.cost
            case "requests":
                return self.requests
            case "open":
                return 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A request at the door. Before its plan is made only bounds are known.

    `most` is what it can take at worst; it is reserved where it fits. Where it does not, `least`, what it takes for
    certain, is reserved, and the exact amount decides once the plan has told it.
    """

    request_id: str
    limits: Sequence[Limit]
    least: Amounts
    most: Amounts
    lifetime_s: float
    """After this long the reservation is closed as it stands: its process has died."""


class Balance(NamedTuple):
    """One account after a step. `reset_s`: seconds until it is whole again; None where no clock does that."""

    kind: LimitKind
    bound: float
    remaining: float
    reset_s: float | None


Standing = tuple[Balance, ...]


@dataclass(frozen=True, slots=True)
class UsageEntry:
    """What one finished request used, and who is to pay for it."""

    team: str
    app: str
    user: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    kv_byte_seconds: float
    cost: float


class LimitExceeded(Exception):
    """An account has no room. `retry_after_s` None: the request is larger than the whole bound."""

    def __init__(
        self, limit: Limit, used: float, asked: float, retry_after_s: float | None, standing: Standing
    ) -> None:
        super().__init__(f"{limit.kind} of {limit.scope}: {used:g} of {limit.bound:g} used, {asked:g} asked")
        self.limit = limit
        self.used = used
        self.asked = asked
        self.retry_after_s = retry_after_s
        self.standing = standing


class LedgerLost(Exception):
    """The store cannot be reached or written; the message says why."""


class Ledger(Protocol):
    """The accounts. Every method is atomic, and safe to call again with the same arguments."""

    @property
    def problem(self) -> str | None:
        """Why the store could not be used the last time; None if it could."""
        ...

    async def reserve(self, claim: Claim) -> Standing:
        """Take the claim from all its accounts, or from none.

        Raises:
            LimitExceeded: an account has no room.
            LedgerLost: nothing is known.
        """
        ...

    async def resize(self, request_id: str, amounts: Amounts) -> Standing:
        """Correct a reservation to what the plan needs. Where that does not fit, the reservation is undone whole.

        Raises:
            LimitExceeded: it grew, and an account has no room for that.
            LedgerLost: nothing is known.
        """
        ...

    async def settle(self, request_id: str, amounts: Amounts) -> Standing:
        """Close a reservation with what was used. A second call, or an unknown id, changes nothing.

        Raises:
            LedgerLost: nothing is known.
        """
        ...

    def record(self, entry: UsageEntry) -> None:
        """Add to the usage totals, some time soon; never waits."""
        ...

    async def close(self) -> None:
        """Write what is pending and let go of the store."""
        ...


class Window(NamedTuple):
    """The stretch of time that a limit counts over: bookings in slots `first .. last` count, `last` takes new ones."""

    first: int
    last: int
    ends: float | None
    """When the whole window is renewed at once; None for a sliding one."""


def window(limit: Limit, now: float) -> Window:
    """The window of `limit` at `now` (seconds since the epoch): one-second slots for a minute, one slot for a day."""
    match limit.kind:
        case "requests_per_minute" | "tokens_per_minute":
            return Window(int(now) - MINUTE_S + 1, int(now), None)
        case "tokens_per_day":
            return _day(int(now // QUARTER_S), limit.time_zone)
        case "cost_per_month":
            return _month(int(now // QUARTER_S), limit.time_zone)
        case "concurrency":
            return Window(0, 0, None)


@lru_cache(256)
def _day(quarter: int, time_zone: str) -> Window:
    start = _midnight(quarter, time_zone)
    return _calendar(start, start + timedelta(days=1))


@lru_cache(256)
def _month(quarter: int, time_zone: str) -> Window:
    start = _midnight(quarter, time_zone).replace(day=1)
    return _calendar(start, (start + timedelta(days=32)).replace(day=1))


def _midnight(quarter: int, time_zone: str) -> datetime:
    return datetime.fromtimestamp(quarter * QUARTER_S, ZoneInfo(time_zone)).replace(hour=0, minute=0, second=0)


def _calendar(start: datetime, end: datetime) -> Window:
    first = int(start.timestamp())
    return Window(first, first, end.timestamp())

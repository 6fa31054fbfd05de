"""The book-keeping behind the ledger: reservations and bookings as SQL. One thread at a time."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.ledger import (
    MINUTE_S,
    Amounts,
    Balance,
    Claim,
    Limit,
    LimitExceeded,
    LimitKind,
    Standing,
    UsageEntry,
    window,
)

SCHEMA = """
CREATE TABLE IF NOT EXISTS bookings (
    scope TEXT NOT NULL, kind TEXT NOT NULL, slot INTEGER NOT NULL, amount REAL NOT NULL,
    PRIMARY KEY (scope, kind, slot)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reservations (
    request_id TEXT PRIMARY KEY, expires REAL NOT NULL, holds BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS reservations_by_expiry ON reservations (expires);
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, team TEXT NOT NULL, app TEXT NOT NULL, user TEXT NOT NULL, model TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, kv_byte_seconds REAL NOT NULL, cost REAL NOT NULL,
    PRIMARY KEY (day, team, app, user, model)
) WITHOUT ROWID;
"""
KEPT_S = {"requests_per_minute": 2 * MINUTE_S, "tokens_per_minute": 2 * MINUTE_S}
KEPT_LONGEST_S = 70 * 86400
SWEEP_EVERY_S = 30.0
ROUNDING = 1e-9
"""Sums of floating costs may miss a bound by this much."""


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """A part of a reservation: what one account has booked for it, and in which slot."""

    scope: str
    kind: LimitKind
    bound: float
    time_zone: str
    slot: int
    amount: float

    @property
    def limit(self) -> Limit:
        """The bound that the hold counts against."""
        return Limit(self.scope, self.kind, self.bound, self.time_zone)


_holds = msgspec.json.Decoder(tuple[Hold, ...])


class Accounts:
    """All accounts in one SQLite database. `now` is seconds since the epoch."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database
        self._swept = 0.0
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "temp_store=MEMORY"):
            database.execute(f"PRAGMA {pragma}")
        database.executescript(SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and alone: other processes wait."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.rollback()
            raise
        self._db.commit()

    def reserve(self, claim: Claim, now: float) -> Standing:
        """Book `claim.most` where every account takes it, else `claim.least`.

        Raises:
            LimitExceeded: an account does not even take the least; nothing is booked.
        """
        self._sweep(now)
        if self._find(claim.request_id) is not None:
            return self._standing(claim.limits, now)
        amounts = claim.most
        if any(self._lacks(limit, claim.most.of(limit.kind), now) for limit in claim.limits):
            amounts = claim.least
            for limit in claim.limits:
                self._require(limit, amounts.of(limit.kind), claim.limits, now)
        self._book(claim, amounts, now)
        return self._standing(claim.limits, now)

    def resize(self, request_id: str, amounts: Amounts, now: float) -> Standing:
        """Book more or less than was reserved.

        Raises:
            LimitExceeded: an account has no room for more; the whole reservation is undone.
        """
        holds = self._find(request_id)
        if holds is None:
            return ()
        limits = [hold.limit for hold in holds]
        try:
            for hold in holds:
                if (more := amounts.of(hold.kind) - hold.amount) > 0:
                    self._require(hold.limit, more, limits, now, whole=amounts.of(hold.kind))
        except LimitExceeded:
            self._undo(request_id, holds)
            raise
        changed = tuple(self._change(hold, amounts.of(hold.kind)) for hold in holds)
        self._db.execute(
            "UPDATE reservations SET holds = ? WHERE request_id = ?", (msgspec.json.encode(changed), request_id)
        )
        return self._standing(limits, now)

    def settle(self, request_id: str, amounts: Amounts, now: float) -> Standing:
        """Replace what was reserved by what was used."""
        holds = self._find(request_id)
        if holds is None:
            return ()
        for hold in holds:
            self._change(hold, 0.0 if hold.kind == "concurrency" else amounts.of(hold.kind))
        self._db.execute("DELETE FROM reservations WHERE request_id = ?", (request_id,))
        return self._standing([hold.limit for hold in holds], now)

    def record(self, entry: UsageEntry, now: float) -> None:
        """Add one request to its line of the usage table."""
        day = datetime.fromtimestamp(now, UTC).date().isoformat()
        numbers = (entry.prompt_tokens, entry.cached_tokens, entry.output_tokens, entry.kv_byte_seconds, entry.cost)
        self._db.execute(
            "INSERT INTO usage VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
            "requests = requests + 1, prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
            "cached_tokens = cached_tokens + excluded.cached_tokens, "
            "output_tokens = output_tokens + excluded.output_tokens, "
            "kv_byte_seconds = kv_byte_seconds + excluded.kv_byte_seconds, cost = cost + excluded.cost",
            (day, entry.team, entry.app, entry.user, entry.model, *numbers),
        )

    def usage(self) -> list[dict[str, Any]]:
        """Every line of the usage table."""
        rows = self._db.execute("SELECT * FROM usage ORDER BY day, team, app, user, model")
        names = [column[0] for column in rows.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def _find(self, request_id: str) -> tuple[Hold, ...] | None:
        row = self._db.execute("SELECT holds FROM reservations WHERE request_id = ?", (request_id,)).fetchone()
        return _holds.decode(row[0]) if row else None

    def _used(self, limit: Limit, now: float) -> tuple[float, int]:
        """What counts in the limit's window, and the newest slot that has any."""
        first, last, _ = window(limit, now)
        row = self._db.execute(
            "SELECT COALESCE(SUM(amount), 0), COALESCE(MAX(slot), 0) FROM bookings "
            "WHERE scope = ? AND kind = ? AND slot BETWEEN ? AND ?",
            (limit.scope, limit.kind, first, last),
        ).fetchone()
        return float(row[0]), int(row[1])

    def _lacks(self, limit: Limit, asked: float, now: float) -> bool:
        return self._used(limit, now)[0] + asked > limit.bound + ROUNDING

    def _require(
        self, limit: Limit, asked: float, limits: Sequence[Limit], now: float, whole: float | None = None
    ) -> None:
        """Refuse what does not fit; `whole` is all that the request wants where `asked` is only what is missing."""
        whole = asked if whole is None else whole
        if self._lacks(limit, asked, now):
            wait_s = None if whole > limit.bound else self._wait_s(limit, asked, now)
            raise LimitExceeded(limit, self._used(limit, now)[0], whole, wait_s, self._standing(limits, now))

    def _wait_s(self, limit: Limit, asked: float, now: float) -> float:
        """Seconds until `asked` fits, if nothing else is booked."""
        first, last, ends = window(limit, now)
        if ends is not None:
            return ends - now
        if limit.kind == "concurrency":
            return 1.0
        missing = self._used(limit, now)[0] + asked - limit.bound
        rows = self._db.execute(
            "SELECT slot, amount FROM bookings WHERE scope = ? AND kind = ? AND slot BETWEEN ? AND ? ORDER BY slot",
            (limit.scope, limit.kind, first, last),
        )
        for slot, amount in rows:
            missing -= amount
            if missing <= ROUNDING:
                return float(slot) + MINUTE_S - now
        return float(MINUTE_S)

    def _book(self, claim: Claim, amounts: Amounts, now: float) -> None:
        holds = []
        for limit in claim.limits:
            slot, amount = window(limit, now).last, amounts.of(limit.kind)
            self._add(limit.scope, limit.kind, slot, amount)
            holds.append(Hold(limit.scope, limit.kind, limit.bound, limit.time_zone, slot, amount))
        self._db.execute(
            "INSERT INTO reservations VALUES (?, ?, ?)",
            (claim.request_id, now + claim.lifetime_s, msgspec.json.encode(holds)),
        )

    def _change(self, hold: Hold, amount: float) -> Hold:
        self._add(hold.scope, hold.kind, hold.slot, amount - hold.amount)
        return msgspec.structs.replace(hold, amount=amount)

    def _undo(self, request_id: str, holds: Sequence[Hold]) -> None:
        for hold in holds:
            self._change(hold, 0.0)
        self._db.execute("DELETE FROM reservations WHERE request_id = ?", (request_id,))

    def _add(self, scope: str, kind: str, slot: int, amount: float) -> None:
        if amount:
            self._db.execute(
                "INSERT INTO bookings VALUES (?, ?, ?, MAX(0, ?)) "
                "ON CONFLICT DO UPDATE SET amount = MAX(0, amount + ?)",
                (scope, kind, slot, amount, amount),
            )

    def _standing(self, limits: Sequence[Limit], now: float) -> Standing:
        return tuple(self._balance(limit, now) for limit in limits)

    def _balance(self, limit: Limit, now: float) -> Balance:
        used, newest = self._used(limit, now)
        ends = window(limit, now).ends
        if ends is not None:
            reset_s: float | None = ends - now
        elif limit.kind == "concurrency":
            reset_s = None
        else:
            reset_s = max(0.0, newest + MINUTE_S - now) if used else 0.0
        return Balance(limit.kind, limit.bound, max(0.0, limit.bound - used), reset_s)

    def _sweep(self, now: float) -> None:
        """Close what has expired: its process died. Its tokens stay booked as reserved, its place is given back."""
        rows = self._db.execute("SELECT request_id, holds FROM reservations WHERE expires <= ?", (now,)).fetchall()
        for request_id, raw in rows:
            for hold in _holds.decode(raw):
                if hold.kind == "concurrency":
                    self._change(hold, 0.0)
            self._db.execute("DELETE FROM reservations WHERE request_id = ?", (request_id,))
        if now - self._swept >= SWEEP_EVERY_S:
            self._swept = now
            for kind, kept_s in KEPT_S.items():
                self._db.execute("DELETE FROM bookings WHERE kind = ? AND slot < ?", (kind, now - kept_s))
            self._db.execute("DELETE FROM bookings WHERE kind <> 'concurrency' AND slot < ?", (now - KEPT_LONGEST_S,))

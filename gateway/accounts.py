"""The book-keeping behind the ledger: reservations and bookings as SQL. One thread at a time."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.account import ROUNDING, Account, Hold, hold_on, moved, standing_of
from gateway.ledger import MINUTE_S, Amounts, Claim, Limit, LimitExceeded, Standing, UsageEntry, window

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
BOOK = "INSERT INTO bookings VALUES (?1, ?2, ?3, MAX(0, ?4)) ON CONFLICT DO UPDATE SET amount = MAX(0, amount + ?4)"
BOOKED = (
    "SELECT COALESCE(SUM(amount), 0), COALESCE(MAX(slot), 0) FROM bookings "
    "WHERE scope = ? AND kind = ? AND slot BETWEEN ? AND ?"
)
KEPT_S = {"requests_per_minute": 2 * MINUTE_S, "tokens_per_minute": 2 * MINUTE_S, "tokens_per_day": 70 * 86400}
SWEEP_EVERY_S = 30.0


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
        accounts = [self._account(limit, now) for limit in claim.limits]
        if self._find(claim.request_id) is not None:
            return standing_of(accounts, now)
        amounts = claim.most
        if not all(account.takes(amounts.of(account.limit.kind)) for account in accounts):
            amounts = claim.least
            self._require(accounts, amounts, now)
        holds = [hold_on(account, amounts.of(account.limit.kind)) for account in accounts]
        self._book([(hold.scope, hold.kind, hold.slot, hold.amount) for hold in holds])
        row = (claim.request_id, now + claim.lifetime_s, msgspec.json.encode(holds))
        self._db.execute("INSERT INTO reservations VALUES (?, ?, ?)", row)
        return standing_of([a.after(hold.amount) for a, hold in zip(accounts, holds, strict=True)], now)

    def resize(self, request_id: str, amounts: Amounts, now: float) -> Standing:
        """Book more or less than was reserved.

        Raises:
            LimitExceeded: an account has no room for more; the whole reservation is undone.
        """
        holds = self._find(request_id)
        if holds is None:
            return ()
        accounts = [self._account(hold.limit, now) for hold in holds]
        growth = [max(0.0, amounts.of(hold.kind) - hold.amount) for hold in holds]
        if not all(account.takes(more) for account, more in zip(accounts, growth, strict=True)):
            self._rebook(holds, [0.0] * len(holds))
            self._close(request_id)
            self._require([self._account(hold.limit, now) for hold in holds], amounts, now)
        changed = self._rebook(holds, [amounts.of(hold.kind) for hold in holds])
        row = (msgspec.json.encode(changed), request_id)
        self._db.execute("UPDATE reservations SET holds = ? WHERE request_id = ?", row)
        return standing_of(moved(accounts, holds, changed), now)

    def settle(self, request_id: str, amounts: Amounts, now: float) -> Standing:
        """Replace what was reserved by what was used."""
        holds = self._find(request_id)
        if holds is None:
            return ()
        accounts = [self._account(hold.limit, now) for hold in holds]
        used = [0.0 if hold.kind == "concurrency" else amounts.of(hold.kind) for hold in holds]
        changed = self._rebook(holds, used)
        self._close(request_id)
        return standing_of(moved(accounts, holds, changed), now)

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

    def _close(self, request_id: str) -> None:
        self._db.execute("DELETE FROM reservations WHERE request_id = ?", (request_id,))

    def _account(self, limit: Limit, now: float) -> Account:
        span = window(limit, now)
        booked, newest = self._db.execute(BOOKED, (limit.scope, limit.kind, span.first, span.last)).fetchone()
        return Account(limit, span, booked, newest)

    def _require(self, accounts: Sequence[Account], amounts: Amounts, now: float) -> None:
        """Raises LimitExceeded for the first account that has no room. A request over a whole bound is told that."""
        for account in accounts:
            asked = amounts.of(account.limit.kind)
            if not account.takes(asked):
                wait_s = None if asked > account.limit.bound else self._wait_s(account, asked, now)
                raise LimitExceeded(account.limit, account.booked, asked, wait_s, standing_of(accounts, now))

    def _wait_s(self, account: Account, asked: float, now: float) -> float:
        """Seconds until `asked` fits, if nothing else is booked."""
        limit, (first, last, ends) = account.limit, account.window
        if ends is not None:
            return ends - now
        if limit.kind == "concurrency":
            return 1.0
        missing = account.booked + asked - limit.bound
        rows = self._db.execute(
            "SELECT slot, amount FROM bookings WHERE scope = ? AND kind = ? AND slot BETWEEN ? AND ? ORDER BY slot",
            (limit.scope, limit.kind, first, last),
        )
        for slot, amount in rows:
            missing -= amount
            if missing <= ROUNDING:
                return float(slot) + MINUTE_S - now
        return float(MINUTE_S)

    def _rebook(self, holds: Sequence[Hold], amounts: Sequence[float]) -> list[Hold]:
        """Change what is booked for these holds, each in its own slot."""
        pairs = list(zip(holds, amounts, strict=True))
        self._book([(hold.scope, hold.kind, hold.slot, amount - hold.amount) for hold, amount in pairs])
        return [msgspec.structs.replace(hold, amount=amount) for hold, amount in pairs]

    def _book(self, rows: Sequence[tuple[str, str, int, float]]) -> None:
        self._db.executemany(BOOK, [row for row in rows if row[3]])

    def _sweep(self, now: float) -> None:
        """Close what has expired: its process died. Its tokens stay booked as reserved, its place is given back."""
        expired = self._db.execute("SELECT request_id, holds FROM reservations WHERE expires <= ?", (now,)).fetchall()
        for request_id, raw in expired:
            places = [hold for hold in _holds.decode(raw) if hold.kind == "concurrency"]
            self._rebook(places, [0.0] * len(places))
            self._close(request_id)
        if now - self._swept >= SWEEP_EVERY_S:
            self._swept = now
            for kind, kept_s in KEPT_S.items():
                self._db.execute("DELETE FROM bookings WHERE kind = ? AND slot < ?", (kind, now - kept_s))

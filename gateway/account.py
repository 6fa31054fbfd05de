"""One account as it stands, and the holds that a reservation has on it."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gateway.ledger import MINUTE_S, Balance, Limit, LimitKind, Standing, Window

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


class Account(NamedTuple):
    """One limit as it stands: what is booked in its window, and the newest slot of that."""

    limit: Limit
    window: Window
    booked: float
    newest: int

    def takes(self, amount: float) -> bool:
        """Whether there is room for so much more."""
        return self.booked + amount <= self.limit.bound + ROUNDING

    def after(self, amount: float) -> "Account":
        """The account with so much more booked now, or less."""
        newest = self.window.last if amount > 0 else self.newest
        return self._replace(booked=max(0.0, self.booked + amount), newest=newest)

    def balance(self, now: float) -> Balance:
        """What is left."""
        if self.window.ends is not None:
            reset_s: float | None = self.window.ends - now
        elif self.limit.kind == "concurrency":
            reset_s = None
        else:
            reset_s = max(0.0, self.newest + MINUTE_S - now) if self.booked else 0.0
        return Balance(self.limit.kind, self.limit.bound, max(0.0, self.limit.bound - self.booked), reset_s)


def hold_on(account: Account, amount: float) -> Hold:
    """What a reservation of `amount` now remembers."""
    limit = account.limit
    return Hold(limit.scope, limit.kind, limit.bound, limit.time_zone, account.window.last, amount)


def moved(accounts: Sequence[Account], before: Sequence[Hold], after: Sequence[Hold]) -> list[Account]:
    """The accounts after their holds changed. A hold whose slot has left the window moves nothing."""
    return [
        account.after(new.amount - old.amount) if old.slot >= account.window.first else account
        for account, old, new in zip(accounts, before, after, strict=True)
    ]


def standing_of(accounts: Sequence[Account], now: float) -> Standing:
    """All balances."""
    return tuple(account.balance(now) for account in accounts)

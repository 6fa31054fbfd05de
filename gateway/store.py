"""The ledger in SQLite. `gateway.accounts` has the book-keeping; here is the thread that owns the connection."""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from gateway.accounts import Accounts
from gateway.ledger import Amounts, Claim, LedgerLost, LimitExceeded, Standing, UsageEntry

T = TypeVar("T")
MEMORY = ":memory:"
BUSY_TIMEOUT_S = 2.0
MAX_BATCH = 64
MAX_KEPT = 100_000
"""Settlements and usage entries that wait for a lost store, before the oldest are given up."""


class _Job(NamedTuple):
    """`future` is None where nobody waits; a `keep` job is tried again after the store was lost."""

    work: Callable[[Accounts], Any]
    future: "asyncio.Future[Any] | None"
    keep: bool


class SqliteLedger:
    """Durable accounts of one machine; several processes may share the file.

    Jobs that are waiting together are committed together, so a burst costs one commit.

    Args:
        path: a file, made with its folder at need, or `:memory:`.
        clock: seconds since the epoch.
    """

    def __init__(self, path: str = MEMORY, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._kept: deque[_Job] = deque(maxlen=MAX_KEPT)
        self._accounts: Accounts | None = None
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._serve, name="ledger", daemon=True)
        self._thread.start()

    async def reserve(self, claim: Claim) -> Standing:
        """Take the claim from all its accounts, or from none. See `Ledger.reserve`."""
        return await self._ask(lambda accounts: accounts.reserve(claim, self._clock()))

    async def resize(self, request_id: str, amounts: Amounts) -> Standing:
        """Correct a reservation to what the plan needs. See `Ledger.resize`."""
        return await self._ask(lambda accounts: accounts.resize(request_id, amounts, self._clock()))

    async def settle(self, request_id: str, amounts: Amounts) -> Standing:
        """Close a reservation with what was used. See `Ledger.settle`."""
        return await self._ask(lambda accounts: accounts.settle(request_id, amounts, self._clock()), keep=True)

    def record(self, entry: UsageEntry) -> None:
        """Add to the usage totals, some time soon."""
        now = self._clock()
        self._jobs.put(_Job(lambda accounts: accounts.record(entry, now), None, keep=True))

    async def usage(self) -> list[dict[str, Any]]:
        """All usage totals, by day (UTC), team, app, user and model."""
        return await self._ask(lambda accounts: accounts.usage())

    async def close(self) -> None:
        """Write what is pending and close the file."""
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    async def _ask(self, work: Callable[[Accounts], T], *, keep: bool = False) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put(_Job(work, future, keep))
        return await future

    def _serve(self) -> None:
        """The thread: one commit for everything that has piled up since the last."""
        open_for_business = True
        while open_for_business:
            batch = [self._kept.popleft() for _ in range(min(len(self._kept), MAX_BATCH))]
            open_for_business = self._collect(batch)
            self._run(batch)
        if self._accounts is not None:
            self._accounts.close()

    def _collect(self, batch: list[_Job]) -> bool:
        """Wait for a job and take those that are there with it; False once `close` was called."""
        job = self._jobs.get()
        while job is not None and len(batch) < MAX_BATCH:
            batch.append(job)
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return True
        if job is not None:
            batch.append(job)
        return job is not None

    def _run(self, batch: Sequence[_Job]) -> None:
        outcomes: list[tuple[_Job, Any]] = []
        try:
            accounts = self._open()
            with accounts.transaction():
                outcomes += [(job, _outcome(job, accounts)) for job in batch]
            self.problem = None
        except (sqlite3.Error, OSError) as error:
            lost = LedgerLost(f"the ledger {self._path} cannot be used: {error}")
            outcomes = [(job, lost) for job in batch]
            self._kept.extend(job._replace(future=None) for job in batch if job.keep)
            self._forget()
            self.problem = str(error)
        _deliver(outcomes)

    def _open(self) -> Accounts:
        if self._accounts is None:
            if self._path != MEMORY:
                Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            self._accounts = Accounts(sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None))
        return self._accounts

    def _forget(self) -> None:
        """Open the file anew next time; what lives in memory only is kept."""
        if self._path != MEMORY and self._accounts is not None:
            self._accounts.close()
            self._accounts = None


def _outcome(job: _Job, accounts: Accounts) -> Any:
    """The job's result, or its refusal: a refused job has written nothing, so the batch goes on."""
    try:
        return job.work(accounts)
    except LimitExceeded as refusal:
        return refusal


def _deliver(outcomes: Sequence[tuple[_Job, Any]]) -> None:
    """Hand all results over in one call an event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for job, outcome in outcomes:
        if job.future is not None:
            by_loop.setdefault(job.future.get_loop(), []).append((job.future, outcome))
    for loop, results in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, results)


def _resolve(results: Sequence[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, outcome in results:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

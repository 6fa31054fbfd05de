"""The door: what a request may take from its team's and its app's limits; before the plan, after it, at the end."""

import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from budget.types import Plan
from gateway.cost import most_cost
from gateway.errors import StoreUnavailable
from gateway.job import Job
from gateway.ledger import Amounts, Claim, Ledger, LedgerLost, Limit, LimitExceeded, Standing, UsageEntry
from gateway.metrics import Metrics
from gateway.ratelimit import refusal
from gateway.schemas import Cost, Resources
from policies.schema import Limits

StoreState = Literal["ok", "local_share", "open"]
TEMPLATE_TOKENS = 256
"""Room in the first bound for what a chat template adds to a short conversation."""
LIFETIME_MARGIN_S = 60.0
LIFETIME_WITHOUT_TOTAL_S = 86_400.0
LOST_PAUSE_S = 1.0
"""How long a lost ledger is left alone before it is tried again."""


@dataclass(slots=True)
class Ticket:
    """A request's place in a ledger. Without one nothing is reserved: no limit applies, or there is no store."""

    request_id: str
    ledger: Ledger | None = None
    store: StoreState = "ok"
    standing: Standing = ()
    on_loss: str = "local_share"
    """The policy's mode for a lost ledger."""


class Admission:
    """Reserves, corrects and settles. Where no limit applies the ledger is not asked, only told of the usage.

    Args:
        ledger: the accounts that count.
        local: accounts of this process alone, for when those are lost and the policy says `local_share`.
    """

    def __init__(self, ledger: Ledger, local: Ledger, metrics: Metrics) -> None:
        self._ledger = ledger
        self._local = local
        self._metrics = metrics
        self._lost_until = 0.0
        self._loss: str | None = None

    @property
    def loss(self) -> str | None:
        """Why the ledger cannot be used now; None if it can."""
        return self._loss or self._ledger.problem

    async def reserve(self, job: Job, body_bytes: int, *, run: bool = True) -> Ticket:
        """Take the request's upper bound from every account, or refuse it.

        Args:
            body_bytes: length of the request's body: no tokenizer makes more tokens than there are bytes.
            run: False for a request that is planned and not run: it takes no tokens.

        Raises:
            RateLimited, QuotaExceeded, ConcurrencyExceeded: as the names say.
            StoreUnavailable: the ledger is lost and the policy says `closed`.
        """
        limits = limits_of(job)
        if not limits:
            return Ticket(job.request_id)
        claim = _claim(job, limits, body_bytes, run=run)
        ticket = Ticket(job.request_id, self._ledger, on_loss=job.effective.policy.limits.on_store_loss)
        try:
            ticket.standing = await self._timed("reserve", self._reserve(claim))
        except LedgerLost as lost:
            return await self._without_store(job, claim, lost)
        return ticket

    async def resize(self, ticket: Ticket, job: Job, plan: Plan) -> None:
        """Correct the reservation to the plan's exact prompt and granted output.

        Raises:
            RateLimited, QuotaExceeded: the first bound was too low, and the exact amount does not fit.
        """
        if ticket.ledger is None:
            return
        prompt, output = len(plan.prompt_token_ids), plan.report.granted_output_tokens
        amounts = Amounts(prompt + output, most_cost(job.effective.policy.prices, prompt, output))
        with self._losing(ticket):
            ticket.standing = await self._timed("resize", _refusing(ticket.ledger.resize(job.request_id, amounts)))

    async def settle(self, ticket: Ticket, tokens: int, cost: float) -> None:
        """Close the reservation with what was used. Where the ledger is lost, it is told later."""
        if ticket.ledger is not None:
            with self._losing(ticket):
                work = ticket.ledger.settle(ticket.request_id, Amounts(tokens, cost))
                ticket.standing = await self._timed("settle", work) or ticket.standing
                ticket.ledger = None

    def record(self, job: Job, resources: Resources, cost: Cost) -> None:
        """Add the request to the usage totals."""
        self._ledger.record(
            UsageEntry(
                team=job.caller.team,
                app=job.caller.app,
                user=job.ask.user or "",
                model=job.model_ref.name,
                prompt_tokens=resources.prompt_tokens or 0,
                cached_tokens=resources.cached_tokens or 0,
                output_tokens=resources.output_tokens or 0,
                kv_byte_seconds=resources.kv_byte_seconds or 0.0,
                cost=cost.total,
            )
        )

    async def close(self) -> None:
        """Write what is pending."""
        await self._ledger.close()
        await self._local.close()

    async def _reserve(self, claim: Claim) -> Standing:
        if time.monotonic() < self._lost_until:
            raise LedgerLost(self._loss or "the ledger was lost a moment ago")
        standing = await _refusing(self._ledger.reserve(claim))
        if self._loss is not None:
            self._loss = None
            self._metrics.set_store_state("ok")
        return standing

    async def _without_store(self, job: Job, claim: Claim, lost: LedgerLost) -> Ticket:
        """What the policy says for this case."""
        mode = job.effective.policy.limits.on_store_loss
        self._lose(lost, mode)
        match mode:
            case "closed":
                raise StoreUnavailable("the ledger cannot be reached, so limits cannot be kept", retry_after_s=5.0)
            case "local_share":
                standing = await _refusing(self._local.reserve(claim))
                return Ticket(job.request_id, self._local, "local_share", standing)
            case "open":
                return Ticket(job.request_id, store="open")

    def _lose(self, lost: LedgerLost, mode: str) -> None:
        if time.monotonic() >= self._lost_until:
            self._lost_until = time.monotonic() + LOST_PAUSE_S
        self._loss = str(lost)
        self._metrics.set_store_state(mode)

    @contextmanager
    def _losing(self, ticket: Ticket) -> Iterator[None]:
        """A ledger that is lost under a running request does not end it."""
        try:
            yield
        except LedgerLost as lost:
            self._lose(lost, ticket.on_loss)

    async def _timed(self, step: str, work: Awaitable[Standing]) -> Standing:
        started = time.perf_counter()
        try:
            return await work
        finally:
            self._metrics.admission.labels(step).observe(time.perf_counter() - started)


def limits_of(job: Job) -> list[Limit]:
    """All limits of a request: its team's and, where the app has others, its app's. Accounts are kept by stage."""
    caller, own = job.caller, job.effective.policy.limits
    limits = list(_limits(f"team {caller.team} ({caller.stage})", job.team_limits))
    if own != job.team_limits:
        limits += _limits(f"app {caller.team}/{caller.app} ({caller.stage})", own)
    return limits


def _limits(scope: str, limits: Limits) -> Iterator[Limit]:
    zone = limits.quota.time_zone
    if limits.rate.requests_per_minute is not None:
        yield Limit(scope, "requests_per_minute", limits.rate.requests_per_minute)
    if limits.rate.tokens_per_minute is not None:
        yield Limit(scope, "tokens_per_minute", limits.rate.tokens_per_minute)
    if limits.quota.tokens_per_day is not None:
        yield Limit(scope, "tokens_per_day", limits.quota.tokens_per_day, zone)
    if limits.quota.cost_per_month is not None:
        yield Limit(scope, "cost_per_month", limits.quota.cost_per_month, zone)
    if limits.concurrency.requests is not None:
        yield Limit(scope, "concurrency", limits.concurrency.requests)


def _claim(job: Job, limits: Sequence[Limit], body_bytes: int, *, run: bool) -> Claim:
    """The bounds before the plan: at worst every byte a token, and all the output that may be granted.

    At least one prompt token is run, and the plan leaves room for the reserved output.
    """
    prices = job.effective.policy.prices
    total_s = job.phases.total
    prompt = min(job.planning.max_prompt_tokens, body_bytes + TEMPLATE_TOKENS)
    output = job.most_output_tokens
    least = min(output, job.planning.reserve_output_tokens)
    nothing = Amounts()
    return Claim(
        request_id=job.request_id,
        limits=limits,
        least=Amounts(1 + least, most_cost(prices, 1, least)) if run else nothing,
        most=Amounts(prompt + output, most_cost(prices, prompt, output)) if run else nothing,
        lifetime_s=LIFETIME_WITHOUT_TOTAL_S if total_s is None else total_s + LIFETIME_MARGIN_S,
    )


async def _refusing(work: Awaitable[Standing]) -> Standing:
    """The ledger's refusal as the client is to read it."""
    try:
        return await work
    except LimitExceeded as exceeded:
        raise refusal(exceeded) from None

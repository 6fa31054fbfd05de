"""The engine's part of an exchange: submit, hand the text on, and come back with the one finish."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

from budget.types import Plan
from engine.errors import RequestRejected
from engine.request import Event, Finish, Phase
from gateway.client import Client
from gateway.errors import ClientGone, EngineFailed, Stopping
from gateway.exchange import Exchange
from gateway.job import Job
from gateway.phases import LATE_S, Phases
from gateway.reply import Reply

DRAIN_S = 5.0
"""How long the finish of a cancelled request, and with it its usage, is waited for."""


async def generate(job: Job, plan: Plan, exchange: Exchange, client: Client, reply: Reply) -> None:
    """Run the plan and stream its text to `reply`; `exchange.finish` is then set.

    A client that leaves has its request cancelled at once, wherever the request is; so has one that does not read.

    Raises:
        GatewayError, EngineError: it ended in any way but `stop` and `length`.
    """
    engine = job.model.engine
    client.on_gone(lambda: engine.cancel(job.request_id))
    events = engine.submit(job.engine_request(plan))
    try:
        exchange.finish = await _relay(events, job, exchange, reply)
    except BaseException:
        engine.cancel(job.request_id)
        exchange.finish = await _drain(events)
        raise
    if (error := _error_of(exchange.finish, job.phases, gone=client.gone.done())) is not None:
        raise error


async def _relay(events: AsyncIterator[Event], job: Job, exchange: Exchange, reply: Reply) -> Finish:
    """Every event in turn, within a time in which a working engine has ended the request by itself."""
    phase: Phase = "first_token"
    try:
        async with asyncio.timeout(_seconds_left(job, "first_token", "total")) as limit:
            async for event in events:
                if isinstance(event, Finish):
                    return event
                if exchange.first_token_at is None:
                    exchange.first_token_at, phase = time.monotonic(), "total"
                    left = _seconds_left(job, "total")
                    limit.reschedule(None if left is None else asyncio.get_running_loop().time() + left)
                exchange.num_output_tokens += len(event.token_ids)
                await reply.text(exchange, event.text)
    except TimeoutError:
        raise job.phases.error(phase) from None
    raise EngineFailed("the engine ended this request without saying how")


async def _drain(events: AsyncIterator[Event]) -> Finish | None:
    """The finish of a request that was cancelled; None if the engine does not come to it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            async for event in events:
                if isinstance(event, Finish):
                    return event
    return None


def _seconds_left(job: Job, *phases: Phase) -> float | None:
    bound = job.phases.nearest(*phases)
    return None if bound is None else job.arrival + bound + LATE_S - time.monotonic()


def _error_of(finish: Finish, phases: Phases, *, gone: bool) -> Exception | None:
    """What the client is told where the answer is not complete."""
    match finish.reason:
        case "stop" | "length":
            return None
        case "cancelled":
            return ClientGone("the client hung up") if gone else Stopping()
        case "timeout":
            return phases.error(finish.phase or "total")
        case "rejected":
            return RequestRejected(finish.message or "the engine takes no more requests now", finish.retry_after_s)
        case "failed":
            return EngineFailed("the engine failed while it generated; its log names the request id")

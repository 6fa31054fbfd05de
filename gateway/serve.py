"""One chat request, top to bottom: who, what policy, how much, the plan, the answer, the bill."""

import asyncio

from gateway.auth import authenticate
from gateway.body import check_headers, decode_chat
from gateway.client import Client
from gateway.conclude import conclude
from gateway.errors import Stopping
from gateway.exchange import Exchange
from gateway.generate import generate
from gateway.job import Job, effective_policy, make_job
from gateway.reply import JsonReply, PlanReply, Reply
from gateway.services import Services
from gateway.stream import StreamReply


async def serve(services: Services, client: Client, *, run: bool = True) -> None:
    """Serve `POST /v1/chat/completions`, or with `run` False `POST /v1/budget/plan`.

    Whatever happens on the way, the reservation is settled, the report made, and one line logged.
    """
    exchange = Exchange()
    reply: Reply = JsonReply(client)
    try:
        policies = services.policies.current()
        exchange.caller = caller = authenticate(client.headers, policies, services.clock())
        exchange.effective = effective_policy(policies, caller)
        limits, client.idle_s = exchange.effective.policy.limits, exchange.effective.policy.timeouts.stream_idle
        check_headers(client.headers)
        body = await client.read_body(limits.request.max_bytes)
        ask = decode_chat(body, limits.request)
        name, model = services.choose(ask.model, caller)
        exchange.job = job = make_job(exchange.request_id, exchange.arrival, caller, policies, name, model, ask)
        reply = _reply_to(client, exchange, job, run=run)
        client.watch()
        exchange.ticket = await services.admission.reserve(job, len(body), run=run)
        exchange.plan, exchange.plan_ms = await services.planner.plan(job, client)
        if run:
            await services.admission.resize(exchange.ticket, job, exchange.plan)
            await generate(job, exchange.plan, exchange, client, reply)
    except Exception as error:
        exchange.error = error
    except asyncio.CancelledError:  # by the server, once its time for stopping is over: the client is told, and we end
        exchange.error = Stopping()
    await conclude(services, exchange, client, reply)


def _reply_to(client: Client, exchange: Exchange, job: Job, *, run: bool) -> Reply:
    if not run:
        return PlanReply(client)
    return StreamReply(client, exchange, job) if job.ask.stream else JsonReply(client)

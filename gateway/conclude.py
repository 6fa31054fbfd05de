"""The end of every exchange, however it came: settle, report, answer, measure, log."""

import time

from gateway.client import Client
from gateway.cost import charged_prompt_tokens, cost_of
from gateway.error_table import kind_of
from gateway.errors import ClientGone, ClientStalled
from gateway.exchange import Exchange
from gateway.logs import log
from gateway.metrics import UNKNOWN, Metrics
from gateway.reply import Reply
from gateway.report import make_report, resources_of
from gateway.services import Services


async def conclude(services: Services, exchange: Exchange, client: Client, reply: Reply) -> None:
    """Close the books first, so that the report shows what is left; then answer."""
    exchange.ended_at = time.monotonic()
    await _settle(services, exchange)
    await _answer(exchange, client, reply)
    client.release()
    _measure(services.metrics, exchange, client)
    _log(exchange, client)


async def _settle(services: Services, exchange: Exchange) -> None:
    job, ran = exchange.job, exchange.first_token_at is not None or exchange.finish is not None
    if job is not None and ran:
        exchange.cost = cost_of(job.effective.policy.prices, exchange.usage)
        services.admission.record(job, resources_of(exchange), exchange.cost)
    if exchange.ticket is not None:
        tokens = charged_prompt_tokens(exchange.usage) + exchange.usage.output_tokens
        await services.admission.settle(exchange.ticket, tokens, exchange.cost.total if exchange.cost else 0.0)


async def _answer(exchange: Exchange, client: Client, reply: Reply) -> None:
    """Send what there is to send, to a client that is there to read it."""
    try:
        if not isinstance(exchange.error, ClientGone | ClientStalled):
            await _send(exchange, reply)
    except ClientStalled as stalled:
        exchange.error = stalled
    if isinstance(exchange.error, ClientStalled):
        await client.abort()


async def _send(exchange: Exchange, reply: Reply) -> None:
    try:
        report = make_report(exchange)
        if exchange.error is None:
            await reply.finish(exchange, report)
        else:
            await reply.fail(exchange, exchange.error, report)
    except ClientStalled:
        raise
    except Exception as error:  # the report cannot be made: even then the client is not left waiting
        exchange.error = error
        await reply.fail(exchange, error, None)


def _status(exchange: Exchange, client: Client) -> int:
    """What was sent, or would have been if the client were still there."""
    if isinstance(exchange.error, ClientGone | ClientStalled) or client.status is None:
        return kind_of(exchange.error).status if exchange.error else 200
    return client.status


def _measure(metrics: Metrics, exchange: Exchange, client: Client) -> None:
    team = exchange.caller.team if exchange.caller else UNKNOWN
    model = exchange.job.model_ref.name if exchange.job else UNKNOWN
    usage, plan = exchange.usage, exchange.plan
    metrics.requests.labels(team, model, exchange.outcome, _status(exchange, client)).inc()
    for kind, count in (
        ("prompt_computed", usage.computed_tokens),
        ("prompt_cached", usage.cached_tokens),
        ("output", usage.output_tokens),
        ("planned_away", plan and plan.report.tokens_before - plan.report.tokens_after),
    ):
        metrics.tokens.labels(team, model, kind).inc(max(0, count or 0))
    metrics.cost.labels(team, model).inc(exchange.cost.total if exchange.cost else 0.0)
    for histogram, milliseconds in (
        (metrics.plan, exchange.plan_ms),
        (metrics.queue, usage.queue_ms),
        (metrics.ttft, exchange.ttft_ms),
        (metrics.inter_token, usage.inter_token_p50_ms),
    ):
        if milliseconds is not None:
            histogram.labels(model).observe(milliseconds / 1000)
    if plan is not None and plan.report.ranking.fallback is not None:
        metrics.fallbacks.labels(plan.report.ranking.method).inc()


def _log(exchange: Exchange, client: Client) -> None:
    """One line, without any text or key. Only what nobody expected has a stack trace."""
    caller, job, usage, error = exchange.caller, exchange.job, exchange.usage, exchange.error
    failed = error is not None and kind_of(error).outcome == "failed"
    write = log.error if failed else log.info
    write(
        "request",
        request_id=exchange.request_id,
        team=caller and caller.team,
        app=caller and caller.app,
        stage=caller and caller.stage,
        model=job and job.model_ref.name,
        policy=exchange.effective and exchange.effective.revision,
        outcome=exchange.outcome,
        status=_status(exchange, client),
        code=kind_of(error).code if error else None,
        stream=job and bool(job.ask.stream),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        plan_ms=_ms(exchange.plan_ms),
        queue_ms=_ms(usage.queue_ms),
        ttft_ms=_ms(exchange.ttft_ms),
        total_ms=_ms(exchange.total_ms),
        detail=exchange.finish and exchange.finish.message,
        exc_info=error if failed else None,
    )


def _ms(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 2)

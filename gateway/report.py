"""The budget report of one exchange, at the level of detail that was asked for."""

from collections import Counter
from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from budget.types import DocumentReport, TurnReport
from engine.request import Usage
from gateway.advice import advise
from gateway.exchange import Exchange
from gateway.job import Job
from gateway.ratelimit import remaining_of
from gateway.schemas import BudgetReport, InterToken, LimitsReport, PolicyRef, Resources

STREAM_LIMIT_BYTES = 32 * 1024


def make_report(exchange: Exchange) -> BudgetReport | None:
    """The whole report; None where planning was never done."""
    job, plan = exchange.job, exchange.plan
    if job is None or plan is None:
        return None
    return BudgetReport(
        request_id=exchange.request_id,
        team=job.caller.team,
        app=job.caller.app,
        stage=job.caller.stage,
        outcome=exchange.outcome,
        policy=PolicyRef(name=job.effective.name, revision=job.effective.revision),
        user=job.ask.user,
        model=job.model_ref,
        context=plan.report,
        timings_ms={stage: round(ms, 3) for stage, ms in plan.timings_ms.items()},
        resources=resources_of(exchange) if exchange.finish else None,
        limits=_limits(exchange, job),
        cost=exchange.cost,
        advice=advise(plan.report),
    )


def fit_stream(report: BudgetReport | UnsetType) -> BudgetReport | UnsetType:
    """A stream carries at most 32 KiB of report: what is larger goes as its summary, marked `truncated`."""
    if report is UNSET or len(msgspec.json.encode(report)) <= STREAM_LIMIT_BYTES:
        return report
    return replace(summary_of(report), truncated=True)


def summary_of(report: BudgetReport) -> BudgetReport:
    """The report with counts by fate and reason in place of every passage and turn."""
    context = report.context
    if context is None or context.counts is not None:
        return report
    counts = {"documents": _count(context.documents), "turns": _count(context.turns)}
    return replace(report, context=replace(context, documents=[], turns=[], counts=counts))


def resources_of(exchange: Exchange) -> Resources:
    """The engine's numbers, with TTFT and total as the client saw them. Unknown stays null."""
    usage = exchange.usage
    gaps = (usage.inter_token_p50_ms, usage.inter_token_p95_ms)
    return Resources(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        computed_tokens=usage.computed_tokens,
        recomputed_tokens=usage.recomputed_tokens,
        output_tokens=usage.output_tokens,
        plan_ms=_round(exchange.plan_ms),
        queue_ms=_round(usage.queue_ms),
        prefill_ms=_round(usage.prefill_ms),
        ttft_ms=_round(exchange.ttft_ms),
        predicted_ttft_ms=_round(usage.predicted_ttft_ms),
        decode_ms=_round(usage.decode_ms),
        total_ms=_round(exchange.total_ms),
        inter_token_ms=None if None in gaps else InterToken(p50=round(gaps[0] or 0, 2), p95=round(gaps[1] or 0, 2)),
        output_tokens_per_s=_rate(usage),
        kv_blocks_peak=usage.kv_blocks_peak,
        kv_blocks_shared=usage.kv_blocks_shared,
        kv_bytes_peak=usage.kv_bytes_peak,
        kv_byte_seconds=_round(usage.kv_byte_seconds),
        kv_pool_used_ratio=_round(usage.kv_pool_used_ratio, 4),
        prefill_chunks=usage.prefill_chunks,
        preemptions=usage.preemptions,
        batch_size_mean=_round(usage.batch_size_mean),
    )


def _limits(exchange: Exchange, job: Job) -> LimitsReport:
    ticket = exchange.ticket
    return LimitsReport(
        timeouts_ms=job.phases.report(),
        remaining=remaining_of(ticket.standing if ticket else ()),
        store=ticket.store if ticket else "ok",
    )


def _count(entries: Iterable[DocumentReport | TurnReport]) -> dict[str, int]:
    names = (entry.fate if entry.reason is None else f"{entry.fate}:{entry.reason}" for entry in entries)
    return dict(sorted(Counter(names).items()))


def _rate(usage: Usage) -> float | None:
    """Output tokens a second of decoding."""
    return round(usage.output_tokens / usage.decode_ms * 1000, 2) if usage.decode_ms else None


def _round(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)

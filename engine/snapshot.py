"""The engine's numbers as one `EngineStats`, from any thread while the engine runs."""

from collections.abc import Mapping

from engine.cache import KVCache
from engine.counters import Counters
from engine.request import OTHER_NAMESPACES, OTHER_TEAMS, EngineStats, TeamStats
from engine.running import RunningSet
from engine.steptime import StepTimeModel
from engine.teams import Team

MAX_NAMES = 20
"""Namespaces and teams that are told apart: what is scraped must not grow with the callers."""


def snapshot(
    counters: Counters, running: RunningSet, cache: KVCache, model: StepTimeModel, broken: str | None
) -> EngineStats:
    """Counters and gauges now; `broken` is why the engine is not healthy."""
    pool, waiting = cache.pool, running.waiting
    num_free, num_idle = pool.num_free, pool.num_idle
    return EngineStats(
        ready=broken is None,
        healthy=broken is None,
        num_running=len(running),
        num_waiting=len(waiting),
        waiting_tokens=waiting.num_tokens,
        blocks_total=pool.num_blocks,
        blocks_in_use=pool.num_blocks - num_free - num_idle,
        blocks_idle=num_idle,
        blocks_free=num_free,
        prompt_tokens_total=counters.prompt_tokens,
        cached_tokens_total=counters.cached_tokens,
        output_tokens_total=counters.output_tokens,
        steps_total=counters.num_steps,
        preemptions_total=running.num_preemptions,
        finished_total=dict(counters.finished),
        aborts_total=dict(counters.aborts),
        recomputed_tokens_total=counters.recomputed_tokens,
        cancel_to_free_steps=dict(counters.cancel_to_free_steps),
        step_ms_mean=counters.step_ms_mean,
        step_ms_total=counters.total_s * 1000,
        step_ms_histogram=counters.step_ms_histogram(),
        stalls_total=model.num_stalls,
        ttft_error_ratio=counters.ttft_error_ratio,
        blocks_by_namespace=_largest(cache.blocks_by_namespace()),
        teams=_busiest(running.teams.live()),
        detail=broken,
    )


def _largest(blocks: Mapping[tuple[str, ...], int]) -> dict[tuple[str, ...], int]:
    ordered = sorted(blocks.items(), key=lambda item: (-item[1], item[0]))
    kept, rest = dict(ordered[:MAX_NAMES]), sum(count for _, count in ordered[MAX_NAMES:])
    if rest:
        kept[OTHER_NAMESPACES] = kept.get(OTHER_NAMESPACES, 0) + rest
    return kept


def _busiest(teams: list[Team]) -> dict[str, TeamStats]:
    ordered = sorted(teams, key=lambda team: (-team.num_running - team.num_waiting, team.name))
    kept = {team.name: _standing([team]) for team in ordered[:MAX_NAMES]}
    rest = ordered[MAX_NAMES:]
    if rest:
        kept[OTHER_TEAMS] = _standing([*rest, *(team for team in ordered[:MAX_NAMES] if team.name == OTHER_TEAMS)])
    return kept


def _standing(teams: list[Team]) -> TeamStats:
    return TeamStats(
        num_running=sum(team.num_running for team in teams),
        num_waiting=sum(team.num_waiting for team in teams),
        blocks_promised=sum(team.num_blocks for team in teams),
    )

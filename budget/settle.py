"""Finds the prompt that fits: room for turns, then for passages, then the passages' order; measured as rendered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from budget.assemble import Layout, Measured, Placed, Source, facts_costs, joint_cost
from budget.bounds import history_room, require
from budget.history import History, Turns, select
from budget.job import Job
from budget.order import Ids, cache_aware, edges
from budget.shelf import Chosen, Shelf
from budget.types import CacheOrderReport

_TRIES = 6
"""Layouts measured before all that may go goes; a second is needed where a template's cost is uneven."""


_NEARLY = 8
"""Tokens by which a sum of parts may be over what they take together."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What is in the prompt, and what that takes."""

    history: History
    chosen: Sequence[Chosen]
    measured: Measured
    cache_order: CacheOrderReport | None = None


def settle(job: Job, turns: Turns, before: Measured, bare: Measured, shelf: Shelf) -> Settled:
    """The most useful prompt within the bounds.

    Args:
        job: request, bounds, ports.
        turns: of the conversation.
        before: everything, measured: the cost of each turn.
        bare: what must stay without passages, measured; it fits.
        shelf: the passages.

    Raises:
        ContextLengthExceeded: what must stay, pinned passages included, does not fit.
    """
    floor = Settled(History(turns.must), shelf.fit(0), bare)
    if any(one.units for one in floor.chosen):
        with job.timed("assemble"):
            floor = _ordered(job, floor.history, floor.chosen)
            require(job.bounds, floor.measured.sections, what="what must be kept")
    if (whole := _whole(job, turns, before, floor.measured, shelf)) is not None:
        return whole
    spare = job.bounds.prompt - floor.measured.total - joint_cost(job.request, job.conversation, job.ports.counter)
    documents = job.bounds.of("documents") - floor.measured.sections.get("documents", 0)
    for _ in range(_TRIES):
        with job.timed("history"):
            history = _history(job, turns, before, floor.measured, spare, min(shelf.optional_tokens, documents))
        with job.timed("trim"):
            chosen = shelf.fit(max(min(documents, spare - history.tokens), 0))
        with job.timed("assemble"):
            settled = _cache_ordered(job, _ordered(job, history, chosen))
        over, over_documents = _excess(job, settled)
        if over <= 0 and over_documents <= 0:
            return settled
        spare, documents = spare - max(over, 0), documents - max(over, over_documents, 0)
    return floor


def _whole(job: Job, turns: Turns, before: Measured, floor: Measured, shelf: Shelf) -> Settled | None:
    """All turns and passages, if they fit: sums of parts are only nearly exact, so what may fit is measured."""
    turn_tokens = sum(before.shares.get(i, 0) for i in turns.optional)
    history_tokens = floor.sections.get("history", 0) + sum(
        before.sources.get(Source("turn", i), 0) for i in turns.optional
    )
    total = floor.total + turn_tokens + shelf.optional_tokens
    if total > job.bounds.prompt + _NEARLY or history_tokens > job.bounds.of("history"):
        return None
    with job.timed("trim"):
        chosen = shelf.fit(total)
    with job.timed("assemble"):
        settled = _cache_ordered(job, _ordered(job, History(turns.must | turns.optional), chosen))
    return settled if max(_excess(job, settled)) <= 0 else None


def _excess(job: Job, settled: Settled) -> tuple[int, int]:
    """Tokens over the prompt's bound and over the passages'; 0 or less where they fit."""
    sections = settled.measured.sections
    return settled.measured.total - job.bounds.prompt, sections.get("documents", 0) - job.bounds.of("documents")


def _history(job: Job, turns: Turns, before: Measured, floor: Measured, spare: int, documents: int) -> History:
    fact_cost, facts_frame = facts_costs(job.conversation, job.ports.counter)
    return select(
        turns,
        policy=job.request.context.sections.history,
        costs=before.shares,
        room=max(history_room(job.request, spare, documents), 0),
        turns_room=max(job.bounds.of("history") - floor.sections.get("history", 0), 0),
        facts_room=job.bounds.of("facts"),
        fact_cost=fact_cost,
        facts_frame=facts_frame,
    )


def surely_kept(job: Job, turns: Turns, before: Measured, floor: Measured) -> frozenset[int]:
    """Turns that stay whatever the passages turn out to want: those that a passage need not repeat."""
    wanted = min(before.sections.get("documents", 0), job.bounds.of("documents"))
    spare = job.bounds.prompt - floor.total - joint_cost(job.request, job.conversation, job.ports.counter)
    return _history(job, turns, before, floor, spare, wanted).kept


def _ordered(job: Job, history: History, chosen: Sequence[Chosen]) -> Settled:
    """The prompt with its passages in the order asked for. `chosen` is in order of relevance."""
    kept = [n for n, one in enumerate(chosen) if one.units]
    if job.request.order == "edges":
        kept = [kept[at] for at in edges(len(kept))]
    measured = job.measure(_layout(job, history, [chosen[n] for n in kept]))
    return Settled(history, _positioned(chosen, kept), measured)


def _cache_ordered(job: Job, relevance: Settled) -> Settled:
    """The same with its passages where more of the prefix is in KV, if the policy asks for that and the probe tells."""
    probe, chosen = job.ports.probe, relevance.chosen
    kept = [n for n, one in enumerate(chosen) if one.units]
    if job.request.order != "cache_aware" or probe is None or not kept:
        return relevance
    start = next(n for n, segment in enumerate(relevance.measured.segments) if segment.section == "documents")
    order = cache_aware(
        len(kept),
        _passage_ids(job, [chosen[n].text for n in kept], relevance.measured.segments[start].text),
        prefix=job.ids(relevance.measured.segments[:start]),
        probe=probe,
        max_displacement=job.request.context.max_displacement,
    )
    hits = probe(job.ids(relevance.measured.segments))
    if order is None or hits is None:
        return relevance
    moved = [kept[rank] for rank in order]
    measured = job.measure(_layout(job, relevance.history, [chosen[n] for n in moved]))
    expected = probe(job.ids(measured.segments)) or 0
    if expected <= hits:
        return replace(relevance, cache_order=CacheOrderReport(expected_hit_tokens=hits, relevance_hit_tokens=hits))
    report = CacheOrderReport(expected_hit_tokens=expected, relevance_hit_tokens=hits)
    return Settled(relevance.history, _positioned(chosen, moved, kept), measured, report)


def _passage_ids(job: Job, texts: Sequence[str], first_segment: str) -> Ids:
    """Ids of passages with the separators that they have at the front, as `first_segment` shows it, and behind."""
    counter, separator = job.ports.counter, job.request.context.render.separator
    bare_first = not first_segment.startswith(separator)

    def ids(rank: int, first: bool) -> Sequence[int]:
        if counter.separator_side == "trailing":
            return counter.encode(texts[rank] + separator)
        return counter.encode(texts[rank] if first and bare_first else separator + texts[rank])

    return ids


def _layout(job: Job, history: History, kept: Sequence[Chosen]) -> Layout:
    return Layout(history.kept, history.facts, [Placed(one.index, one.text) for one in kept])


def _positioned(chosen: Sequence[Chosen], order: Sequence[int], ranked: Sequence[int] = ()) -> list[Chosen]:
    """Each passage with its place in the prompt, and how far that is from where relevance alone would have it."""
    position = {n: at for at, n in enumerate(order)}
    home = {n: at for at, n in enumerate(ranked)}
    return [
        replace(one, position=position.get(n), moved=position[n] - home[n] if n in home else 0)
        for n, one in enumerate(chosen)
    ]

"""Finds the prompt that fits: room for turns, then for passages, then the passages' order; measured as rendered."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from budget.assemble import Layout, Measured, Placed, facts_costs, joint_cost
from budget.bounds import history_room
from budget.history import History, Turns, select
from budget.job import Job
from budget.order import cache_aware, edges
from budget.shelf import Chosen, Shelf
from budget.types import CacheOrderReport

_TRIES = 6
"""Layouts measured before all that may go goes; a second is needed where a template's cost is uneven."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What is in the prompt, and what that takes."""

    history: History
    chosen: Sequence[Chosen]
    measured: Measured
    cache_order: CacheOrderReport | None = None


def settle(job: Job, turns: Turns, before: Measured, floor: Measured, shelf: Shelf) -> Settled:
    """The most useful prompt within the bounds.

    Args:
        job: request, bounds, ports.
        turns: of the conversation.
        before: everything, measured: the cost of each turn.
        floor: what must stay (passages aside), measured; it fits.
        shelf: the passages; the pinned ones fit too.
    """
    spare = job.bounds.prompt - floor.total - shelf.pinned_tokens
    documents = job.bounds.of("documents") - shelf.pinned_tokens
    if shelf.passages or turns.facts:
        spare -= joint_cost(job.request, job.conversation, job.ports.counter)
    for _ in range(_TRIES):
        with job.timed("history"):
            history = _history(job, turns, before, floor, spare, min(shelf.optional_tokens, documents))
        with job.timed("trim"):
            chosen = shelf.fit(max(min(documents, spare - history.tokens), 0))
        with job.timed("assemble"):
            settled = _ordered(job, history, chosen)
        over = settled.measured.total - job.bounds.prompt
        over_documents = settled.measured.sections.get("documents", 0) - job.bounds.of("documents")
        if over <= 0 and over_documents <= 0:
            return settled
        spare, documents = spare - max(over, 0), documents - max(over, over_documents, 0)
    return _ordered(job, History(turns.must), shelf.fit(0))


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


def _ordered(job: Job, history: History, chosen: list[Chosen]) -> Settled:
    """The prompt with its passages in the order asked for. `chosen` is in order of relevance."""
    kept = [n for n, one in enumerate(chosen) if one.units]
    if job.request.order == "edges":
        kept = [kept[at] for at in edges(len(kept))]
    measured = job.measure(_layout(job, history, [chosen[n] for n in kept]))
    settled = Settled(history, _positioned(chosen, kept), measured)
    if job.request.order == "cache_aware" and kept and job.ports.probe is not None:
        return _cache_ordered(job, settled, kept)
    return settled


def _cache_ordered(job: Job, relevance: Settled, kept: list[int]) -> Settled:
    assert job.ports.probe is not None
    separator = job.request.context.render.separator
    leads = job.ports.counter.separator_side == "leading"
    texts = [placed.text for placed in _layout(job, relevance.history, [relevance.chosen[n] for n in kept]).documents]
    segments = relevance.measured.segments
    start = next(at for at, segment in enumerate(segments) if segment.section == "documents")
    bare_first = not segments[start].text.startswith(separator)

    def ids(rank: int, first: bool) -> Sequence[int]:
        if leads:
            return job.ports.counter.encode(texts[rank] if first and bare_first else separator + texts[rank])
        return job.ports.counter.encode(texts[rank] + separator)

    order = cache_aware(
        len(kept),
        ids,
        prefix=job.ids(segments[:start]),
        probe=job.ports.probe,
        max_displacement=job.request.context.max_displacement,
    )
    hits = job.ports.probe(job.ids(segments))
    if order is None or hits is None:
        return relevance
    moved = [kept[rank] for rank in order]
    layout = _layout(job, relevance.history, [relevance.chosen[n] for n in moved])
    measured = relevance.measured if moved == kept else job.measure(layout)
    expected = job.ports.probe(job.ids(measured.segments)) or 0
    if expected <= hits:
        return replace(relevance, cache_order=CacheOrderReport(expected_hit_tokens=hits, relevance_hit_tokens=hits))
    report = CacheOrderReport(expected_hit_tokens=expected, relevance_hit_tokens=hits)
    return Settled(relevance.history, _positioned(relevance.chosen, moved, kept), measured, report)


def _layout(job: Job, history: History, kept: Sequence[Chosen]) -> Layout:
    shelf_text = [Placed(one.passage.candidate.index, one.text) for one in kept]
    return Layout(history.kept, history.facts, shelf_text)


def _positioned(chosen: Sequence[Chosen], order: Sequence[int], ranked: Sequence[int] = ()) -> list[Chosen]:
    """Each passage with its place in the prompt, and how far that is from where relevance alone would have it."""
    position = {n: at for at, n in enumerate(order)}
    home = {n: at for at, n in enumerate(ranked)}
    return [
        replace(one, position=position.get(n), moved=position[n] - home[n] if n in home else 0)
        for n, one in enumerate(chosen)
    ]

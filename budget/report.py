"""What happened to each section, passage and turn; every input passage and turn once, with one fate and reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from budget.assemble import Measured, Source
from budget.bounds import Bounds
from budget.dedupe import Deduped
from budget.history import History, Turns
from budget.shelf import Chosen
from budget.types import (
    CacheOrderReport,
    ContextReport,
    DocumentFate,
    DocumentReason,
    DocumentReport,
    PlanRequest,
    RankingReport,
    SectionName,
    SectionReport,
    TurnFate,
    TurnReason,
    TurnReport,
)

_SECTIONS: tuple[SectionName, ...] = (
    "system", "tools", "facts", "summary", "history", "documents", "question", "template",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decisions:
    """All that the report needs besides counts. No `turns`: the messages were passed through."""

    turns: Turns
    history: History
    chosen: Sequence[Chosen] = ()
    deduped: Deduped = field(default_factory=lambda: Deduped([], {}))
    ranking: RankingReport = field(default_factory=lambda: RankingReport(method="none"))
    cache_order: CacheOrderReport | None = None


def make_report(
    request: PlanRequest,
    bounds: Bounds,
    decisions: Decisions,
    before: Measured,
    after: Measured,
    count_method: Literal["exact", "estimated"],
) -> ContextReport:
    """The `context` object of the budget report."""
    return ContextReport(
        max_prompt_tokens=request.max_prompt_tokens,
        max_document_tokens=request.max_document_tokens,
        requested_output_tokens=request.requested_output_tokens,
        granted_output_tokens=granted_output(request, after.total),
        tokens_before=before.total,
        tokens_after=after.total,
        count_method=count_method,
        sections=[
            SectionReport(
                name=name,
                tokens_before=before.sections.get(name, 0),
                tokens_after=after.sections.get(name, 0),
                limit_tokens=bounds.sections.get(name),
            )
            for name in _SECTIONS
        ],
        documents=_documents(request, decisions, before, after),
        turns=[_turn(i, request, decisions, before, after) for i in range(len(request.messages))],
        ranking=decisions.ranking,
        cache_order=decisions.cache_order,
    )


def granted_output(request: PlanRequest, prompt_tokens: int) -> int:
    """Tokens that the answer may take: what was asked, what is allowed, what the context holds; at least one."""
    room = request.max_context_tokens - prompt_tokens
    wanted = [n for n in (request.requested_output_tokens, request.max_output_tokens) if n is not None]
    return max(min([room, *wanted]), 1)


def _documents(request: PlanRequest, decisions: Decisions, before: Measured, after: Measured) -> list[DocumentReport]:
    passages = {piece.document: one for one in decisions.chosen for piece in one.passage.candidate.pieces}
    found = []
    for document in request.documents:
        passage = passages.get(document.index)
        fate, reason, of = _fate(document.index, passage, decisions.deduped)
        own = passage if passage is not None and passage.index == document.index else None
        found.append(
            DocumentReport(
                index=document.index,
                id=document.id,
                fate=fate,
                reason=reason,
                of=of,
                tokens_before=before.sources.get(Source("document", document.index), 0),
                tokens_after=after.sources.get(Source("document", document.index), 0),
                score=own.score if own else None,
                rank=own.rank if own else None,
                position=own.position if own else None,
                moved_for_cache=own.moved if own else 0,
                kept_spans=passage.spans.get(document.index, []) if passage else [],
            )
        )
    return found


def _fate(
    index: int, passage: Chosen | None, deduped: Deduped
) -> tuple[DocumentFate, DocumentReason | None, int | None]:
    """What became of a document; `passage` is the one that its text is part of, if dedupe left one."""
    reason, of = deduped.dropped.get(index, (None, None))
    if passage is None:
        return "dropped", "semantic_duplicate" if reason == "overlap_merged" else reason or "empty", of
    of = passage.index if passage.index != index else None
    if index not in passage.spans:
        return "dropped", passage.reason if not passage.units else "over_budget", of
    if of is not None:
        return "merged", "overlap_merged", of
    return ("trimmed", passage.reason, None) if passage.reason else ("kept", None, None)


def _turn(index: int, request: PlanRequest, decisions: Decisions, before: Measured, after: Measured) -> TurnReport:
    fate, reason = _turn_fate(index, request, decisions)
    return TurnReport(
        index=index,
        role=request.messages[index].role,
        class_=decisions.turns.classes[index],
        fate=fate,
        reason=reason,
        tokens_before=before.sources.get(Source("turn", index), 0),
        tokens_after=after.sources.get(Source("fact" if fate == "extracted" else "turn", index), 0),
    )


def _turn_fate(index: int, request: PlanRequest, decisions: Decisions) -> tuple[TurnFate, TurnReason | None]:
    turns, policy = decisions.turns, request.context.sections.history
    if index in decisions.history.kept:
        if index in turns.pinned:
            return "kept", "pinned"
        return "kept", "recent" if index in turns.recent else None
    if index not in turns.optional:
        return "dropped", "empty"
    if any(fact.turn == index for fact in decisions.history.facts):
        return "extracted", None
    if turns.classes[index] == "small_talk" and policy.drop_small_talk:
        return "dropped", "small_talk"
    own = [fact for fact in turns.facts if fact.turn == index]
    return "dropped", "superseded" if own and all(fact.superseded for fact in own) else "over_budget"

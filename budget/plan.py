"""The planner: dedupe, rank, history, trim, assemble; a request in, a prompt and its report out."""

import re
from collections.abc import Sequence
from dataclasses import replace

from budget.assemble import Layout, Measured
from budget.bounds import read_bounds, require
from budget.conversation import read_conversation
from budget.dedupe import Candidate, dedupe
from budget.extract import extract_documents
from budget.history import History, Turns, read_turns
from budget.job import Job
from budget.passages import labels
from budget.ports import Ports
from budget.report import Decisions, make_report
from budget.settle import settle, surely_kept
from budget.shelf import Chosen, Shelf, stock
from budget.trim import split
from budget.types import Plan, PlanRequest, RankingReport
from budget.windows import Piece

_SURROGATE = re.compile("[\ud800-\udfff]")


def plan(request: PlanRequest, ports: Ports) -> Plan:
    """Decides what the model gets to read.

    The same request, policy and probe answer give the same plan, and no plan exceeds its bounds.

    Args:
        request: conversation, passages, policy and bounds. Lone surrogates count as U+FFFD.
        ports: the serving model's counter and renderer, and what helps to rank and order.

    Raises:
        ContextLengthExceeded: what must be kept does not fit.
        InvalidConversation: no messages, tool calls and results that do not match, or a template that refuses.
    """
    request = extract_documents(_clean(request))
    conversation = read_conversation(request.messages)
    names = dict(zip((d.index for d in request.documents), labels(request.documents), strict=True))
    job = Job(request, ports, conversation, read_bounds(request), names)
    with job.timed("history"):
        turns = read_turns(conversation, request.context.sections.history)
    with job.timed("assemble"):
        before = job.measure(job.everything())
    if request.context.planning == "off":
        return _passed_through(job, turns, before)
    if request.context.overflow == "reject":
        require(job.bounds, before.sections, what="all of it, since the policy forbids trimming (overflow: reject)")
    return _planned(job, turns, before)


def _planned(job: Job, turns: Turns, before: Measured) -> Plan:
    with job.timed("assemble"):
        bare = job.measure(Layout(turns.must))
        require(job.bounds, bare.sections, what="what must be kept")
    with job.timed("dedupe"):
        shown = [job.request.messages[i].content for i in sorted(surely_kept(job, turns, before, bare))]
        policy = job.request.context.dedupe
        deduped = dedupe(job.request.documents, policy, history=shown, embedder=job.ports.embedder)
    with job.timed("rank"):
        shelf = _stock(job, deduped.candidates)
    settled = settle(job, turns, before, bare, shelf)
    method = shelf.ranking.method if shelf.passages else "none"
    ranking = RankingReport(method=method, fallback=shelf.ranking.fallback)
    decisions = Decisions(turns, settled.history, settled.chosen, deduped, ranking, settled.cache_order)
    return _finished(job, decisions, before, settled.measured)


def _passed_through(job: Job, turns: Turns, before: Measured) -> Plan:
    """All of it as it came, with nothing left out or reordered."""
    require(job.bounds, before.sections, what="all of it, since planning is off")
    chosen = []
    for position, (document, placed) in enumerate(zip(job.request.documents, job.everything().documents, strict=True)):
        piece = Piece(document.index, 0, len(document.text))
        candidate = Candidate(document.index, document.text, (piece,), document.score, document.pinned)
        passage = split(candidate, job.labels[document.index], document.title or "", whole=True)
        chosen.append(Chosen(passage, passage.everything, placed.text, document.score, position=position))
    kept = History(frozenset(range(len(job.request.messages))))
    return _finished(job, Decisions(turns, kept, chosen), before, before)


def _stock(job: Job, candidates: Sequence[Candidate]) -> Shelf:
    question = job.conversation.question
    query = "" if question is None else job.request.messages[question].content
    context = job.request.messages[: question or 0]
    return stock(job.request, job.ports, candidates, job.labels, query=query, context=context)


def _finished(job: Job, decisions: Decisions, before: Measured, after: Measured) -> Plan:
    with job.timed("assemble"):
        ids = job.ids(after.segments)
    report = make_report(job.request, job.bounds, decisions, before, after, job.ports.counter.method)
    messages = tuple(one.message for one in after.laid)
    return Plan(after.segments, ids, messages, report, job.timings_ms)


def _clean(request: PlanRequest) -> PlanRequest:
    """The request with U+FFFD for each lone surrogate, which no tokenizer takes; offsets stay."""

    def clean(text: str) -> str:
        return text if text.isascii() else _SURROGATE.sub("\ufffd", text)

    messages = [replace(m, content=clean(m.content)) for m in request.messages]
    documents = [
        replace(d, text=clean(d.text), title=d.title and clean(d.title), id=d.id and clean(d.id))
        for d in request.documents
    ]
    return replace(request, messages=messages, documents=documents)

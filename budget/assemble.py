"""From what is kept to prompt messages, segments and token ids; and which tokens belong to what.

Stable parts come first: system, tools, then (by placement) documents, earlier turns, facts, the question.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from budget.conversation import Conversation
from budget.facts import Fact
from budget.passages import attach
from budget.ports import Ports, TokenCounter
from budget.text import is_cjk
from budget.tokens import SegmentEncoder
from budget.types import Part, PlanRequest, PromptMessage, SectionName, Segment

TURN_SEPARATOR = "\n\n"
_FACTS_HEADER = {False: "The user said earlier:", True: "用户先前说过："}
_FACT_LINE = "\n- "


class Source(NamedTuple):
    """What a part of the prompt stems from: a message or a passage by its index, a fact by its turn."""

    kind: Literal["turn", "document", "fact", "facts_header"]
    ref: int


class Placed(NamedTuple):
    """A passage as rendered, separators aside; `ref` is its index in the input."""

    ref: int
    text: str


@dataclass(frozen=True, slots=True)
class Layout:
    """What goes into the prompt. `as_sent` leaves system messages where they stood."""

    turns: frozenset[int]
    facts: Sequence[Fact] = ()
    documents: Sequence[Placed] = ()
    as_sent: bool = False


@dataclass(frozen=True, slots=True)
class Laid:
    """A prompt message, and the source of each of its parts."""

    message: PromptMessage
    sources: tuple[Source, ...]
    index: int | None
    """Of the input message; None for one that only holds passages."""


class _Piece(NamedTuple):
    separator: str
    text: str
    section: SectionName
    source: Source


def lay_out(request: PlanRequest, conversation: Conversation, layout: Layout, ports: Ports) -> list[Laid]:
    """The prompt's messages: system texts first, then the kept turns in order."""
    side = ports.counter.separator_side
    order = sorted(layout.turns, key=lambda i: (not layout.as_sent and i not in conversation.system, i))
    host = _host(request, conversation)
    documents = _documents(request, layout)
    laid = [_message(request, None, documents, side)] if documents and host is None else []
    for index in order:
        pieces = [_turn(request, conversation, index)]
        if index == conversation.question:
            pieces = [*_facts(request, layout, request.messages[index].content), *pieces]
        if index == host and documents:
            if index in conversation.system:
                pieces += documents
            else:
                first = pieces[0]._replace(separator=request.context.render.separator)
                pieces = [*documents, first, *pieces[1:]]
        laid.append(_message(request, index, pieces, side))
    return laid


def _host(request: PlanRequest, conversation: Conversation) -> int | None:
    """The message that holds the passages; None if they need one of their own."""
    in_system = request.context.sections.documents.placement == "system" or conversation.question is None
    if in_system:
        return conversation.system[-1] if conversation.system else None
    return conversation.question


def _message(
    request: PlanRequest, index: int | None, pieces: Sequence[_Piece], side: Literal["leading", "trailing"]
) -> Laid:
    pieces = [piece for piece in pieces if piece.text]
    texts = attach([(piece.separator, piece.text) for piece in pieces], side)
    parts = tuple(Part(text, piece.section) for text, piece in zip(texts, pieces, strict=True))
    message = PromptMessage("system", parts)
    if index is not None:
        own = request.messages[index]
        message = PromptMessage(own.role, parts, own.tool_calls, own.tool_call_id)
    return Laid(message, tuple(piece.source for piece in pieces), index)


def _turn(request: PlanRequest, conversation: Conversation, index: int) -> _Piece:
    section: SectionName = "history"
    if index in conversation.system:
        section = "system"
    elif index == conversation.question:
        section = "question"
    return _Piece(TURN_SEPARATOR, request.messages[index].content, section, Source("turn", index))


def _documents(request: PlanRequest, layout: Layout) -> list[_Piece]:
    separator = request.context.render.separator
    return [_Piece(separator, d.text, "documents", Source("document", d.ref)) for d in layout.documents]


def _facts(request: PlanRequest, layout: Layout, question: str) -> list[_Piece]:
    if not layout.facts:
        return []
    header = _Piece(TURN_SEPARATOR, _FACTS_HEADER[is_cjk(question)], "facts", Source("facts_header", 0))
    lines = [_Piece(_FACT_LINE, fact.text, "facts", Source("fact", fact.turn)) for fact in layout.facts]
    return [header, *lines]


def facts_costs(conversation: Conversation, counter: TokenCounter) -> tuple[Callable[[Fact], int], int]:
    """At most how many tokens a fact takes, and how many the line above the facts; separators included."""
    index = conversation.question
    header = _FACTS_HEADER[is_cjk(conversation.messages[index].content if index is not None else "")]
    if counter.separator_side == "leading":
        return lambda fact: counter.count(_FACT_LINE + fact.text), counter.count(TURN_SEPARATOR + header)
    ends = (_FACT_LINE, TURN_SEPARATOR)
    return lambda fact: max(counter.count(fact.text + end) for end in ends), counter.count(header + _FACT_LINE)


def joint_cost(request: PlanRequest, conversation: Conversation, counter: TokenCounter) -> int:
    """Tokens that the first passage or fact adds to the message that holds it, beside its own."""
    separators = (request.context.render.separator, TURN_SEPARATOR)
    held = [i for i in (conversation.question, *conversation.system[-1:]) if i is not None]
    if counter.separator_side == "leading":
        held = [i for i in held if i == conversation.question]
    texts = [request.messages[i].content for i in held]
    return sum(
        max(counter.count(s + t if counter.separator_side == "leading" else t + s) for s in separators)
        - counter.count(t)
        for t in texts
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens of a rendered prompt, by section and by source.

    `shares` are the tokens of each input message with the template text before it: what leaving it out saves.
    """

    laid: Sequence[Laid]
    segments: tuple[Segment, ...]
    total: int
    sections: Mapping[SectionName, int]
    sources: Mapping[Source, int]
    shares: Mapping[int, int]


def measure(laid: Sequence[Laid], request: PlanRequest, ports: Ports, encoder: SegmentEncoder) -> Measured:
    """Renders messages and counts what comes out, segment by segment.

    Raises:
        InvalidConversation: the chat template refuses these messages.
    """
    segments = tuple(ports.renderer.render([one.message for one in laid], request.tools))
    sections: Counter[SectionName] = Counter()
    sources: Counter[Source] = Counter()
    shares: Counter[int] = Counter()
    for segment, (at, source) in zip(segments, _origins(segments, laid), strict=True):
        tokens = encoder.count(segment)
        sections[segment.section] += tokens
        if source is not None:
            sources[source] += tokens
        if at < len(laid) and (index := laid[at].index) is not None:
            shares[index] += tokens
    return Measured(laid, segments, sum(sections.values()), sections, sources, shares)


def _origins(segments: Sequence[Segment], laid: Sequence[Laid]) -> list[tuple[int, Source | None]]:
    """For each segment the message it belongs to, by position, and its source if it is caller text.

    Parts come out in order, each as one segment (less outer white space, if the template trims). Caller text that is
    no part is a tool call's. Template text belongs to the message that it leads in.
    """
    parts = [(at, part.text.strip(), source) for at, one in enumerate(laid)
             for part, source in zip(one.message.parts, one.sources, strict=True)]  # fmt: skip
    calls = [at for at, one in enumerate(laid) if one.message.tool_calls]
    found: list[tuple[int, Source | None]] = []
    next_part = waiting = 0
    for position, segment in enumerate(segments):
        if segment.control or segment.section in ("template", "tools"):
            continue
        text = segment.text.strip()
        match = next((n for n in range(next_part, min(next_part + 8, len(parts))) if parts[n][1] == text), None)
        if match is not None:
            at, _, found_source = parts[match]
            source: Source | None = found_source
            next_part = match + 1
        else:
            last = parts[next_part - 1][0] if next_part else -1
            until = parts[next_part][0] if next_part < len(parts) else len(laid) - 1
            at = next((c for c in calls if last <= c <= until), max(last, 0))
            index = laid[at].index
            source = None if index is None else Source("turn", index)
        found += [(at, None)] * (position - waiting)
        found.append((at, source))
        waiting = position + 1
    return found + [(len(laid), None)] * (len(segments) - waiting)

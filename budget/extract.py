"""Passages that an app pasted into a message, taken out and governed like those it sends as `documents`."""

from collections.abc import Sequence
from dataclasses import replace

from budget.pasted import Pasted
from budget.patterns import find_pasted
from budget.types import Document, Message, PlanRequest


def extract_documents(request: PlanRequest) -> PlanRequest:
    """The request with pasted passages as documents, behind its own, and messages that keep the rest of their text.

    Looked at are the system messages and the last user message, pinned ones aside: earlier turns are history, and what
    is pinned stays as it is. A message of which nothing would be left stays too. The request itself where the policy
    names no pattern, where planning is off, or where nothing is found.
    """
    pattern = request.context.extract_documents
    if pattern is None or request.context.planning == "off":
        return request
    messages, documents = list(request.messages), list(request.documents)
    for at in _searched(messages):
        pasted = find_pasted(messages[at].content, pattern, is_system=messages[at].role == "system")
        rest = _rest(messages[at].content, pasted)
        if pasted and rest:
            messages[at] = replace(messages[at], content=rest)
            first = len(documents)
            documents += [Document(first + n, one.text, one.id, one.title) for n, one in enumerate(pasted)]
    return replace(request, messages=messages, documents=documents)


def _searched(messages: Sequence[Message]) -> list[int]:
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=None)
    return [i for i, m in enumerate(messages) if (m.role == "system" or i == last) and not m.pinned]


def _rest(text: str, pasted: Sequence[Pasted]) -> str:
    """What is left, with a blank line wherever passages stood between."""
    edges = [0, *(edge for one in pasted for edge in (one.start, one.end)), len(text)]
    left = (text[a:b].strip() for a, b in zip(edges[::2], edges[1::2], strict=True))
    return "\n\n".join(piece for piece in left if piece)

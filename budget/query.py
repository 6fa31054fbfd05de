"""The question as the rankers see it: on its own, or completed by the turns that it leans on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from budget.text import terms
from budget.types import Message

_NUM_TURNS = 3
_EARLIER = 0.5
_FADE = 0.5
_ANSWER = 0.2
_MAX_ANSWER_TERMS = 60
_MAX_EMBEDDED = 2000


@dataclass(frozen=True, slots=True)
class Query:
    """A question's weighted terms, and the texts whose mean vector stands for it."""

    text: str
    weights: Mapping[str, float]
    embedded: tuple[str, ...]


def resolve(question: str, context: Sequence[Message] = ()) -> Query:
    """A question with its antecedents: "and in 2019?" keeps the subject of the turns before it.

    The question's own terms weigh 1. Terms of earlier questions weigh half, and half again for each turn further back;
    those of the last answer a fifth. A question that stands on its own outweighs them.

    Args:
        question: the last user turn.
        context: the turns before it, newest last; only the users' and the assistant's count.
    """
    weights = dict.fromkeys(terms(question), 1.0)
    asked = [m.content for m in context if m.role == "user" and m.content.strip()][: -_NUM_TURNS - 1 : -1]
    for age, turn in enumerate(asked):
        for term in terms(turn):
            weights[term] = max(weights.get(term, 0.0), _EARLIER * _FADE**age)
    answers = [m.content for m in context if m.role == "assistant" and m.content.strip()]
    for term in terms(answers[-1])[:_MAX_ANSWER_TERMS] if answers else ():
        weights[term] = max(weights.get(term, 0.0), _ANSWER)
    embedded = [question, *(f"{turn}\n{question}" for turn in asked[:1])]
    return Query(question, weights, tuple(text[-_MAX_EMBEDDED:] for text in embedded))

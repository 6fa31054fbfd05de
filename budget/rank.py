"""How useful each passage is for the question: terms and meaning, fused, the caller's scores blended in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from budget.cross_encode import cross_encoded
from budget.diversity import diversified
from budget.ports import Embedder, Scorer
from budget.relevance import LEXICAL, RELATED, SCORE_DIGITS, Array, Evidence, gather
from budget.sentences import sentences
from budget.types import Message
from policies.schema import Rank

_CALLER = 0.15
"""Weight of the caller's scores, spread over the range of ours: a retriever saw the question without its history."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores in 0..1 by passage, and the passages' positions from most to least useful; ties in input order.

    `method` is what was really used; `fallback` says why it is not what the policy asked for.
    """

    scores: list[float]
    order: list[int]
    method: str
    fallback: str | None = None


def rank(
    query: str,
    texts: Sequence[str],
    *,
    policy: Rank,
    titles: Sequence[str | None] | None = None,
    caller_scores: Sequence[float | None] | None = None,
    embedder: Embedder | None = None,
    cross_encoder: Scorer | None = None,
    context: Sequence[Message] = (),
) -> Ranking:
    """Ranks passages for a question.

    A passage's score is the share of the best possible evidence: BM25 of the whole passage, and BM25 and relatedness of
    its best sentence. Scores of different requests are comparable; those of a fallback are not.

    Args:
        query: the last question.
        texts: passages, copies already out: a copy would lower the weight of its own terms.
        policy: method, blending, diversity.
        titles: of the passages; a sentence is weighed under its title.
        caller_scores: the retriever's, on any scale, higher is better; None where it gave none.
        embedder: for `hybrid` and `embedding`.
        cross_encoder: rescores the best passages where the policy names one.
        context: the turns before the question, newest last, for follow-up questions.
    """
    if not texts:
        return Ranking([], [], policy.method)
    caller = _caller_shares(caller_scores or [None] * len(texts))
    notes: list[str] = []
    if "caller" in (policy.method, "caller" if policy.use_caller_scores == "only" else ""):
        if caller is not None:
            return _ordered(caller, None, policy.diversity, "caller", notes)
        notes.append("the caller gave no scores")
    asked = "hybrid" if policy.method == "caller" else policy.method
    spans = [sentences(t) for t in texts]
    evidence, missing = gather(
        query, texts, spans, titles=titles, embedder=embedder, context=context, lexical_only=asked == "bm25"
    )
    method: str = "bm25" if evidence.related is None else asked
    if missing and asked != "bm25":
        notes.append(missing)
    scores = _passage_scores(evidence, method)
    if policy.cross_encoder is not None:
        scores, missing = cross_encoded(query, texts, scores, policy.cross_encoder, cross_encoder)
        method = method if missing else f"{method}+cross_encoder"
        notes += [missing] if missing else []
    if caller is not None and policy.use_caller_scores == "blend":
        scores = (1 - _CALLER) * scores + _CALLER * (scores.min() + np.ptp(scores) * caller)
    return _ordered(scores, evidence.vectors, policy.diversity, method, notes)


def _passage_scores(evidence: Evidence, method: str) -> Array:
    """(passages,) shares of the best possible evidence."""
    if method == "embedding" and evidence.related is not None:
        return evidence.best(evidence.related)
    if evidence.related is None:
        return (evidence.passage_lexical + evidence.best(evidence.lexical)) / 2
    best = evidence.best(LEXICAL * evidence.lexical + RELATED * evidence.related)
    return (LEXICAL * evidence.passage_lexical + best) / (2 * LEXICAL + RELATED)


def _caller_shares(given: Sequence[float | None]) -> Array | None:
    """The caller's scores spread over 0..1; a passage without one stands at their mean. None where there is none."""
    known = [s for s in given if s is not None and math.isfinite(s)]
    if not known:
        return None
    low, high = min(known), max(known)
    width = high - low if high > low else 1.0
    shares = [(s - low) / width if s is not None and math.isfinite(s) else None for s in given]
    mean = sum((s - low) / width for s in known) / len(known)
    return np.array([mean if s is None else s for s in shares])


def _ordered(
    scores: Array, vectors: NDArray[np.float32] | None, diversity: float, method: str, notes: list[str]
) -> Ranking:
    rounded = [round(float(s), SCORE_DIGITS) for s in scores]
    order = sorted(range(len(rounded)), key=lambda i: -rounded[i])
    if vectors is not None and diversity > 0:
        order = diversified(order, rounded, vectors, diversity)
    return Ranking(rounded, order, method, "; ".join(notes) or None)

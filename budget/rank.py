"""How useful each passage is for the question: lexical and embedding scores, fused, the caller's blended in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from budget.bm25 import bm25
from budget.ports import Embedder, Scorer, ScorerUnavailable
from budget.sentences import Span
from budget.text import terms
from policies.schema import Rank

SCORE_DIGITS = 4
"""Scores are rounded before they are compared, so that the last bits of a batched model never decide an order."""


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
    caller_scores: Sequence[float | None] = (),
    embedder: Embedder | None = None,
    cross_encoder: Scorer | None = None,
    context: Sequence[str] = (),
) -> Ranking:
    """Ranks passages for a question.

    Args:
        query: the last question.
        texts: passages, copies already out.
        policy: method, blending, diversity.
        caller_scores: the retriever's, on any scale; None where it gave none.
        embedder: for `hybrid` and `embedding`.
        cross_encoder: rescoring, where the policy names one.
        context: texts of the turns before the question, newest last, for follow-up questions.
    """
    lexical = _unit(bm25(terms(query), [terms(t) for t in texts]))
    scores, method, fallback = lexical, "bm25", None
    if policy.method in ("hybrid", "embedding"):
        try:
            if embedder is None:
                raise ScorerUnavailable("no embedder")
            dense = _unit([float(x) for x in embedder.embed(texts) @ embedder.embed([query])[0]]) if texts else []
            scores = [(a + b) / 2 for a, b in zip(lexical, dense, strict=True)] if policy.method == "hybrid" else dense
            method = policy.method
        except ScorerUnavailable as error:
            fallback = str(error)
    rounded = [round(s, SCORE_DIGITS) for s in scores]
    return Ranking(rounded, sorted(range(len(texts)), key=lambda i: -rounded[i]), method, fallback)


def sentence_scores(
    query: str,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    *,
    passage_scores: Sequence[float],
    embedder: Embedder | None = None,
    context: Sequence[str] = (),
) -> list[list[float]]:
    """Relevance in 0..1 of each sentence of each passage, comparable across passages."""
    flat = [text[s.start : s.end] for text, own in zip(texts, spans, strict=True) for s in own]
    lexical = iter(_unit(bm25(terms(query), [terms(t) for t in flat])))
    return [
        [round((next(lexical) + passage) / 2, SCORE_DIGITS) for _ in own]
        for own, passage in zip(spans, passage_scores, strict=True)
    ]


def _unit(values: Sequence[float]) -> list[float]:
    """Values divided by their largest, negatives at 0."""
    top = max(values, default=0.0)
    return [max(float(np.float64(v)) / top, 0.0) if top > 0 else 0.0 for v in values]

"""The best passages read again, question and passage together, by a cross-encoder."""

from collections.abc import Sequence

import numpy as np

from budget.ports import Scorer, ScorerUnavailable
from budget.relevance import SCORE_DIGITS, Array

_CROSS = 0.7
_NUM_CROSS_ENCODED = 32


def cross_encoded(
    query: str, texts: Sequence[str], scores: Array, name: str, scorer: Scorer | None
) -> tuple[Array, str | None]:
    """The best passages rescored by a cross-encoder, its scores spread over the range that they had; or why not."""
    top = np.argsort(-np.round(scores, SCORE_DIGITS), kind="stable")[:_NUM_CROSS_ENCODED]
    try:
        if scorer is None:
            raise ScorerUnavailable(f"{name}: no cross-encoder is configured")
        values = _cross_scores(query, [texts[i] for i in top], scorer)
    except ScorerUnavailable as error:
        return scores, str(error)
    low, width = float(scores[top].min()), float(np.ptp(scores[top]))
    spread = (values - values.min()) / (np.ptp(values) or 1.0)
    rescored = scores.copy()
    rescored[top] = (1 - _CROSS) * scores[top] + _CROSS * (low + width * spread)
    return rescored, None


def _cross_scores(query: str, texts: Sequence[str], scorer: Scorer) -> Array:
    try:
        values = np.asarray(list(scorer.score(query, texts)), dtype=np.float64)
    except ScorerUnavailable:
        raise
    except Exception as error:  # a plug-in's own failure must not fail the request
        raise ScorerUnavailable(f"{scorer.name}: {type(error).__name__}: {error}") from error
    if values.shape != (len(texts),) or not np.isfinite(values).all():
        raise ScorerUnavailable(f"{scorer.name}: {values.size} scores for {len(texts)} passages, or not finite")
    return values

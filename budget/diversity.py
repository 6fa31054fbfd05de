"""Order with diversity: what repeats a passage already taken steps back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from budget.relevance import SCORE_DIGITS

_NUM_DIVERSIFIED = 100


def diversified(
    order: Sequence[int], scores: Sequence[float], vectors: NDArray[np.float32], diversity: float
) -> list[int]:
    """Maximal marginal relevance (Carbonell and Goldstein 1998) over the best of an order; the rest follows as it is.

    A passage's score is lowered by up to the share `diversity` of itself, by its likeness to one already taken.
    Likeness counts in tenths, so that passages that are about as alike keep their order.
    """
    head, rest = list(order[:_NUM_DIVERSIFIED]), list(order[_NUM_DIVERSIFIED:])
    likeness = np.round(np.clip(vectors[head] @ vectors[head].T, 0.0, 1.0), 1)
    relevance = np.array([scores[i] for i in head])
    nearest = np.zeros(len(head))
    taken: list[int] = []
    free = np.ones(len(head), dtype=bool)
    for _ in head:
        value = np.where(free, np.round(relevance * (1.0 - diversity * nearest), SCORE_DIGITS), -1.0)
        best = int(np.argmax(value))
        taken.append(head[best])
        free[best] = False
        nearest = np.maximum(nearest, likeness[best])
    return taken + rest

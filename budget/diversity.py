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
    near = vectors[head]
    relevance = np.array([scores[i] for i in head])
    nearest = np.zeros(len(head))
    free = np.ones(len(head), dtype=bool)
    taken: list[int] = []
    for _ in head:
        value = np.round(relevance * (1.0 - diversity * nearest), SCORE_DIGITS)
        best = int(np.argmax(np.where(free, value, -1.0)))
        taken.append(head[best])
        free[best] = False
        nearest = np.maximum(nearest, np.round(np.clip(near @ near[best], 0.0, 1.0), 1))
    return taken + rest

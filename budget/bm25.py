"""BM25 over one request's passages (Robertson and Zaragoza 2009, with Lucene's non-negative idf)."""

import math
from collections import Counter
from collections.abc import Sequence

K1 = 1.2
B = 0.75


def idf(num_docs: int, num_matching: int) -> float:
    """Lucene's inverse document frequency: ln(1 + (N - n + 0.5) / (n + 0.5))."""
    return math.log(1.0 + (num_docs - num_matching + 0.5) / (num_matching + 0.5))


def bm25(
    query: Sequence[str], documents: Sequence[Sequence[str]], weights: dict[str, float] | None = None
) -> list[float]:
    """One score a document, 0 or more, for the query's distinct terms.

    Args:
        query: terms of the question.
        documents: terms of each passage.
        weights: a factor by query term; 1 where absent.
    """
    wanted = Counter(query)
    counts = [Counter(t for t in d if t in wanted) for d in documents]
    matching = Counter(t for c in counts for t in c)
    mean = sum(map(len, documents)) / max(len(documents), 1) or 1.0
    scores = []
    for terms, count in zip(documents, counts, strict=True):
        norm = K1 * (1 - B + B * len(terms) / mean)
        scores.append(
            sum(
                (weights or {}).get(t, 1.0) * idf(len(documents), matching[t]) * tf * (K1 + 1) / (tf + norm)
                for t, tf in sorted(count.items())
            )
        )
    return scores

"""BM25 over one request's texts (Robertson and Zaragoza 2009), as a share of the best that a query could score."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from budget.cache import BoundedCache
from budget.text import terms

K1 = 1.2
B = 0.75


@dataclass(frozen=True, slots=True)
class TermCounts:
    """A text's terms with their counts, and how many there are in all."""

    counts: Mapping[str, int]
    num_terms: int


_counted: BoundedCache[TermCounts] = BoundedCache(max_bytes=64 * 1024 * 1024)


def count_terms(text: str) -> TermCounts:
    """The terms of a text, counted once by content."""
    found = _counted.get(text)
    if found is None:
        words = terms(text)
        found = TermCounts(Counter(words), len(words))
        _counted.put(text, found, 200 + 4 * len(text) + 100 * len(found.counts))
    return found


def idf(num_docs: int, num_matching: int) -> float:
    """Inverse document frequency that is never negative (Lucene): ln(1 + (N - n + 0.5) / (n + 0.5))."""
    return math.log(1.0 + (num_docs - num_matching + 0.5) / (num_matching + 0.5))


def bm25(query: Mapping[str, float], documents: Sequence[TermCounts]) -> list[float]:
    """One score in 0..1 a document: its BM25 over what a document of endless repetition would get.

    Args:
        query: weight of each query term, 0 or more.
        documents: the texts to compare; they are the collection too.
    """
    matches = [sorted(query.keys() & d.counts.keys()) for d in documents]
    matching = Counter(t for found in matches for t in found)
    weights = {t: w * idf(len(documents), matching[t]) for t, w in query.items()}
    best = sum(weights.values()) * (K1 + 1)
    if not best or not documents:
        return [0.0] * len(documents)
    mean = sum(d.num_terms for d in documents) / len(documents) or 1.0
    scores = []
    for document, found in zip(documents, matches, strict=True):
        norm = K1 * (1 - B + B * document.num_terms / mean)
        total = sum(weights[t] * tf / (tf + norm) for t, tf in ((t, document.counts[t]) for t in found))
        scores.append(total * (K1 + 1) / best)
    return scores

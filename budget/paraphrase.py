"""Passages that say the same in other words: every sentence of the one has its like in the other."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from budget.embed import embed_checked
from budget.ports import Embedder, ScorerUnavailable
from budget.relevance import MAX_EMBEDDED_BYTES, MAX_PASSAGE_BYTES, headed
from budget.sentences import sentences
from budget.text import terms

_T = TypeVar("_T")

_LOOK_ALIKE = 0.5
"""Share of common terms from which two sentences are compared by their words: a model hardly sees one changed name."""

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")
_NAME = re.compile(r"(?<=[^\W\d_A-Z] )[A-Z]\w+|(?<=[,;:] )[A-Z]\w+|\b[A-Z]{2,}\b|\b[A-Z]\w*\d\w*")
_NEGATION = re.compile(
    r"\b(?:not?|never|none|neither|nor|without|cannot|except|unless)\b|n['’]t\b|[不未非无無没沒勿莫别別除]",
    re.IGNORECASE,
)


def paraphrases(
    texts: Sequence[str], titles: Sequence[str | None], threshold: float, embedder: Embedder
) -> dict[int, int]:
    """By position of a copy, that of its original, which is the first where both are copies of each other.

    Only texts within the bounds of what a request may embed are looked at, in order; an embedder that fails finds none.

    Args:
        texts: passages.
        titles: of the passages.
        threshold: cosine from which two sentences may say the same.
        embedder: what makes the vectors.
    """
    try:
        pairs = _pairs(texts, titles, threshold, embedder)
    except ScorerUnavailable:
        return {}
    found: dict[int, int] = {}
    for copy, original in pairs:
        mutual = (original, copy) in pairs
        if copy in found or original in found or (mutual and copy < original):
            continue
        found[copy] = original
    return found


def _pairs(
    texts: Sequence[str], titles: Sequence[str | None], threshold: float, embedder: Embedder
) -> list[tuple[int, int]]:
    """(copy, original) by position: each sentence of the copy is as close to one of the original as `threshold`."""
    owners, lines, vectors = _embedded(texts, titles, embedder)
    if len(lines) < 2:
        return []
    close = np.argwhere(np.round(vectors @ vectors.T, 4) >= threshold).tolist()
    matched: dict[tuple[int, int], set[int]] = {}
    for i, j in close:
        if owners[i] != owners[j] and _same_statement(lines[i], lines[j]):
            matched.setdefault((owners[i], owners[j]), set()).add(i)
    sizes = Counter(owners)
    return sorted(pair for pair, covered in matched.items() if len(covered) == sizes[pair[0]])


def _embedded(
    texts: Sequence[str], titles: Sequence[str | None], embedder: Embedder
) -> tuple[list[int], list[str], np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """The sentences of the first passages that fit: whose they are, their texts, their vectors."""
    owners: list[int] = []
    lines: list[str] = []
    rows = []
    left = MAX_EMBEDDED_BYTES
    for i, (text, title) in enumerate(zip(texts, titles, strict=True)):
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > min(left, MAX_PASSAGE_BYTES):
            continue
        left -= size
        own = [text[s.start : s.end] for s in sentences(text)]
        if own:
            rows.append(embed_checked(embedder, [headed(title, line) for line in own]))
            owners += [i] * len(own)
            lines += own
    return owners, lines, np.concatenate(rows) if rows else np.zeros((0, 1), np.float32)


def _same_statement(a: str, b: str) -> bool:
    """Whether two sentences that a model finds alike may say the same: numbers, names and negations agree, in order."""
    for pattern in (_NUMBER, _NAME, _NEGATION):
        if pattern.findall(a) != pattern.findall(b):
            return False
    first, second = terms(a), terms(b)
    if Counter(first) == Counter(second):  # parts moved: most neighbours must be the same
        return _overlap(set(pairwise(first)), set(pairwise(second))) >= _LOOK_ALIKE
    return _overlap(set(first), set(second)) < _LOOK_ALIKE


def _overlap(a: set[_T], b: set[_T]) -> float:
    """Share of the smaller set that is in the other; 1 where one is empty."""
    return len(a & b) / min(len(a), len(b)) if a and b else 1.0

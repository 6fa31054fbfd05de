"""Which of many texts share a run of text, in time near linear in their sum.

Winnowing (Schleimer, Wilkerson, Aiken 2003): of each WINDOW successive hashes of GRAM bytes the least is a fingerprint,
so that two texts which share a run of GRAM + WINDOW - 1 bytes share a fingerprint of it.
Bytes are UTF-8: the run is 31 Latin letters or 11 Chinese characters.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from budget.cache import BoundedCache
from budget.text import CJK_CLASS, is_cjk, normalise

GRAM = 16
WINDOW = 16

_NEIGHBOURS = 5
"""Texts that share a fingerprint are compared with this many of their neighbours by length, and with the longest: a
footer that is on every page must not make all pages pairs."""

_SPACE_BY_MARK = re.compile(r" (?:(?<=\W )|(?=\W))")
_SPACE_BY_CJK = re.compile(rf" (?:(?<=[\W{CJK_CLASS}] )|(?=[\W{CJK_CLASS}]))")
_WHOLE_NUMBER = re.compile(rb"(?<=[^\d])\d+(?=[^\d])")
_SAMPLE = 16
_ENOUGH_VOTES = 3
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_NONE = np.uint64(2**64 - 1)

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Comparable:
    """A text as it is compared, in UTF-8, with the hashes of its fingerprints and their byte offsets, in hash order."""

    key: bytes
    hashes: NDArray[np.uint64]
    offsets: Ints
    numbers: Counter[bytes]
    """Runs of digits, without those that the text's ends may have cut."""


_compared: BoundedCache[Comparable] = BoundedCache(max_bytes=64 * 1024 * 1024)


def comparable(text: str) -> Comparable:
    """The text's form for comparison, computed once by content."""
    found = _compared.get(text)
    if found is None:
        key = comparison_key(text)
        found = Comparable(key, *_fingerprints(key), Counter(_WHOLE_NUMBER.findall(key)))
        _compared.put(text, found, 500 + 4 * len(text) + len(key) + 16 * len(found.hashes))
    return found


def comparison_key(text: str) -> bytes:
    """The text normalised, with spaces only between two words of an alphabet, in UTF-8."""
    folded = normalise(text)
    pattern = _SPACE_BY_CJK if is_cjk(folded) else _SPACE_BY_MARK
    return pattern.sub("", folded).encode("utf-8", "surrogatepass")


def similar_pairs(texts: Sequence[Comparable], min_share: float) -> list[tuple[int, int]]:
    """The pairs (a, b), a before b, that share at least this part of the fingerprints of one of them, by b, then a.

    Args:
        texts: longest first.
        min_share: 0..1.
    """
    sizes = np.array([len(t.hashes) for t in texts])
    if not sizes.sum():
        return []
    hashes = np.concatenate([t.hashes for t in texts])
    order = np.argsort(hashes, kind="stable")
    owners = np.repeat(np.arange(len(texts)), sizes)[order]
    left, right = _neighbours(hashes[order])
    pairs, counts = np.unique(owners[right] * len(texts) + owners[left], return_counts=True)
    b, a = np.divmod(pairs, len(texts))
    found = counts >= min_share * np.minimum(sizes[a], sizes[b])
    return list(zip(a[found].tolist(), b[found].tolist(), strict=True))


def likely_shift(a: Comparable, b: Comparable) -> int | None:
    """How far behind the start of `a` the start of `b` stands: a sample of fingerprints votes, in doubt all do."""
    step = max(len(b.hashes) // _SAMPLE, 1)
    shift, votes, voters = _commonest_shift(a, b.hashes[::step], b.offsets[::step])
    if step > 1 and (votes < _ENOUGH_VOTES or 2 * votes <= voters):
        shift, votes, _ = _commonest_shift(a, b.hashes, b.offsets)
    return shift if votes else None


def _commonest_shift(a: Comparable, hashes: NDArray[np.uint64], offsets: Ints) -> tuple[int, int, int]:
    """The shift, the fingerprints that agree on it, and all that the two share."""
    places = np.minimum(np.searchsorted(a.hashes, hashes), len(a.hashes) - 1)
    same = a.hashes[places] == hashes
    shifts: list[int] = (a.offsets[places[same]] - offsets[same]).tolist()
    return (*Counter(shifts).most_common(1)[0], len(shifts)) if shifts else (0, 0, 0)


def anchors(a: Comparable, b: Comparable) -> list[tuple[int, int]]:
    """Byte offsets of the fingerprints that two texts share, in order of the second."""
    _, in_a, in_b = np.intersect1d(a.hashes, b.hashes, assume_unique=True, return_indices=True)
    return sorted(zip(a.offsets[in_a].tolist(), b.offsets[in_b].tolist(), strict=True), key=lambda pair: pair[1])


def _fingerprints(key: bytes) -> tuple[NDArray[np.uint64], Ints]:
    """Hashes, in order, and byte offsets; of equal hashes the first."""
    if len(key) < GRAM:
        return np.zeros(0, np.uint64), np.zeros(0, np.int64)
    grams = _gram_hashes(key)
    chosen = np.flatnonzero(_is_least(grams))
    hashes, first = np.unique(grams[chosen], return_index=True)
    return hashes, chosen[first]


def _gram_hashes(key: bytes) -> NDArray[np.uint64]:
    """A hash of the GRAM bytes from each offset on, as far as there are so many. Arithmetic is modulo 2**64."""
    grams = np.frombuffer(key, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
    width, factor = 1, _MULTIPLIER
    while width < GRAM:
        grams = grams[:-width] * factor + grams[width:]
        width, factor = 2 * width, np.uint64(int(factor) ** 2 % 2**64)
    grams ^= grams >> np.uint64(31)
    grams *= _MULTIPLIER
    return grams ^ (grams >> np.uint64(29))


def _is_least(grams: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each value is the least of some WINDOW successive ones: it then equals the greatest of their minima."""
    padding = np.full(WINDOW - 1, _NONE)
    least = np.concatenate([padding, grams, padding])
    width = 1
    while width < WINDOW:
        least = np.minimum(least[:-width], least[width:])
        width *= 2
    width = 1
    while width < WINDOW:
        least = np.maximum(least[:-width], least[width:])
        width *= 2
    return np.asarray(least == grams)


def _neighbours(hashes: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Pairs of positions with equal hashes: each with the next _NEIGHBOURS of its group, and with the group's first."""
    lefts, rights = [], []
    for lag in range(1, _NEIGHBOURS + 1):
        left = np.flatnonzero(hashes[:-lag] == hashes[lag:])
        lefts.append(left)
        rights.append(left + lag)
    heads = np.flatnonzero(np.r_[True, hashes[1:] != hashes[:-1]][: len(hashes)])
    head = np.repeat(heads, np.diff(np.r_[heads, len(hashes)]))
    far = np.flatnonzero(np.arange(len(hashes)) - head > _NEIGHBOURS)
    return np.concatenate([*lefts, head[far]]), np.concatenate([*rights, far])

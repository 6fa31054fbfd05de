"""The runs that two texts share, grown from their common fingerprints."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

_MIN_RUN = 8
"""Bytes that must agree for a run at the edges to count; those around a fingerprint always do."""


@dataclass(frozen=True, slots=True)
class Match:
    """A run of bytes that two texts share, as long as it can be."""

    a: int
    b: int
    length: int

    @property
    def a_end(self) -> int:
        """Offset behind it in the one."""
        return self.a + self.length

    @property
    def b_end(self) -> int:
        """Offset behind it in the other."""
        return self.b + self.length


def align(a: bytes, b: bytes, points: list[tuple[int, int]]) -> list[Match]:
    """The runs that two texts share, in order in both, grown from their common fingerprints.

    The shift between the texts that most fingerprints agree on comes first; others fill in around it.
    """
    votes = Counter(p - q for p, q in points)
    matches: list[Match] = []
    ranked = sorted(points, key=lambda point: (-votes[point[0] - point[1]], point[1]))
    for p, q in [*ranked, (0, 0), (len(a), len(b))]:
        at = bisect_right(matches, q, key=lambda match: match.b)
        low_a, low_b = (matches[at - 1].a_end, matches[at - 1].b_end) if at else (0, 0)
        high_a, high_b = (matches[at].a, matches[at].b) if at < len(matches) else (len(a), len(b))
        if low_a <= p <= high_a and low_b <= q <= high_b:
            ahead = _common_prefix(a[p:high_a], b[q:high_b])
            behind = _common_suffix(a[low_a:p], b[low_b:q])
            if ahead + behind >= _MIN_RUN:
                matches.insert(at, Match(p - behind, q - behind, ahead + behind))
    return matches


def _common_prefix(a: bytes, b: bytes) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_suffix(a: bytes, b: bytes) -> int:
    return _common_prefix(a[::-1], b[::-1])

"""Windows of one text, cut so that they overlap, put together again."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from budget.boilerplate import body
from budget.fingerprints import comparison_key

_CUT_MARKS = frozenset(" \t\r\n.…[]\u3000")


@dataclass(frozen=True, slots=True)
class Piece:
    """[start, end) of one document's text, as it stands in a passage."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Documents in text order, and the bytes of the comparison key that each shares with the one before it."""

    indices: tuple[int, ...]
    shared: tuple[int, ...]


def chains(indices: Sequence[int], overlaps: Sequence[tuple[int, int, int]]) -> list[Chain]:
    """Every document in one chain, most of them alone: each goes on with at most one other, by the longest overlap.

    Args:
        indices: of the documents.
        overlaps: (first, second, shared bytes).
    """
    after: dict[int, tuple[int, int]] = {}
    before: dict[int, int] = {}
    for first, second, shared in sorted(set(overlaps), key=lambda o: (-o[2], o[0], o[1])):
        if first not in after and second not in before and not _leads_to(second, first, after):
            after[first] = second, shared
            before[second] = first
    found = []
    for index in indices:
        if index not in before:
            members, shared_bytes = [index], [0]
            while members[-1] in after:
                following, shared = after[members[-1]]
                members.append(following)
                shared_bytes.append(shared)
            found.append(Chain(tuple(members), tuple(shared_bytes)))
    return found


def _leads_to(start: int, goal: int, after: dict[int, tuple[int, int]]) -> bool:
    while start in after:
        start = after[start][0]
    return start == goal


def join(texts: Sequence[tuple[int, str]], shared: Sequence[int]) -> list[list[Piece]]:
    """A chain's texts joined without what they share; a list of pieces a passage.

    Where two cannot be joined without loss, a new passage begins: the comparison key of what is joined must be that of
    the one, and the rest of that of the other.

    Args:
        texts: (index, text) in text order.
        shared: as in `Chain`.
    """
    runs: list[list[Piece]] = []
    for (index, text), num_bytes in zip(texts, shared, strict=True):
        whole = Piece(index, 0, len(text))
        if runs and (seam := _seam(texts, runs[-1][-1], whole, num_bytes)):
            runs[-1][-1] = seam[0]
            runs[-1].append(seam[1])
        else:
            runs.append([whole])
    return runs


def _seam(
    texts: Sequence[tuple[int, str]], last: Piece, following: Piece, num_bytes: int
) -> tuple[Piece, Piece] | None:
    """The last piece cut where its text was cut, and the rest of the next; None where that would lose something."""
    by_index = dict(texts)
    first, second = by_index[last.document], by_index[following.document]
    (first_start, first_end), (second_start, second_end) = body(first), body(second)
    if not (_CUT_MARKS.issuperset(first[first_end:]) and _CUT_MARKS.issuperset(second[:second_start])):
        return None
    cut = second_start + _offset_of(second[second_start:second_end], num_bytes)
    joined = comparison_key(first[first_start:first_end] + second[cut:second_end])
    expected = (
        comparison_key(first[first_start:first_end]) + comparison_key(second[second_start:second_end])[num_bytes:]
    )
    if joined != expected or last.start >= first_end:
        return None
    return Piece(last.document, last.start, first_end), Piece(following.document, cut, len(second))


def _offset_of(text: str, num_bytes: int) -> int:
    """How many characters of the text make up so many bytes of its comparison key."""
    return bisect_left(range(len(text)), num_bytes, key=lambda i: len(comparison_key(text[:i])))

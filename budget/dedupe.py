"""Which passages say the same: copies dropped, overlapping windows merged, look-alikes kept.

A copy may leave text out; it may not say something else. A passage with another number, date, name or negation is not
a copy, however alike the two look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from budget.ports import Embedder
from budget.text import normalise
from budget.types import Document, DocumentReason
from policies.schema import Dedupe


@dataclass(frozen=True, slots=True)
class Piece:
    """[start, end) of one document's text, as it stands in a candidate's text."""

    document: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that is left. Its text is its pieces, end to end; only merged windows have more than one."""

    index: int
    """Of the surviving document."""
    text: str
    pieces: tuple[Piece, ...]
    score: float | None
    """The best caller's score of the document and its copies: a copy never adds to it."""
    pinned: bool

    def spans(self, kept: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
        """[start, end) ranges of `text`, in order, as ranges of each document they came from."""
        found: dict[int, list[tuple[int, int]]] = {}
        offset = 0
        for piece in self.pieces:
            length = piece.end - piece.start
            for start, end in kept:
                low, high = max(start - offset, 0), min(end - offset, length)
                if low < high:
                    found.setdefault(piece.document, []).append((piece.start + low, piece.start + high))
            offset += length
        return found


@dataclass(frozen=True, slots=True)
class Deduped:
    """Candidates in input order, and every other document's reason with the index it duplicates or was merged into."""

    candidates: list[Candidate]
    dropped: Mapping[int, tuple[DocumentReason, int | None]] = field(default_factory=dict)


def dedupe(
    documents: Sequence[Document], policy: Dedupe, *, history: Sequence[str] = (), embedder: Embedder | None = None
) -> Deduped:
    """Finds the passages that are worth sending once.

    Args:
        documents: the passages; `index` is their identity, ids are not looked at.
        policy: tiers and their thresholds.
        history: texts of turns that the prompt will hold anyway. A passage already in one is dropped.
        embedder: for the semantic tier; None leaves it out.
    """
    dropped: dict[int, tuple[DocumentReason, int | None]] = {}
    first: dict[str, Document] = {}
    kept: list[Document] = []
    for document in documents:
        key = normalise(document.text)
        if not key:
            dropped[document.index] = "empty", None
        elif policy.exact and key in first:
            dropped[document.index] = "exact_duplicate", first[key].index
        else:
            first[key] = document
            kept.append(document)
    return Deduped(
        [Candidate(d.index, d.text, (Piece(d.index, 0, len(d.text)),), d.score, d.pinned) for d in kept], dropped
    )

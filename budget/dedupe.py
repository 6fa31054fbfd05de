"""Which passages say the same: copies dropped, overlapping windows merged, look-alikes kept.

Tiers, each with its reason in the report: blank, the same but for spelling, already in the history, a copy with parts
left out or a page around it, windows of one text, the same in other words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from budget.near import without_copies
from budget.paraphrase import paraphrases
from budget.ports import Embedder
from budget.same import Dropped, without_blank, without_same
from budget.types import Document
from budget.windows import Piece, chains, join
from policies.schema import Dedupe

_Passage = tuple[Document, str, tuple[Piece, ...]]


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
        """[start, end) ranges of `text`, in order, as ranges of each document that they came from."""
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
    dropped: Dropped


def dedupe(
    documents: Sequence[Document], policy: Dedupe, *, history: Sequence[str] = (), embedder: Embedder | None = None
) -> Deduped:
    """Finds the passages that are worth sending once.

    Of copies the most complete survives; of the same text the pinned one, then the one of the plainest spelling, then
    the caller's favourite, then the first. A pinned passage is only dropped for another pinned one.

    Args:
        documents: the passages; `index` is their identity, ids are not looked at. Two with different titles differ.
        policy: tiers and their thresholds.
        history: texts of turns that the prompt will hold whole. A passage that is in one is dropped.
        embedder: for the semantic tier; None, or one that fails, leaves it out.
    """
    dropped: Dropped = {}
    left = without_blank(documents, dropped)
    if policy.exact:
        left = without_same(left, dropped)
    overlaps: list[tuple[int, int, int]] = []
    if policy.near is not None or policy.merge_overlaps:
        left, overlaps = without_copies(left, history, policy, dropped)
    passages = _merged(left, overlaps, dropped)
    if policy.semantic is not None and embedder is not None:
        passages = _without_paraphrases(passages, policy.semantic, embedder, dropped)
    resolved = {index: (reason, _last(of, dropped)) for index, (reason, of) in sorted(dropped.items())}
    scores = _best_scores(documents, resolved)
    found = [Candidate(d.index, text, pieces, scores.get(d.index), d.pinned) for d, text, pieces in passages]
    return Deduped(sorted(found, key=lambda c: c.index), resolved)


def _last(of: int | None, dropped: Dropped) -> int | None:
    """The end of a chain of duplicates: the index that survives, or the last one that was dropped for no other."""
    while of is not None and of in dropped and dropped[of][1] is not None:
        of = dropped[of][1]
    return of


def _best_scores(documents: Sequence[Document], dropped: Dropped) -> dict[int, float]:
    """By surviving index, the best finite score of a passage and all that was dropped for it."""
    best: dict[int, float] = {}
    for d in documents:
        index = dropped[d.index][1] if d.index in dropped else d.index
        if index is not None and d.score is not None and math.isfinite(d.score):
            best[index] = max(best.get(index, d.score), d.score)
    return best


def _merged(documents: list[Document], overlaps: list[tuple[int, int, int]], dropped: Dropped) -> list[_Passage]:
    """Passages, with windows of one text joined under the document of the best score."""
    by_index = {d.index: d for d in documents}
    known = [o for o in overlaps if o[0] in by_index and o[1] in by_index]
    passages: list[_Passage] = []
    for chain in chains(list(by_index), known):
        if len(chain.indices) == 1:
            alone = by_index[chain.indices[0]]
            passages.append((alone, alone.text, (Piece(alone.index, 0, len(alone.text)),)))
            continue
        for run in join([(i, by_index[i].text) for i in chain.indices], chain.shared):
            members = [by_index[i] for i in dict.fromkeys(p.document for p in run)]
            best = min(members, key=lambda d: (-(d.score if d.score is not None else -math.inf), d.index))
            for d in members:
                if d is not best:
                    dropped[d.index] = "overlap_merged", best.index
            passages.append((best, "".join(by_index[p.document].text[p.start : p.end] for p in run), tuple(run)))
    return passages


def _without_paraphrases(
    passages: list[_Passage], threshold: float, embedder: Embedder, dropped: Dropped
) -> list[_Passage]:
    """Drops what another passage says in other words; pinned ones stay."""
    found = paraphrases([text for _, text, _ in passages], [d.title for d, _, _ in passages], threshold, embedder)
    left = []
    for position, passage in enumerate(passages):
        document = passage[0]
        if position in found and not document.pinned:
            dropped[document.index] = "semantic_duplicate", passages[found[position]][0].index
        else:
            left.append(passage)
    return left

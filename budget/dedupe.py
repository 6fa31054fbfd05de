"""Which passages say the same: copies dropped, overlapping windows merged, look-alikes kept.

Tiers, each with its reason in the report: blank, the same but for spelling, already in the history, a copy with parts
left out or a page around it, windows of one text, the same in other words.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from budget.boilerplate import body
from budget.copies import relation
from budget.fingerprints import Comparable, comparable, similar_pairs
from budget.paraphrase import paraphrases
from budget.ports import Embedder
from budget.text import CJK_CLASS, is_cjk, normalise
from budget.types import Document, DocumentReason
from budget.windows import Piece, chains, join
from policies.schema import Dedupe

_Dropped = dict[int, tuple[DocumentReason, int | None]]
_Passage = tuple[Document, str, tuple[Piece, ...]]

_ODD_IN_CJK = re.compile(rf"[０-９Ａ-Ｚａ-ｚ]|(?<=[{CJK_CLASS}])[,.;:!?]")
_ODD_ELSEWHERE = re.compile("[！-～]")

_MIN_SHARED_FINGERPRINTS = 0.08
"""Of the text that has fewer. Below it two texts share a phrase, not a passage."""


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
    dropped: dict[int, tuple[DocumentReason, int | None]]


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
    dropped: dict[int, tuple[DocumentReason, int | None]] = {}
    left = _without_blank(documents, dropped)
    if policy.exact:
        left = _without_same(left, dropped)
    overlaps: list[tuple[int, int, int]] = []
    if policy.near is not None or policy.merge_overlaps:
        left, overlaps = _without_copies(left, history, policy, dropped)
    passages = _merged(left, overlaps, dropped)
    if policy.semantic is not None and embedder is not None:
        passages = _without_paraphrases(passages, policy.semantic, embedder, dropped)
    resolved = {index: (reason, _last(of, dropped)) for index, (reason, of) in sorted(dropped.items())}
    scores = _best_scores(documents, resolved)
    found = [Candidate(d.index, text, pieces, scores.get(d.index), d.pinned) for d, text, pieces in passages]
    return Deduped(sorted(found, key=lambda c: c.index), resolved)


def _last(of: int | None, dropped: _Dropped) -> int | None:
    """The end of a chain of duplicates: the index that survives, or the last one that was dropped for no other."""
    while of is not None and of in dropped and dropped[of][1] is not None:
        of = dropped[of][1]
    return of


def _best_scores(documents: Sequence[Document], dropped: _Dropped) -> dict[int, float]:
    """By surviving index, the best finite score of a passage and all that was dropped for it."""
    best: dict[int, float] = {}
    for d in documents:
        index = dropped[d.index][1] if d.index in dropped else d.index
        if index is not None and d.score is not None and math.isfinite(d.score):
            best[index] = max(best.get(index, d.score), d.score)
    return best


def _preference(d: Document) -> tuple[bool, int, float, int]:
    """Sorts the copy to keep first: pinned, plainly spelled, best score, first."""
    score = d.score if d.score is not None and math.isfinite(d.score) else -math.inf
    return not d.pinned, _oddity(d.text), -score, d.index


def _oddity(text: str) -> int:
    """Grows with superfluous white space, and with full-width or half-width marks where the script has the others."""
    if text.isascii():
        return len(text)
    return len(text) + len((_ODD_IN_CJK if is_cjk(text) else _ODD_ELSEWHERE).findall(text))


def _may_be_same(a: Document, b: Document) -> bool:
    """Whether their titles allow it: equal texts under two titles are about two things."""
    first, second = normalise(a.title or ""), normalise(b.title or "")
    return not first or not second or first in second or second in first


def _without_blank(documents: Sequence[Document], dropped: _Dropped) -> list[Document]:
    left = []
    for d in documents:
        if comparable(d.text).key:
            left.append(d)
        else:
            dropped[d.index] = "empty", None
    return left


def _without_same(documents: list[Document], dropped: _Dropped) -> list[Document]:
    """Drops what is the same text after normalisation."""
    groups: dict[bytes, list[Document]] = {}
    for d in documents:
        groups.setdefault(comparable(d.text).key, []).append(d)
    for group in groups.values():
        kept: list[Document] = []
        for d in sorted(group, key=_preference) if len(group) > 1 else ():
            if first := next((k for k in kept if _may_be_same(k, d)), None):
                dropped[d.index] = "exact_duplicate", first.index
            else:
                kept.append(d)
    return [d for d in documents if d.index not in dropped]


def _without_copies(
    documents: list[Document], history: Sequence[str], policy: Dedupe, dropped: _Dropped
) -> tuple[list[Document], list[tuple[int, int, int]]]:
    """Drops copies with parts left out or a page around, and finds windows: (first, second, shared bytes) by index."""
    entries = sorted([_Entry(None, text) for text in history] + [_Entry(d, d.text) for d in documents], key=_Entry.rank)
    overlaps: list[tuple[int, int, int]] = []
    for first, second in similar_pairs([e.compared for e in entries], _MIN_SHARED_FINGERPRINTS):
        a, b = _survivor(entries[first]), _survivor(entries[second])
        if a is b or (a.document is None and b.document is None) or not _comparable_titles(a, b):
            continue
        found = relation(
            a.compared, b.compared, policy.near if policy.near is not None else 1.0, merge=policy.merge_overlaps
        )
        if found is None:
            continue
        kind, shared = found
        if kind in ("continues", "continued"):
            x, y = (a, b) if kind == "continues" else (b, a)
            if x.document and y.document and not (x.document.pinned or y.document.pinned):
                overlaps.append((x.document.index, y.document.index, shared))
        elif policy.near is not None:
            _drop(b, a, dropped) if kind == "copy" else _drop(a, b, dropped)
    return [d for d in documents if d.index not in dropped], overlaps


@dataclass(slots=True)
class _Entry:
    """A passage, or (without a document) a text of the history, in the search for copies."""

    document: Document | None
    text: str
    of: "_Entry | None" = None
    compared: Comparable = field(init=False)

    def __post_init__(self) -> None:
        start, end = body(self.text)
        self.compared = comparable(self.text[start:end])

    def rank(self) -> tuple[int, bool, bool, int, int]:
        """Longest first; of equals the history, the pinned, the one with the least around it, the first."""
        d = self.document
        pinned, index = (d.pinned, d.index) if d else (False, 0)
        return -len(self.compared.key), d is not None, not pinned, len(self.text), index


def _survivor(entry: _Entry) -> _Entry:
    while entry.of is not None:
        entry = entry.of
    return entry


def _comparable_titles(a: _Entry, b: _Entry) -> bool:
    return a.document is None or b.document is None or _may_be_same(a.document, b.document)


def _drop(copy: _Entry, original: _Entry, dropped: _Dropped) -> None:
    """Drops a passage for another or for the history, unless it is pinned and the other is not."""
    if copy.document is None:
        return
    if original.document is None:
        if not copy.document.pinned:
            copy.of = original
            dropped[copy.document.index] = "already_in_history", None
    elif original.document.pinned or not copy.document.pinned:
        copy.of = original
        dropped[copy.document.index] = "near_duplicate", original.document.index


def _merged(documents: list[Document], overlaps: list[tuple[int, int, int]], dropped: _Dropped) -> list[_Passage]:
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
    passages: list[_Passage], threshold: float, embedder: Embedder, dropped: _Dropped
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

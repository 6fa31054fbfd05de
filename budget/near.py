"""Copies with parts left out or a page around them, what the history holds already, and windows of one text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from budget.boilerplate import body
from budget.copies import relation
from budget.fingerprints import Comparable, comparable, similar_pairs
from budget.same import Dropped, may_be_same
from budget.types import Document
from policies.schema import Dedupe

_MIN_SHARED_FINGERPRINTS = 0.08
"""Of the text that has fewer. Below it two texts share a phrase, not a passage."""


def without_copies(
    documents: list[Document], history: Sequence[str], policy: Dedupe, dropped: Dropped
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
    return a.document is None or b.document is None or may_be_same(a.document, b.document)


def _drop(copy: _Entry, original: _Entry, dropped: Dropped) -> None:
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

"""The plainest tiers: blank passages, and those that are the same text but for spelling."""

import math
import re
from collections.abc import Sequence

from budget.fingerprints import comparable
from budget.text import CJK_CLASS, is_cjk, normalise
from budget.types import Document, DocumentReason

Dropped = dict[int, tuple[DocumentReason, int | None]]
"""By index of a passage: why it goes, and the index of the one that stays for it."""

_ODD_IN_CJK = re.compile(rf"[０-９Ａ-Ｚａ-ｚ]|(?<=[{CJK_CLASS}])[,.;:!?]")
_ODD_ELSEWHERE = re.compile("[！-～]")


def without_blank(documents: Sequence[Document], dropped: Dropped) -> list[Document]:
    """Drops what holds no ink."""
    left = []
    for d in documents:
        if comparable(d.text).key:
            left.append(d)
        else:
            dropped[d.index] = "empty", None
    return left


def without_same(documents: list[Document], dropped: Dropped) -> list[Document]:
    """Drops what is the same text after normalisation."""
    groups: dict[bytes, list[Document]] = {}
    for d in documents:
        groups.setdefault(comparable(d.text).key, []).append(d)
    for group in groups.values():
        kept: list[Document] = []
        for d in sorted(group, key=_preference) if len(group) > 1 else ():
            if first := next((k for k in kept if may_be_same(k, d)), None):
                dropped[d.index] = "exact_duplicate", first.index
            else:
                kept.append(d)
    return [d for d in documents if d.index not in dropped]


def may_be_same(a: Document, b: Document) -> bool:
    """Whether their titles allow it: equal texts under two titles are about two things."""
    first, second = normalise(a.title or ""), normalise(b.title or "")
    return not first or not second or first in second or second in first


def _preference(d: Document) -> tuple[bool, int, float, int]:
    """Sorts the copy to keep first: pinned, plainly spelled, best score, first."""
    score = d.score if d.score is not None and math.isfinite(d.score) else -math.inf
    return not d.pinned, _oddity(d.text), -score, d.index


def _oddity(text: str) -> int:
    """Grows with superfluous white space, and with full-width or half-width marks where the script has the others."""
    if text.isascii():
        return len(text)
    return len(text) + len((_ODD_IN_CJK if is_cjk(text) else _ODD_ELSEWHERE).findall(text))

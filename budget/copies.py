"""How two texts relate: one a copy of the other, the end of one the beginning of the other, or neither.

A copy may leave text out; it may not say something else. Whatever else stands in the middle of what two texts share (a
number, a date, a name, a negation) makes them different, in every language, without a list of what a name is. Only
whole sentences, punctuation and a few small words may be missing there.
"""

import re
from itertools import pairwise
from typing import Literal

from budget.align import Match, align
from budget.fingerprints import Comparable, anchors, likely_shift
from budget.text import CJK_CLASS

Relation = Literal["copy", "copied", "continues", "continued"]

MIN_OVERLAP_BYTES = 32
"""Of two windows: some 30 Latin letters or 11 Chinese characters."""

_SHORT_BYTES = 120
"""A text of one statement. Where one of these stops within a number or after a negation, that is its meaning; where a
longer one does, it was cut there."""

_MIN_SENTENCE_BYTES = 16

_TOKEN = re.compile(rf"\d+|[{CJK_CLASS}]|[^\W\d_{CJK_CLASS}]+|[%‰$€£¥₹<>=±°]")
_SMALL_WORDS = frozenset(("a", "an", "the", "that", "which", "also", *"的了之也地得着"))
_SENTENCE_ENDS = frozenset(b".!?;")
_NEGATED = tuple(
    word.encode()
    for word in ("不", "未", "非", "无", "無", "没", "沒", "勿", "别", "別", "not ", "no ", "non-", "never ")
)
_WIDE_ENDS = tuple(mark.encode() for mark in ("。", "！", "？", "；"))


def relation(a: Comparable, b: Comparable, min_share: float, *, merge: bool) -> tuple[Relation, int] | None:
    """What `b` is to `a`, with the shared bytes; None where each says something that the other does not.

    `copy`: all that `b` says is in `a`; `copied`: the other way round. `continues`: the end of `a` is the beginning of
    `b`; `continued`: the other way round.

    Args:
        a: the longer text.
        b: the shorter one.
        min_share: part of the copy's bytes that must stand in the other text.
        merge: whether to look for overlapping windows.
    """
    shift = likely_shift(a, b)
    if shift is None:
        return None
    if shift >= 0 and a.key.startswith(b.key, shift):
        return None if _cut_short(a.key, b.key, shift) else ("copy", len(b.key))
    if merge and (overlap := _overlap(a.key, b.key, shift)):
        return overlap
    if not (b.numbers <= a.numbers or a.numbers <= b.numbers):
        return None  # each has a number that the other has not: no need to look further
    return _compared(a.key, b.key, align(a.key, b.key, anchors(a, b)), min_share)


def _overlap(a: bytes, b: bytes, shift: int) -> tuple[Relation, int] | None:
    """Whether one ends with what the other begins with, `b` standing `shift` bytes after the start of `a`."""
    if shift > 0:
        shared = len(a) - shift
        if MIN_OVERLAP_BYTES <= shared < len(b) and b.startswith(a[shift:]):
            return "continues", shared
    elif shift < 0:
        shared = len(b) + shift
        if MIN_OVERLAP_BYTES <= shared < len(a) and a.startswith(b[-shift:]):
            return "continued", shared
    return None


def _cut_short(a: bytes, b: bytes, shift: int) -> bool:
    """Whether a text stops at what is a decimal point in the longer one, or a short one within a number of it or
    behind its negation."""
    before, after = a[:shift], a[shift + len(b) :]
    if re.search(rb"\d[.,]\Z", b) and after[:1].isdigit():
        return True
    if len(b) >= _SHORT_BYTES:
        return False
    if re.search(rb"\d[.,]?\Z", before) and b[:1].isdigit():
        return True
    return (b[-1:].isdigit() and re.match(rb"[.,]?\d", after) is not None) or before.endswith(_NEGATED)


def _compared(a: bytes, b: bytes, matches: list[Match], min_share: float) -> tuple[Relation, int] | None:
    """The relation of two texts with other text between or around what they share."""
    shared = sum(m.length for m in matches)
    if not matches or shared < min_share * min(len(a), len(b)):
        return None
    first, last = matches[0], matches[-1]
    before, after = (a[: first.a], b[: first.b]), (a[last.a_end :], b[last.b_end :])
    if (all(before) and _split_word(a, b, first.a, first.b)) or (
        all(after) and _split_word(a, b, last.a_end, last.b_end)
    ):
        return None
    more_a, more_b = (_says(before[i]) or _says(after[i]) for i in (0, 1))
    for match, following in pairwise(matches):
        only_a = _between(a, match.a_end, following.a)
        only_b = _between(b, match.b_end, following.b)
        if only_a is None or only_b is None or (only_a and only_b):
            return None
        more_a, more_b = more_a or bool(only_a), more_b or bool(only_b)
    if not more_b and shared >= min_share * len(b):
        return "copy", shared
    if not more_a and shared >= min_share * len(a):
        return "copied", shared
    return None


def _split_word(a: bytes, b: bytes, i: int, j: int) -> bool:
    """Whether a word or number of either text goes on over offset `i` of the one and `j` of the other.

    Where both go on there, one word has been changed; where one text ends there, it was cut.
    """
    return _within(a, i) or _within(b, j)


def _says(piece: bytes) -> bool:
    """Whether a piece holds more than punctuation and small words."""
    return any(t not in _SMALL_WORDS for t in _TOKEN.findall(piece.decode("utf-8", "replace")))


def _between(text: bytes, start: int, end: int) -> bool | None:
    """What one text alone has between two shared runs: nothing that counts, whole sentences, or (None) part of one."""
    low, high = _whole_words(text, start, end)
    if not _says(text[low:high]):
        return False
    return True if _is_sentences(text, start, end) else None


def _whole_words(text: bytes, start: int, end: int) -> tuple[int, int]:
    """The piece widened to characters, and to words and numbers where it begins or ends within one."""
    while start > 0 and _within(text, start):
        start -= 1
    while end < len(text) and _within(text, end):
        end += 1
    return start, end


def _within(text: bytes, i: int) -> bool:
    """Whether offset `i` is inside a character, a number or an ASCII word."""
    before, after = text[i - 1], text[i] if i < len(text) else 32
    return 0x80 <= after < 0xC0 or (_is_alnum(before) and _is_alnum(after))


def _is_alnum(byte: int) -> bool:
    return 48 <= byte < 58 or 97 <= byte < 123


def _is_sentences(text: bytes, start: int, end: int) -> bool:
    """Whether [start, end) is whole sentences, or can be moved to be: what it begins with may follow it too."""
    while start > 0 and text[start - 1] == text[end - 1]:
        start, end = start - 1, end - 1
    while True:
        if end - start >= _MIN_SENTENCE_BYTES and _ends_sentence(text, start) and _ends_sentence(text, end):
            return True
        if end >= len(text) or text[start] != text[end]:
            return False
        start, end = start + 1, end + 1


def _ends_sentence(text: bytes, i: int) -> bool:
    """Whether a sentence ends just before offset `i`."""
    if i == 0 or i >= len(text):
        return True
    if text[i - 1] in _SENTENCE_ENDS:
        return not text[i : i + 1].isdigit()
    return text.endswith(_WIDE_ENDS, max(i - 4, 0), i)

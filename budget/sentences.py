"""Text as sentences: where a text may be cut without cutting through a thought, in English and Chinese.

Every function is linear in the text, whatever it holds.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from budget.blocks import SpanKind, blocks
from budget.cache import BoundedCache
from budget.text import CJK_CLASS, is_cjk


@dataclass(frozen=True, slots=True)
class Span:
    """[start, end) character offsets into a text, without white space at either end."""

    start: int
    end: int
    kind: SpanKind


_CLOSERS = "\"'”’»›)\\]}）」』】》〉〕"
_ENDER = re.compile(rf"(?:[.．](?:\s?\.){{2,}}|[.!?。！？；…‥．｡؟۔।]+)(?P<close>[{_CLOSERS}]*)")
_NEXT = re.compile(r"(?P<gap>\s*)(?P<open>[\"'“‘«(\[{（「『【《]*)(?P<word>[\w]*)")
_LAST_TOKEN = re.compile(r"[^\s\"'“‘(\[{（「『]*$")
_HARD = frozenset("。！？；｡؟۔।")
_CJK_CHAR = re.compile(f"[{CJK_CLASS}“”‘’「」『』（）《》【】，、：—]")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NEVER_ENDS = _words(
    """adm art assoc attn ave bldg blvd brig capt cf ch cmdr col comdr cpl dept dr e.g ed eds eq eqs est fig figs fr ft
    gen gov hon hrn i.e lt maj messrs mlle mme mr mrs ms msgr mt mts nos op p par pp pres prof pvt rep reps ref refs rev
    sec sect sen sens sgt sr st ste subj supt tab tel v viz vol vols vs"""
)
"""Abbreviations that something always follows. Compared in lower case, without the last full stop."""

_MAY_END = _words(
    """a.d a.k.a a.m al b.c b.c.e bros c.e ca co corp d.c d.phil eg esq et etc ie inc jr ltd llc m.a m.d n.b
    p.m p.s ph.d plc r.i.p sq u.k u.n u.s u.s.a approx misc univ min max"""
)
_MONTHS = _words("""jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri sat sun""")
_NUMBERED = frozenset(["no"])
_STARTERS = _words(
    """a after although an and as at both but by during each every few for from he her here his how however i if in it
    its later many most my no on once one our several she since so some such that the their then there these they this
    those though to today we what when where while who why with yet you your"""
)
"""Words that, capitalised after an abbreviation, open a new sentence."""


_split: BoundedCache[tuple[Span, ...]] = BoundedCache(max_bytes=32 * 1024 * 1024)


def sentences(text: str) -> list[Span]:
    """Splits a text into spans that cover all that is not white space, in order; once by content.

    Fenced code and tables are one span each; list items and headings stand apart; prose is cut after sentence ends
    (with the quotes and brackets that close them), but not within numbers, addresses, paths, versions, or after
    abbreviations.
    """
    spans = _split.get(text)
    if spans is None:
        spans = tuple(_spans(text))
        _split.put(text, spans, 200 + 4 * len(text) + 100 * len(spans))
    return list(spans)


def _spans(text: str) -> Iterator[Span]:
    for start, end, kind in blocks(text):
        cuts = [end] if kind in ("code", "table", "heading") else [*_ends(text, start, end), end]
        for cut in cuts:
            if span := _stripped(text, start, cut, kind):
                yield span
            start = cut


def _stripped(text: str, start: int, end: int, kind: SpanKind) -> Span | None:
    piece = text[start:end]
    body = piece.lstrip()
    if not body:
        return None
    start += len(piece) - len(body)
    return Span(start, start + len(body.rstrip()), kind)


def _ends(text: str, start: int, end: int) -> Iterator[int]:
    """Offsets just after each sentence end within [start, end)."""
    begin = start
    for ender in _ENDER.finditer(text, start, end):
        if _is_end(text, begin, ender):
            yield ender.end()
            begin = ender.end()


def _is_end(text: str, begin: int, ender: re.Match[str]) -> bool:
    """Whether a run of enders ends the sentence that began at `begin`."""
    marks = text[ender.start() : ender.start("close")]
    if not _HARD.isdisjoint(marks):
        return True
    following = _NEXT.match(text, ender.end())
    assert following is not None
    at_end = following.end() == ender.end() and ender.end() >= len(text)
    if at_end:
        return True
    after_cjk = ender.start() > 0 and _CJK_CHAR.match(text, ender.start() - 1) is not None
    if not following["gap"]:
        return _CJK_CHAR.match(text, ender.end()) is not None and (after_cjk or marks[0] in "…‥!?")
    if len(marks) > 1 or marks == "…":
        return not following["word"][:1].islower()
    if marks in "!?":
        return True
    return _full_stop_ends(text, begin, ender.start(), following["word"])


def _full_stop_ends(text: str, begin: int, stop: int, word: str) -> bool:
    """Whether a full stop at `stop`, with white space and then `word` behind it, ends the sentence."""
    low = max(begin, stop - 40)
    match = _LAST_TOKEN.search(text[low:stop])
    token = match.group() if match else ""
    key = token.lower()
    follows_start = not text[begin : stop - len(token)].strip() if stop - len(token) - begin < 40 else False
    if token.isdigit() and follows_start:
        return False
    if key in _NEVER_ENDS:
        return False
    if key in _NUMBERED or key in _MONTHS:
        return not word[:1].isdigit() and not word[:1].islower() and (key in _NUMBERED or word.lower() in _STARTERS)
    initials = len(token) == 1 and token.isalpha() and token.isupper()
    if key in _MAY_END or initials or re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", token):
        return word[:1].isupper() and (
            word.lower() in _STARTERS or (key in {"a.m", "p.m", "etc"} and word.lower()[:3] not in _MONTHS)
        )
    if word[:1].islower():
        return len(token) > 2 and token.isalpha() and token.islower()
    return True


_CLAUSE = re.compile(r"[，、；：。！？,;:!?](?=\s|[^\x00-\x7f]|$)|[.](?=\s|$)|[—–]")
_JOINED = frozenset("\u200d\ufe0e\ufe0f")


def soft_cut(text: str, start: int, limit: int) -> int:
    """The best place in (start, limit] to cut: after a clause, else at white space, else between characters.

    A clause counts in the last two thirds of the range, a space in its second half: a cut should not waste the room.
    A base character keeps its combining marks, joiners and variation selectors. Chinese, which has no spaces, is cut at
    its commas.
    """
    limit = min(limit, len(text))
    if limit >= len(text):
        return len(text)
    third, middle = start + (limit - start) // 3, start + (limit - start) // 2
    best = 0
    for mark in _CLAUSE.finditer(text, third, limit + 1):
        if mark.end() <= limit:
            best = mark.end()
    if best > start:
        return best
    head = text[middle:limit]
    if not text[limit].isspace() and not is_cjk(text[limit - 1 : limit + 1]):
        space = max((i for i, c in enumerate(head) if c.isspace()), default=-1)
        if space >= 0 and middle + space > start:
            return middle + space
    cut = limit
    while cut > start + 1 and _joins(text, cut):
        cut -= 1
    return cut if not _joins(text, cut) else limit


def _joins(text: str, i: int) -> bool:
    """Whether the character at `i` belongs with the one before it."""
    c = text[i]
    return unicodedata.combining(c) > 0 or c in _JOINED or text[i - 1] == "\u200d" or "\U0001f3fb" <= c <= "\U0001f3ff"

"""Text as blocks: fenced code, tables, headings, list items and prose, by its lines."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from budget.text import is_cjk

SpanKind = Literal["sentence", "heading", "list", "table", "code"]

_FENCE = re.compile(r"[ \t]*(```+|~~~+)")
_ATX = re.compile(r"[ \t]{0,3}#{1,6}[ \t]")
_RULE = re.compile(r"[ \t]*(?:=+|-{3,})[ \t]*$")
_ITEM = re.compile(
    r"[ \t]*(?:[-*+•·‣▪◦●○–][ \t]+|\(?\d{1,3}[.)、](?!\d)[ \t]*|[a-z][.)][ \t]+"
    r"|[（(]?[一二三四五六七八九十]{1,3}[、）)]|[①-⑳])"
)
_ROW = re.compile(r"[ \t]*\|.*\||[^|\n]*\|[^|\n]*\||[^\t\n]+\t[^\t\n]+\t")


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    end: int
    body: str


def _lines(text: str) -> list[_Line]:
    """The lines of a text, split at `\\n` only, so that offsets are plain."""
    lines, start = [], 0
    for body in text.split("\n"):
        lines.append(_Line(start, min(start + len(body) + 1, len(text)), body))
        start += len(body) + 1
    return lines


def blocks(text: str) -> Iterator[tuple[int, int, SpanKind]]:
    """Contiguous [start, end) blocks of one kind each, that together cover the text."""
    lines = _lines(text)
    i = 0
    while i < len(lines):
        j, kind = _block_at(lines, i)
        yield lines[i].start, lines[j - 1].end, kind
        i = j


def _block_at(lines: list[_Line], i: int) -> tuple[int, SpanKind]:
    """The line after the block that begins at line `i`, and the block's kind."""
    body = lines[i].body
    if not body.strip():
        return _first(lines, i, lambda line: line.strip() != ""), "sentence"
    if fence := _FENCE.match(body):
        return _fence_end(lines, i, fence.group(1)[:3]), "code"
    if _ROW.match(body) and i + 1 < len(lines) and _ROW.match(lines[i + 1].body):
        return _first(lines, i, lambda line: _ROW.match(line) is None), "table"
    if _ATX.match(body):
        return i + 1, "heading"
    if _ITEM.match(body):
        return _prose_end(lines, i), "list"
    if _is_title(lines, i):
        underlined = i + 1 < len(lines) and _RULE.match(lines[i + 1].body)
        return i + (2 if underlined else 1), "heading"
    return _prose_end(lines, i), "sentence"


def _first(lines: list[_Line], i: int, wanted: Callable[[str], bool]) -> int:
    """The first line from `i` on that is wanted, or the end."""
    return next((j for j in range(i, len(lines)) if wanted(lines[j].body)), len(lines))


def _fence_end(lines: list[_Line], i: int, fence: str) -> int:
    return min(_first(lines, i + 1, lambda line: line.lstrip().startswith(fence)) + 1, len(lines))


def _prose_end(lines: list[_Line], i: int) -> int:
    """The first line after `i` that does not run on from the one before."""
    for j in range(i + 1, len(lines)):
        body = lines[j].body
        if not body.strip() or _FENCE.match(body) or _ATX.match(body) or _ITEM.match(body):
            return j
        if _ROW.match(body) and j + 1 < len(lines) and _ROW.match(lines[j + 1].body):
            return j
        if _breaks(lines[j - 1].body):
            return j
    return len(lines)


def _breaks(body: str) -> bool:
    """Whether a line ends with its paragraph: a short line, or one that closes with a sentence end or a colon."""
    body = body.rstrip()
    return not body or body[-1] in '.!?。！？；…:："”」』)）'


def _is_title(lines: list[_Line], i: int) -> bool:
    """A short line with no sentence end that stands above longer text, or is underlined."""
    if i + 1 >= len(lines):
        return False
    body, below = lines[i].body.strip(), lines[i + 1].body
    if _RULE.match(below):
        return True
    if len(body) > (30 if is_cjk(body) else 80) or body[-1] in '.!?。！？；…,，、;"”':
        return False
    follows = below.strip()
    if not follows:
        return i + 2 < len(lines) and len(lines[i + 2].body) > len(body)
    if is_cjk(body):
        return len(follows) > 2 * len(body)
    words = body.split()
    capitals = sum(not w[0].islower() for w in words)
    return len(follows) > len(body) and not follows[0].islower() and 2 * capitals > len(words)

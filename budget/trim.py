"""A passage as sentences that can be kept or left out without breaking what is kept.

What needs what: content its heading, a list or code its introducing line, a table row the header row, and a sentence
that points back ("It ...", "该...") the sentence before it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from budget.dedupe import Candidate
from budget.ports import TokenCounter
from budget.sentences import Span, sentences
from budget.text import is_cjk
from budget.tokens import truncate

_POINTS_BACK = re.compile(
    r"\W*(?:(?:and|but|so|then|however|also|in addition|thus|hence|therefore|moreover|furthermore|meanwhile|yet),? )?"
    r"(?:it|its|this|that|these|those|he|his|him|she|her|hers|they|their|them|such|both|the (?:former|latter|same))\b"
    r"|\W*(?:但是?|而且?|并且?|因此|所以|此外|另外|同时|然后|不过|然而|于是|后来|随后|之后)?[，,]?"
    r"(?:它|他|她|牠|該|该|其(?!实|實)|这|這|那(?!么|麼)|此(?!外)|前者|后者|後者|两者|兩者)",
    re.IGNORECASE,
)
_RULER = re.compile(r"[\s|:+=-]*-[\s|:+=-]*$")
_LONGEST_CHAIN = 16
"""Sentences; a text in which every sentence points back is cut somewhere."""


@dataclass(frozen=True)
class Passage:
    """A candidate in units: sentences, headings, table rows, code blocks, by position in its text."""

    candidate: Candidate
    label: str
    title: str
    units: tuple[Span, ...]
    is_cut: bool = False
    """Whether the units leave out text."""

    @cached_property
    def everything(self) -> frozenset[int]:
        """All units."""
        return frozenset(range(len(self.units)))

    @cached_property
    def content(self) -> tuple[int, ...]:
        """The units that are worth keeping for themselves: all but headings, unless there is nothing else."""
        return tuple(i for i, unit in enumerate(self.units) if unit.kind != "heading") or tuple(self.everything)

    @cached_property
    def _direct_needs(self) -> list[list[int]]:
        return list(_direct_needs(self.candidate.text, self.units))

    @cached_property
    def _closures(self) -> dict[int, frozenset[int]]:
        return {}

    def closure(self, unit: int) -> frozenset[int]:
        """A unit and all that it needs."""
        if unit not in self._closures:
            found, queue = {unit}, list(self._direct_needs[unit])
            while queue and len(found) < _LONGEST_CHAIN:
                need = queue.pop()
                if need not in found:
                    found.add(need)
                    queue += self._direct_needs[need]
            self._closures[unit] = frozenset(found)
        return self._closures[unit]

    def text(self, units: frozenset[int], *, ellipsis: bool = False) -> str:
        """Some units in order, apart as they were in the passage; `ellipsis` marks where some are left out."""
        whole = self.candidate.text
        if not units:
            return ""
        if self.covers_all(units):
            return whole.strip()
        gaps = [whole[a.end : b.start] for a, b in zip(self.units, self.units[1:], strict=False)]
        mark, pieces, last = ("……" if is_cjk(whole) else "…") if ellipsis else "", [], -1
        for i in sorted(units):
            between = max(gaps[max(last, 0) : i], key=lambda gap: gap.count("\n"), default="")
            if i == last + 1:
                pieces.append(between)
            else:
                space = " " if mark == "…" else ""
                pieces.append((f"{space}{mark}" if mark and pieces else mark) + (between or space if pieces else space))
            pieces.append(whole[self.units[i].start : self.units[i].end])
            last = i
        if mark and (last < len(self.units) - 1 or self.is_cut):
            pieces.append(f" {mark}" if mark == "…" else mark)
        return "".join(pieces)

    def spans(self, units: frozenset[int]) -> list[tuple[int, int]]:
        """[start, end) ranges of the text that some units cover, neighbours joined."""
        if self.covers_all(units):
            return [(0, len(self.candidate.text))]
        found: list[tuple[int, int]] = []
        for i in sorted(units):
            joined = found and i - 1 in units
            found.append((found.pop()[0] if joined else self.units[i].start, self.units[i].end))
        return found

    def covers_all(self, units: frozenset[int]) -> bool:
        """Whether nothing of the passage is left out."""
        return units == self.everything and not self.is_cut

    def cut(self, unit: int, max_tokens: int, counter: TokenCounter) -> "Passage":
        """The passage with nothing left but the beginning of one unit, in at most `max_tokens` tokens."""
        span = self.units[unit]
        kept = truncate(self.candidate.text[span.start : span.end], max_tokens, counter)
        units = (Span(span.start, span.start + len(kept), span.kind),) if kept.strip() else ()
        return Passage(self.candidate, self.label, self.title, units, is_cut=True)


def split(candidate: Candidate, label: str, title: str, *, whole: bool = False) -> Passage:
    """A candidate in units; `whole` makes it one."""
    text = candidate.text
    if whole:
        body = text.strip()
        start = text.find(body)
        return Passage(candidate, label, title, (Span(start, start + len(body), "sentence"),))
    return Passage(candidate, label, title, tuple(_with_rows(text, sentences(text))))


def _with_rows(text: str, spans: Sequence[Span]) -> Iterator[Span]:
    """Tables as one unit a row; a ruler below the header row is part of it."""
    for span in spans:
        if span.kind != "table":
            yield span
            continue
        rows: list[tuple[int, int]] = []
        start = span.start
        for line in text[span.start : span.end].splitlines(keepends=True):
            if body := line.strip():
                begin = start + line.index(body[0])
                ruler = len(rows) == 1 and _RULER.match(line)
                rows.append((rows.pop()[0] if ruler else begin, begin + len(body)))
            start += len(line)
        yield from (Span(begin, end, "table") for begin, end in rows)


def _direct_needs(text: str, units: Sequence[Span]) -> Iterator[list[int]]:
    heading = opener = table = None
    for i, unit in enumerate(units):
        before = units[i - 1] if i else None
        needs: list[int] = []
        if unit.kind == "heading":
            needs += [i - 1] if before and before.kind == "heading" else []
            heading, opener = i, None
            yield needs
            continue
        if heading is not None:
            needs.append(heading)
        if unit.kind != "sentence" and before and before.kind != unit.kind:
            opener = i - 1 if text[before.end - 1] in ":：" else None
            table = i
        if unit.kind != "sentence" and opener is not None:
            needs.append(opener)
        if unit.kind == "table" and table is not None and table != i:
            needs.append(table)
        if unit.kind in ("sentence", "list") and before and _POINTS_BACK.match(text, unit.start):
            needs.append(i - 1)
        yield needs

"""Stand-ins for caller text while a chat template renders, and the way back from the rendering to segments.

A template sees digits in place of text, so nothing in a text can steer it, and no filter (`trim`, `upper`, `tojson`)
changes them. The quote that ends a stand-in shows, by the backslashes before it, how often it was written as JSON.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.encoding import ControlTokens


class RenderedSegment(NamedTuple):
    """A run of prompt text that is encoded on its own; only template text (`control`) may become control tokens."""

    text: str
    control: bool
    section: str


class Piece(NamedTuple):
    """A part of one caller text; each part becomes a segment of its own."""

    text: str
    section: str


class _Run(NamedTuple):
    text: str
    control: bool
    section: str
    inline: bool = False


@dataclass(frozen=True, slots=True)
class _Held:
    pieces: Sequence[Piece]
    lead: str
    trail: str
    inline: bool
    required: str | None

    def runs(self, kept_lead: int, kept_trail: int, json_depth: int) -> Iterator[_Run]:
        """The pieces, less the outer white space that the template trimmed."""
        start = len(self.lead) - kept_lead
        end = sum(len(piece.text) for piece in self.pieces) - (len(self.trail) - kept_trail)
        at = 0
        for piece in self.pieces:
            text = piece.text[max(start - at, 0) : max(end - at, 0)]
            at += len(piece.text)
            for _ in range(json_depth):
                text = json.dumps(text, ensure_ascii=False)[1:-1]
            yield _Run(text, False, piece.section, self.inline)


class Placeholders:
    """The stand-ins of one rendering. `nonce` is a long run of digits that no caller can guess."""

    def __init__(self, nonce: str, control: ControlTokens) -> None:
        self._nonce = nonce
        self._control = control
        self._pattern = re.compile(nonce + r'(\d{6})(\\*)"')
        self._held: list[_Held] = []

    def hold(self, pieces: Sequence[Piece], *, inline: bool = False, required: str | None = None) -> str:
        """What the template gets in place of `pieces` joined; outer white space stays, so that it can be trimmed.

        Args:
            pieces: the text in its parts.
            inline: the text is a value in JSON or the like; its segment takes in the line around it.
            required: what to call the text if the template leaves it out; None if it may.
        """
        text = "".join(piece.text for piece in pieces)
        if not text.strip():
            return text
        lead, trail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        self._held.append(_Held(pieces, lead, trail, inline, required))
        return f'{lead}{self._nonce}{len(self._held) - 1:06d}"{trail}'

    def lost(self, rendering: str) -> str | None:
        """What to call the first text that `rendering` lacks though it must not, or has in a changed form."""
        found = [int(match[1]) for match in self._pattern.finditer(rendering)]
        if rendering.count(self._nonce) > len(found):
            return "part of a text, which it takes apart"
        return next((held.required for n, held in enumerate(self._held) if held.required and n not in found), None)

    def segments(self, rendering: str) -> list[RenderedSegment]:
        """`rendering` with the texts back in place, cut into template literals and caller text; none is empty."""
        literals, texts = self._split(rendering)
        runs: list[_Run] = []
        for n, literal in enumerate(literals):
            left = texts[n - 1][-1] if n and texts[n - 1][-1].inline else None
            right = texts[n][0] if n < len(texts) and texts[n][0].inline else None
            runs += self._share(literal, left, right)
            runs += texts[n] if n < len(texts) else ()
        return [RenderedSegment(*run[:3]) for run in _join_inline(run for run in runs if run.text)]

    def _split(self, rendering: str) -> tuple[list[str], list[list[_Run]]]:
        literals, texts, at = [], [], 0
        for match in self._pattern.finditer(rendering):
            held = self._held[int(match[1])]
            literal, end = rendering[at : match.start()], match.end()
            kept_lead = kept_trail = 0
            json_depth = (len(match[2]) + 1).bit_length() - 1
            if not json_depth:
                kept_lead = next(
                    n for n in range(len(held.lead), -1, -1) if literal.endswith(held.lead[-n:] if n else "")
                )
                kept_trail = next(
                    n for n in range(len(held.trail), -1, -1) if rendering.startswith(held.trail[:n], end)
                )
            literals.append(literal[: len(literal) - kept_lead])
            texts.append(list(held.runs(kept_lead, kept_trail, json_depth)))
            at = end + kept_trail
        return [*literals, rendering[at:]], texts

    def _share(self, literal: str, left: _Run | None, right: _Run | None) -> list[_Run]:
        """Give inline texts beside a literal their part of it, so that JSON stays in one piece.

        Between two of one section that is all of it, else what stands on their lines; never a control token.
        """
        if left and right and left.section == right.section and not self._control.find(literal):
            return [_Run(literal, False, left.section, True)]
        breaks = self._control.breaks(literal)
        head = (breaks[0][0] if breaks else len(literal)) if left else 0
        tail = (breaks[-1][1] if breaks else 0) if right else len(literal)
        runs = [_Run(literal[head:tail], True, "template")]
        if left:
            runs.insert(0, _Run(literal[:head], False, left.section, True))
        if right:
            runs.append(_Run(literal[tail:], False, right.section, True))
        return runs


def _join_inline(runs: Iterator[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for run in runs:
        if run.inline and joined and joined[-1].inline and joined[-1].section == run.section:
            joined[-1] = run._replace(text=joined[-1].text + run.text)
        else:
            joined.append(run)
    return joined

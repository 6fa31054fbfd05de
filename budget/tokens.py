"""Tokens of segments and of cut text."""

from collections.abc import Sequence

from budget.ports import TokenCounter
from budget.sentences import soft_cut
from budget.types import Segment

_FIRST_WINDOW = 64
"""Characters looked at for each token of the bound; doubled while they do not fill it."""


class SegmentEncoder:
    """Encodes segments; template literals, which repeat within a prompt and its drafts, once each."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self._control: dict[str, Sequence[int]] = {}

    def encode(self, segment: Segment) -> Sequence[int]:
        """A segment's ids: template text may hold control tokens, caller text never."""
        if not segment.control:
            return self._counter.encode(segment.text)
        if segment.text not in self._control:
            self._control[segment.text] = self._counter.encode_control(segment.text)
        return self._control[segment.text]

    def count(self, segment: Segment) -> int:
        """`len(encode(segment))`."""
        return len(self.encode(segment)) if segment.control else self._counter.count(segment.text)


def truncate(text: str, max_tokens: int, counter: TokenCounter) -> str:
    """The longest good beginning of `text` in at most `max_tokens` tokens.

    A strict prefix of the text, cut after a clause, else at white space, else between characters; a character that
    needs more tokens than there are is left out whole. Ends for any text: each round shortens the prefix.

    Args:
        text: what to cut; returned as it is where it fits.
        max_tokens: the bound; 0 or less gives the empty text.
        counter: encodes as the serving model does.
    """
    if max_tokens <= 0:
        return ""
    limit = _token_limit(text, max_tokens, counter)
    if limit >= len(text):
        return text
    while limit > 0:
        prefix = text[: soft_cut(text, 0, limit)]
        over = counter.count(prefix) - max_tokens
        if over <= 0:
            return prefix
        limit = min(len(prefix), limit) - over
    return ""


def _token_limit(text: str, max_tokens: int, counter: TokenCounter) -> int:
    """Characters that the first `max_tokens` tokens cover whole. Only as much of the text is encoded as needed."""
    window = _FIRST_WINDOW * max_tokens
    while True:
        offsets = counter.offsets(text[:window])
        if len(offsets) > max_tokens:
            return offsets[max_tokens][0]
        if window >= len(text):
            return len(text)
        window *= 2

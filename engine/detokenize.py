"""Tokens to text that is safe to send: whole characters, and nothing of a stop string."""

import codecs
from collections.abc import Callable, Sequence

TokenBytes = Callable[[int], bytes]


class StopMatcher:
    """Knuth-Morris-Pratt matching of one stop string, a character at a time, whatever the token borders."""

    def __init__(self, stop: str) -> None:
        if not stop:
            raise ValueError("a stop string must not be empty")
        self._stop = stop
        self._fallback = _fallbacks(stop)
        self.matched = 0
        """Characters at the end of the text so far that begin (or are) the stop string."""

    def feed(self, char: str) -> bool:
        """Take one more character; True when the stop string is complete."""
        while self.matched and (self.matched == len(self._stop) or self._stop[self.matched] != char):
            self.matched = self._fallback[self.matched - 1]
        if self._stop[self.matched] == char:
            self.matched += 1
        return self.matched == len(self._stop)


class TextStream:
    """One sequence's text. What `push` and `finish` return, joined, is the whole text of the answer.

    The first stop string to be complete ends the text, just before it begins (where several are complete at the same
    character, the longest counts). Invalid bytes become U+FFFD; bytes of a character that never ends are dropped.
    """

    def __init__(self, token_bytes: TokenBytes, stops: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = [StopMatcher(stop) for stop in stops]
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Text that this token makes safe to send, maybe empty; sets `stopped` when a stop string is complete."""
        text = self._decoder.decode(self._token_bytes(token_id))
        return self._release(text) if self._stops and text else text

    def finish(self) -> str:
        """Text that was held back because it could have begun a stop string; nothing after one."""
        held, self._held = self._held, ""
        return held

    def _release(self, text: str) -> str:
        buffer = self._held + text
        for position, char in enumerate(text, start=len(self._held)):
            complete = [stop.matched for stop in self._stops if stop.feed(char)]
            if complete:
                self.stopped, self._held = True, ""
                return buffer[: position + 1 - max(complete)]
        safe = len(buffer) - max(stop.matched for stop in self._stops)
        self._held = buffer[safe:]
        return buffer[:safe]


def _fallbacks(pattern: str) -> list[int]:
    """For each prefix, the length of its longest proper suffix that is a prefix too (Knuth, Morris, Pratt 1977)."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        length += pattern[index] == pattern[length]
        table[index] = length
    return table

"""What ranking needs to know of a passage's sentences whatever the question is, worked out once by content."""

import math
from collections.abc import Callable, Sequence

from budget.bm25 import TermCounts, count_terms
from budget.cache import BoundedCache
from budget.sentences import Span

Cue = Callable[[str], bool]


class Indexed:
    """A passage's sentences under its title, with an inverted index of their terms.

    Attributes:
        sentences: as they stand in the passage.
        headed: the same under the passage's title.
        num_terms: by sentence.
        postings: by term, (position of a sentence, how often it holds the term), in order.
        num_bytes: of each headed sentence in UTF-8.
        length_shares: by sentence; 0 for a dozen letters, 1 from some 300 on, by the logarithm of its UTF-8 bytes.
    """

    __slots__ = ("_cued", "headed", "length_shares", "num_bytes", "num_terms", "postings", "sentences", "whole")

    def __init__(self, text: str, title: str | None, spans: Sequence[Span]) -> None:
        self.sentences = [text[s.start : s.end] for s in spans]
        self.headed = [headed(title, sentence) for sentence in self.sentences]
        self.whole: TermCounts = count_terms(headed(title, text))
        counted = [count_terms(sentence) for sentence in self.headed]
        self.num_terms = [own.num_terms for own in counted]
        self.postings: dict[str, list[tuple[int, int]]] = {}
        for at, own in enumerate(counted):
            for term, count in own.counts.items():
                self.postings.setdefault(term, []).append((at, count))
        self.num_bytes = [len(s.encode("utf-8", "surrogatepass")) for s in self.headed]
        self.length_shares = [_length_share(sentence) for sentence in self.sentences]
        self._cued: dict[Cue, list[bool]] = {}

    def cued(self, cue: Cue) -> list[bool]:
        """Whether each sentence passes a test; `cue` is one of a few that are the same object every time."""
        found = self._cued.get(cue)
        if found is None:
            found = self._cued[cue] = [cue(sentence) for sentence in self.sentences]
        return found


_indexed: BoundedCache[Indexed] = BoundedCache(max_bytes=128 * 1024 * 1024)


def indexed(text: str, title: str | None, spans: Sequence[Span]) -> Indexed:
    """A passage's index, made once by content."""
    key = text, title or None, tuple([s.start for s in spans]), tuple([s.end for s in spans])
    found = _indexed.get(key)
    if found is None:
        found = Indexed(text, title, spans)
        num_postings = sum(map(len, found.postings.values()))
        _indexed.put(key, found, 1000 + 12 * len(text) + 150 * len(found.postings) + 80 * num_postings)
    return found


def headed(title: str | None, text: str) -> str:
    """A sentence under its passage's title, which says what "it" and "she" are."""
    return f"{title}: {text}" if title else text


def _length_share(sentence: str) -> float:
    size = len(sentence.encode("utf-8", "surrogatepass"))
    return min(max(math.log(max(size, 1) / 30) / 2.5, 0.0), 1.0)

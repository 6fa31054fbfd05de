"""What sentences of passages are worth, and in which order they would go into a prompt, whatever its room.

A unit's worth is a power of its score for each of its tokens; what others said before is worth less.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from budget.bm25 import count_terms
from budget.trim import Passage

Units = frozenset[int]

_SHARPNESS = 2.5
"""Exponent of scores: one token that surely helps is worth several that might. Chosen on English and Chinese questions
by how often the answer stays at 10, 25 and 50 % of the tokens."""
_LEAST_SCORE = 0.01
"""So that of passages that say nothing on the question, the first go in, and whole."""
_REPEATED = 0.05
"""What is left of a unit's worth when another said all of it."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A passage, what a token of each unit is worth, and about what the units cost.

    `allowed` are the units that may be kept, all that they need included; `content` those of them that are worth
    something, the best first; `frame_tokens` the label and title.
    """

    passage: Passage
    scores: Sequence[float]
    unit_tokens: Sequence[float]
    frame_tokens: float
    allowed: Units
    content: tuple[int, ...]

    def limited_to(self, allowed: Units) -> "Scored":
        """The same with fewer units that may be kept."""
        return replace(self, allowed=allowed, content=tuple(u for u in self.content if u in allowed))

    def closure(self, wanted: Sequence[int]) -> Units:
        """Units and all that they need."""
        if len(wanted) == 1:
            return self.passage.closure(wanted[0]) & self.allowed
        return frozenset().union(*map(self.passage.closure, wanted)) & self.allowed

    def tokens(self, units: Units, old: Units) -> float:
        """About what `units` cost beside `old`."""
        return sum([self.unit_tokens[unit] for unit in units - old]) + (0 if old else self.frame_tokens)


def scored(passage: Passage, scores: Sequence[float], whole_tokens: int, frame_tokens: int) -> Scored:
    """Takes a unit's share of the characters for its share of the tokens; exact counts decide in the end."""
    lengths = [unit.end - unit.start for unit in passage.units]
    share = max(whole_tokens - frame_tokens, 1) / max(sum(lengths), 1)
    worth = [0.0] * len(lengths)
    for unit in passage.content:
        worth[unit] = max(scores[unit], _LEAST_SCORE) ** _SHARPNESS
    content = tuple(sorted(passage.content, key=lambda unit: -worth[unit]))
    unit_tokens = [max(n * share, 0.1) for n in lengths]
    return Scored(passage, worth, unit_tokens, frame_tokens, passage.everything, content)


@dataclass(frozen=True, slots=True)
class Step:
    """The next units to take of one passage: `wanted` ones and what they need. The first pay best."""

    density: float
    index: int
    wanted: tuple[int, ...]
    units: Units = frozenset()
    tokens: float = 0.0

    def __lt__(self, other: "Step") -> bool:
        return (-self.density, self.index, self.wanted) < (-other.density, other.index, other.wanted)


def steps(passages: Sequence[Scored], diversity: float) -> Iterator[Step]:
    """All units of all passages in falling order of worth per token, whatever the room.

    A passage begins with those of its best units that together pay best for its label and title; then come single
    units, each with all that it needs. As more is said, worth only falls, so each is looked at again when its turn
    comes (lazy greedy: Minoux 1978, "Accelerated greedy algorithms for maximizing submodular set functions").
    """
    news = _News(passages, diversity)
    taken: list[Units] = [frozenset()] * len(passages)
    heap: list[tuple[float, int, tuple[int, ...]]] = []
    for index, own in enumerate(passages):
        if wanted := _opening(own):
            heap.append((-density(own, own.closure(wanted), frozenset()), index, wanted))
    heapq.heapify(heap)
    while heap:
        expected, index, wanted = heapq.heappop(heap)
        own, old = passages[index], taken[index]
        if old.issuperset(wanted):
            continue
        units = own.closure(wanted)
        now = -density(own, units, old, news.shares(index, units - old))
        if heap and now > max(heap[0][0], expected):
            heapq.heappush(heap, (now, index, wanted))
            continue
        yield Step(-now, index, wanted, units - old, own.tokens(units, old))
        taken[index] |= units
        news.say(index, units - old)
        for unit in own.content if not old else ():
            if unit not in units:
                heapq.heappush(heap, (-density(own, own.closure((unit,)), units), index, (unit,)))


def density(own: Scored, units: Units, old: Units, shares: Mapping[int, float] | None = None) -> float:
    """Worth per token of some units beside `old`; `shares` says how much of each is news."""
    new = units - old
    if shares is None:
        worth = sum([own.scores[u] * own.unit_tokens[u] for u in new])
    else:
        worth = sum([own.scores[u] * own.unit_tokens[u] * shares[u] for u in new])
    return worth / max(own.tokens(new, old), 0.1)


def _opening(own: Scored) -> tuple[int, ...]:
    """The best units, as long as one more raises the worth per token, frame included."""
    units: Units = frozenset()
    worth, tokens, best = 0.0, own.frame_tokens, 0.0
    for count, unit in enumerate(own.content):
        new = own.closure((unit,)) - units
        worth += sum([own.scores[u] * own.unit_tokens[u] for u in new])
        tokens += sum([own.unit_tokens[u] for u in new])
        if worth / tokens <= best:
            return own.content[:count]
        units, best = units | new, worth / tokens
    return own.content


class _News:
    """How much of a unit was not said yet."""

    def __init__(self, passages: Sequence[Scored], diversity: float) -> None:
        self._passages = passages
        self._diversity = diversity
        self._said: set[str] = set()
        self._units_said: set[frozenset[str]] = set()

    def say(self, index: int, units: Units) -> None:
        for unit in units:
            own = self._terms_of(index, unit)
            self._said |= own
            self._units_said.add(own)

    def shares(self, index: int, units: Units) -> dict[int, float]:
        return {unit: self._share(self._terms_of(index, unit)) for unit in units}

    def _share(self, own: frozenset[str]) -> float:
        if own in self._units_said:
            return _REPEATED
        return 1 - self._diversity * len(own & self._said) / max(len(own), 1)

    def _terms_of(self, index: int, unit: int) -> frozenset[str]:
        passage = self._passages[index].passage
        span = passage.units[unit]
        return frozenset(count_terms(passage.candidate.text[span.start : span.end]).counts)

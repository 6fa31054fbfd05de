"""Fits sentences of passages into a number of tokens: the most useful first, repetition counted once.

The order in which units would go in does not depend on the room (`budget.worth`); the room only says where it ends, and
what is left is filled with later units that still fit. So a larger room never keeps what is worth less.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from budget.worth import Scored, Step, Units, density, steps

Cost = Callable[[int, Units], int]
"""Exact tokens of a passage (by position) with some of its units."""

_FILL_TRIES = 48
"""Steps that did not fit, after which the last room is left empty."""
_NEARLY_FULL = 64
"""Tokens; a larger rest, which estimates left, is estimated once more."""
_LEAST_ROOM = 4
"""Tokens; less than this holds no sentence."""


def fit(passages: Sequence[Scored], room: int, cost: Cost, *, diversity: float = 0.0) -> list[Units]:
    """The units to keep of each passage; an empty set drops it.

    Args:
        passages: most relevant first; ties in usefulness go by this order.
        room: tokens for all passages together.
        cost: exact tokens; asked for little more than once a kept passage.
        diversity: 0..1, how much less a unit is worth when its terms were all said before.
    """
    everything = [p.allowed for p in passages]
    if sum(cost(i, units) for i, units in enumerate(everything) if units) <= room:
        return everything
    filling = _Filling(passages, room, cost)
    filling.run(steps(passages, diversity))
    return filling.kept


class _Filling:
    """Takes steps until the room is full by estimate, corrects that by exact counts, and fills what is left."""

    def __init__(self, passages: Sequence[Scored], room: int, cost: Cost) -> None:
        self.kept: list[Units] = [frozenset()] * len(passages)
        self._passages = passages
        self._cost = cost
        self._tokens = [0] * len(passages)
        self._left = room

    def run(self, steps: Iterator[Step]) -> None:
        while True:
            taken, rest = self._estimated(steps)
            self._keep_all(taken)
            undone = self._undone(taken)
            steps = chain(undone, rest, steps)
            if undone or not taken or self._left < _NEARLY_FULL:
                break
        self._fill(steps)
        for index, own in enumerate(self._passages):
            if self.kept[index] and self.kept[index].issuperset(own.content):
                self._fits(index, own.allowed)

    def _estimated(self, steps: Iterator[Step]) -> tuple[list[Step], list[Step]]:
        """The steps that the room holds by estimate, now kept, and the first that it does not hold."""
        taken: list[Step] = []
        left = float(self._left)
        for step in steps:
            left -= step.tokens
            if left < 0:
                return taken, [step]
            taken.append(step)
            self.kept[step.index] |= step.units
        return taken, []

    def _undone(self, taken: list[Step]) -> list[Step]:
        """The last steps, given up again where exact counts are over the room; in order."""
        undone: list[Step] = []
        while taken and self._left < 0:
            over, first = float(-self._left), len(taken)
            while first and over > 0:
                first -= 1
                over -= taken[first].tokens
                self.kept[taken[first].index] -= taken[first].units
            self._keep_all(taken[first:])
            undone = taken[first:] + undone
            del taken[first:]
        return undone

    def _fill(self, steps: Iterator[Step]) -> None:
        """Takes what still fits, in order; of the beginning of a passage that does not, single units."""
        tries, parts, ahead = 0, list[Step](), next(steps, None)
        while self._left >= _LEAST_ROOM and tries < _FILL_TRIES and (parts or ahead):
            if ahead and not (parts and parts[0] < ahead):
                step, ahead = ahead, next(steps, None)
            else:
                step = heapq.heappop(parts)
            own, old = self._passages[step.index], self.kept[step.index]
            units = own.closure(step.wanted)
            if (now := density(own, units, old)) < step.density:
                heapq.heappush(parts, Step(now, step.index, step.wanted))
            elif not self._fits(step.index, units):
                tries += 1
                for unit in step.wanted if len(step.wanted) > 1 else ():
                    alone = density(own, own.closure((unit,)), old)
                    heapq.heappush(parts, Step(alone, step.index, (unit,)))

    def _fits(self, index: int, units: Units) -> bool:
        """Keeps some units more if they fit; says whether they are in."""
        old = self.kept[index]
        if self._passages[index].tokens(units, old) > 1.25 * self._left + 2:
            return False
        self._keep(index, old | units)
        if self._left < 0:
            self._keep(index, old)
        return self._left >= 0 and self.kept[index] is not old

    def _keep_all(self, taken: Sequence[Step]) -> None:
        for index in {step.index: None for step in taken}:
            self._keep(index, self.kept[index])

    def _keep(self, index: int, units: Units) -> None:
        tokens = self._cost(index, units) if units else 0
        self.kept[index] = units
        self._left += self._tokens[index] - tokens
        self._tokens[index] = tokens

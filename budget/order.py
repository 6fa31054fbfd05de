"""In which order passages stand: by relevance, best at both ends, or so that most of the prefix is in KV already."""

from collections.abc import Callable, Sequence

from budget.ports import PrefixProbe

Ids = Callable[[int, bool], Sequence[int]]
"""Token ids of the passage of a rank; whether it is the first of all."""


def edges(num: int) -> list[int]:
    """Ranks with the best first and last, the least useful in the middle (Liu et al. 2023, "Lost in the Middle")."""
    return [*range(0, num, 2), *reversed(range(1, num, 2))]


def cache_aware(
    num: int, ids: Ids, *, prefix: Sequence[int], probe: PrefixProbe, max_displacement: int
) -> list[int] | None:
    """Puts next, as long as there is one, the passage that makes most tokens hit; the rest follows by relevance.

    Args:
        num: passages, ranked from 0.
        ids: their token ids.
        prefix: ids of the prompt before the first passage.
        probe: tokens of a prefix that are in KV.
        max_displacement: the farthest that a passage may stand from its rank, either way.

    Returns:
        Ranks in order; None where the probe cannot tell.
    """
    hits = probe(prefix)
    if hits is None:
        return None
    left, order, built = list(range(num)), list[int](), list(prefix)
    while left:
        position = len(order)
        overdue = left[0] + max_displacement <= position
        allowed = left[:1] if overdue else [rank for rank in left if rank - position <= max_displacement]
        tried = [(probe([*built, *ids(rank, not order)]) or 0, -rank) for rank in allowed]
        most, best = max(tried)
        if most <= hits:
            break
        hits = most
        order.append(-best)
        left.remove(-best)
        built += ids(-best, position == 0)
    return order + left

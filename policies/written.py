"""Policies as they were written: nested dicts whose leaves know where they stand. Absent stays absent, so that an
overlay hides nothing by a default."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard, Union

from msgspec import UNSET

from policies.errors import Problem
from policies.nodes import Place

Written = Union["Branch", "Value"]
Branch = dict[str, "Written"]


@dataclass(frozen=True, slots=True)
class Value:
    """A leaf: a number, text, bool, None, or a tuple of what stands in a list.

    `value` is UNSET where what was written has been refused. `place` is None for a default;
    `unit` is `duration`, `size`, `count` or None.
    """

    value: Any
    place: Place | None = None
    path: str = ""
    unit: str | None = None

    @property
    def origin(self) -> str:
        """`file:line`, or `default`."""
        return str(self.place) if self.place else "default"


def merge(base: Branch, over: Branch) -> Branch:
    """Both, deeply; where they meet in a leaf (a list is one), `over` wins. Neither is changed."""
    merged = dict(base)
    for key, new in over.items():
        old = merged.get(key)
        merged[key] = merge(old, new) if isinstance(old, dict) and isinstance(new, dict) else new
    return merged


def branch(tree: Branch, *names: str) -> Branch:
    """The branch down there; empty where there is none."""
    for name in names:
        below = tree.get(name)
        if not isinstance(below, dict):
            return {}
        tree = below
    return tree


def leaves(tree: Branch, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Value]]:
    """All leaves below, with the names that lead to them."""
    for key, below in tree.items():
        if isinstance(below, dict):
            yield from leaves(below, (*path, key))
        else:
            yield (*path, key), below


def find(tree: Branch, path: tuple[str, ...]) -> Value | None:
    """The leaf at `path`, if there is one."""
    leaf = branch(tree, *path[:-1]).get(path[-1])
    return leaf if isinstance(leaf, Value) else None


def is_known(value: Value | None) -> TypeGuard[Value]:
    """Whether something stands there that is neither null nor refused."""
    return value is not None and value.value is not UNSET and value.value is not None


def problem_at(value: Value, message: str, fix: str) -> Problem:
    """A problem where `value` was written."""
    return (value.place or Place("default", 1, 1)).problem(value.path, message, fix)


def plain(tree: Written) -> Any:
    """The bare dicts, lists and values; refused ones are left out."""
    if isinstance(tree, Value):
        return [plain(item) for item in tree.value] if isinstance(tree.value, tuple) else tree.value
    return {key: plain(below) for key, below in tree.items() if not _refused(below)}


def _refused(tree: Written) -> bool:
    return isinstance(tree, Value) and tree.value is UNSET

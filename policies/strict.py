"""Nodes read as a msgspec struct, strictly: every unknown key, missing key and wrong value is a problem, all at once.

Serves policy sets, and any other YAML whose keys are a struct's fields.
"""

from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, inspect

from policies.errors import PolicyError, Problem
from policies.leaves import describe, is_null, read_leaf
from policies.nodes import Mapping, Node, Path, Place, Refused, Scalar, Sequence, dotted, parse
from policies.scalars import ScalarError
from policies.suggest import unknown_key_fix
from policies.written import Branch, Value, Written, plain

T = TypeVar("T")


def read_struct(data: bytes | str, file: str, type_: type[T]) -> T:
    """One file as one struct; `extra={"unit": …}` in its types is honoured.

    Raises:
        PolicyError: with every problem of the file.
    """
    node, problems = parse(data, file)
    if node is not None:
        tree, found = read_node(node, type_)
        problems += found
    if node is None or problems:
        raise PolicyError(sorted(problems, key=lambda p: (p.line, p.column)))
    return msgspec.convert(plain(tree), type_)


def read_node(node: Node, root: type) -> tuple[Branch, list[Problem]]:
    """What a file says, as written, and all that is wrong with it. What was refused is UNSET or left out."""
    reader = _Reader(root)
    tree = reader.read(node, _type_info(root), ())
    return (tree if isinstance(tree, dict) else {}), reader.problems


@cache
def _type_info(root: type) -> inspect.Type:
    return inspect.type_info(root)


class _Reader:
    """Walks nodes and types side by side. Problems are collected; nothing is raised."""

    def __init__(self, root: type) -> None:
        self.root = root
        self.problems: list[Problem] = []

    def read(self, node: Node, type_: inspect.Type, path: Path) -> Written:
        if isinstance(node, Refused):
            return Value(UNSET, node.place, dotted(path))
        type_, extra, nullable = unwrap(type_)
        if nullable and isinstance(node, Scalar) and is_null(node):
            return Value(None, node.place, dotted(path))
        if isinstance(type_, inspect.StructType):
            return self._struct(node, type_, path)
        if isinstance(type_, inspect.DictType):
            return self._dict(node, type_, path)
        if isinstance(type_, inspect.VarTupleType):
            return self._list(node, type_, path)
        return self._leaf(node, type_, extra, path)

    def _struct(self, node: Node, type_: inspect.StructType, path: Path) -> Written:
        if not isinstance(node, Mapping):
            return self._not_a(node, "a mapping", _mapping_fix(node), path)
        fields = {field.encode_name: field for field in type_.fields}
        tree: Branch = {}
        for name, (key, value) in node.entries.items():
            if name in fields:
                tree[name] = self.read(value, fields[name].type, (*path, name))
            else:
                fix = unknown_key_fix(name, path, list(fields), self.root)
                self._refuse(key.place, (*path, name), "unknown key", fix)
        for name, field in fields.items():
            if field.required and name not in node.entries:
                self._refuse(node.place, (*path, name), f"`{name}` is missing", f"add `{name}: …`")
        return tree

    def _dict(self, node: Node, type_: inspect.DictType, path: Path) -> Written:
        if not isinstance(node, Mapping):
            return self._not_a(node, "a mapping", _mapping_fix(node), path)
        tree: Branch = {}
        for name, (key, value) in node.entries.items():
            if self._name_is_fine(key, type_.key_type, (*path, name)):
                tree[name] = self.read(value, type_.value_type, (*path, name))
        return tree

    def _name_is_fine(self, key: Scalar, type_: inspect.Type, path: Path) -> bool:
        type_, extra, _ = unwrap(type_)
        # A number is a fine name; its text counts, so `007` and `7` differ.
        name = Scalar(key.text, plain=is_null(key), place=key.place)
        try:
            read_leaf(name, type_, extra)
        except ScalarError as error:
            self._refuse(key.place, path, f"the name: {error.message}", error.fix)
            return False
        return True

    def _list(self, node: Node, type_: inspect.VarTupleType, path: Path) -> Written:
        if not isinstance(node, Sequence):
            fix = f"put it in brackets: [{node.text[:60]}]" if isinstance(node, Scalar) and node.text else "write []"
            return self._not_a(node, "a list", fix, path)
        items = [self.read(n, type_.item_type, (*path, i)) for i, n in enumerate(node.items)]
        return Value(tuple(items), node.place, dotted(path))

    def _leaf(self, node: Node, type_: inspect.Type, extra: dict[str, Any], path: Path) -> Written:
        if not isinstance(node, Scalar):
            return self._not_a(node, "one value", "write one value", path)
        try:
            return Value(read_leaf(node, type_, extra), node.place, dotted(path), extra.get("unit"))
        except ScalarError as error:
            return self._refuse(node.place, path, error.message, error.fix)

    def _not_a(self, node: Node, expected: str, fix: str, path: Path) -> Value:
        if isinstance(node, Scalar):
            found = describe(node)
        else:
            found = "a list" if isinstance(node, Sequence) else "a mapping"
        return self._refuse(node.place, path, f"read {found} where {expected} is expected", fix)

    def _refuse(self, place: Place, path: Path, message: str, fix: str) -> Value:
        self.problems.append(place.problem(dotted(path), message, fix))
        return Value(UNSET, place, dotted(path))


def unwrap(type_: inspect.Type) -> tuple[inspect.Type, dict[str, Any], bool]:
    """The type without `| None` and metadata, its extra metadata, and whether null is allowed."""
    nullable = False
    if isinstance(type_, inspect.UnionType):
        nullable = any(isinstance(t, inspect.NoneType) for t in type_.types)
        (type_,) = (t for t in type_.types if not isinstance(t, inspect.NoneType))
    if isinstance(type_, inspect.Metadata):
        return type_.type, type_.extra or {}, nullable
    return type_, {}, nullable


def _mapping_fix(node: Node) -> str:
    if isinstance(node, Scalar) and is_null(node):
        return "remove the key, or write {}"
    return "write `key: value` lines, indented below it"

"""YAML 1.2 text to a tree of nodes that know their place. Only the plain data of YAML: no aliases, tags or merges.

Built from parser events, so that nothing is expanded (no "billion laughs") and depth is bounded before recursion.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from policies.errors import Problem
from policies.syntax import SyntaxFault, decode, fault_of

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32

Path = tuple[str | int, ...]
"""Names, and positions in lists, from the root to a value."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def problem(self, path: "Path | str", message: str, fix: str) -> Problem:
        """A problem at this place."""
        name = path if isinstance(path, str) else dotted(path)
        return Problem(file=self.file, line=self.line, column=self.column, path=name, message=message, fix=fix)


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text as it stands in the file. `plain`: without quotes, so it may be a number, a bool or null."""

    text: str
    plain: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys with their values, in file order; every key once."""

    entries: dict[str, tuple[Scalar, "Node"]]
    place: Place


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    items: list["Node"]
    place: Place


@dataclass(frozen=True, slots=True)
class Refused:
    """Something that was reported already; readers pass over it."""

    place: Place


Node = Scalar | Mapping | Sequence | Refused


def dotted(path: Path) -> str:
    """`teams.support.keys[0]`; a name that holds a dot, a bracket or white space is quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            name = step if re.fullmatch(r"[^\s.\[\]\"]+", step) else f'"{step[:80]}"'
            text += f".{name}" if text else name
    return text


def parse(data: bytes | str, file: str) -> tuple[Node | None, list[Problem]]:
    """The one document in `data`; None, with problems, where it cannot be read at all."""
    top = Place(file, 1, 1)
    if len(data) > MAX_BYTES:
        fix = "split it into several files in one folder"
        return None, [top.problem("", f"the file is larger than {MAX_BYTES} bytes", fix)]
    tree = _Tree(file)
    text = ""
    try:
        text = (decode(data) if isinstance(data, bytes) else data).removeprefix("\ufeff")
        return tree.document(YAML(typ="safe", pure=True).parse(text)), tree.problems
    except _TooDeep as error:
        tree.problems.append(error.args[0])
    except YAMLError as error:
        tree.add_fault(fault_of(error, text))
    except SyntaxFault as fault:
        tree.add_fault(fault)
    return None, tree.problems


class _TooDeep(Exception):
    """Deeper than `MAX_DEPTH`; carries its problem."""


class _Tree:
    """Builds nodes from events and collects what is refused on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

    def add_fault(self, fault: SyntaxFault) -> None:
        self.problems.append(Place(self.file, fault.line, fault.column).problem("", fault.message, fault.fix))

    def document(self, events: Iterator[Event]) -> Node | None:
        """The first document's root; an empty or a second document is a problem."""
        root: Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    self._refuse(event, (), "a second document starts here", "put it in a file of its own")
                    break
                if event.version not in (None, (1, 2)):
                    self._refuse(event, (), "the file asks for another YAML version", "remove the %YAML line")
            elif isinstance(event, NodeEvent):
                root = self._node(event, events, (), 0)
        if root is None:
            self.problems.append(Place(self.file, 1, 1).problem("", "the file is empty", "start with `version: 1`"))
        return root

    def _node(self, event: Any, events: Iterator[Event], path: Path, depth: int) -> Node:
        place = self._place(event)
        if depth > MAX_DEPTH:
            raise _TooDeep(place.problem(path, f"nested deeper than {MAX_DEPTH} levels", "flatten this part"))
        if isinstance(event, AliasEvent):
            self._refuse(event, path, f"*{event.anchor} is an alias", "write the value out: policies have no aliases")
            return Refused(place)
        if getattr(event, "anchor", None):
            fix = "remove it: `defaults`, `stages` and teams are merged deeply instead"
            self._refuse(event, path, f"&{event.anchor} is an anchor", fix)
        if getattr(event, "tag", None):
            self._refuse(event, path, f"{event.tag} is a tag", "remove the tag; quote what must be text")
            if isinstance(event, ScalarEvent):
                return Refused(place)
        if isinstance(event, ScalarEvent):
            return Scalar(event.value, plain=event.style is None and event.implicit[0], place=place)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(events, path, place, depth)
        return self._mapping(events, path, place, depth)

    def _sequence(self, events: Iterator[Event], path: Path, place: Place, depth: int) -> Sequence:
        items: list[Node] = []
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            items.append(self._node(event, events, (*path, len(items)), depth + 1))
        return Sequence(items, place)

    def _mapping(self, events: Iterator[Event], path: Path, place: Place, depth: int) -> Mapping:
        entries: dict[str, tuple[Scalar, Node]] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key = self._node(event, events, path, depth + 1)
            name = (*path, key.text) if isinstance(key, Scalar) else path
            value = self._node(next(events), events, name, depth + 1)
            if isinstance(key, Scalar):
                if isinstance(value, Scalar) and value.plain and not value.text:
                    value = Scalar("", plain=True, place=key.place)  # nothing stands at the next token
                if self._key_is_fine(key, name, entries):
                    entries[key.text] = key, value
            elif not isinstance(key, Refused):
                fix = 'write a name before the colon; put quotes around text that starts with "{" or "["'
                self.problems.append(key.place.problem(path, "a key must be a name", fix))
        return Mapping(entries, place)

    def _key_is_fine(self, key: Scalar, path: Path, entries: dict[str, tuple[Scalar, Node]]) -> bool:
        if key.plain and key.text == "<<":
            fix = "remove it: `defaults`, `stages` and teams are merged deeply instead"
            self.problems.append(key.place.problem(path, "merge keys are not read", fix))
            return False
        if key.text in entries:
            first = entries[key.text][0].place
            message = f"`{key.text}` is there twice; the first is in line {first.line}"
            self.problems.append(key.place.problem(path, message, "keep one of the two"))
            return False
        return True

    def _place(self, event: Event) -> Place:
        return Place(self.file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _refuse(self, event: Any, path: Path, message: str, fix: str) -> None:
        self.problems.append(self._place(event).problem(path, message, fix))

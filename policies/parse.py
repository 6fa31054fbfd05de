"""YAML 1.2 text to a tree of nodes that know their place. Only the plain data of YAML: no aliases, tags or merges.

Built from parser events, so that nothing is expanded (no "billion laughs") and depth is bounded before recursion.
"""

import codecs
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
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
from ruamel.yaml.reader import ReaderError

from policies.errors import Problem
from policies.nodes import Mapping, Node, Path, Place, Refused, Scalar, Sequence

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32

_TAB_FIX = "indent with spaces: YAML allows no tabs there"


def parse(data: bytes | str, file: str) -> tuple[Node | None, list[Problem]]:
    """The one document in `data`; None, with problems, where it cannot be read at all."""
    top = Place(file, 1, 1)
    if len(data) > MAX_BYTES:
        fix = "split it into several files in one folder"
        return None, [top.problem("", f"the file is larger than {MAX_BYTES} bytes", fix)]
    text = _decode(data, top) if isinstance(data, bytes) else data
    if isinstance(text, Problem):
        return None, [text]
    tree = _Tree(file)
    try:
        return tree.document(YAML(typ="safe", pure=True).parse(text.removeprefix("\ufeff"))), tree.problems
    except _TooDeep as error:
        tree.problems.append(error.args[0])
    except YAMLError as error:
        tree.problems.append(_syntax_problem(error, text, file))
    return None, tree.problems


class _TooDeep(Exception):
    """Deeper than `MAX_DEPTH`; carries its problem."""


class _Tree:
    """Builds nodes from events and collects what is refused on the way."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []

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


def _decode(data: bytes, top: Place) -> str | Problem:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return top.problem("", "the file is UTF-16", "save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig")
        place = _place_at(before, len(before), top.file)
        return place.problem("", f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")


def _place_at(text: str, offset: int, file: str) -> Place:
    lines = text[:offset].split("\n")
    return Place(file, len(lines), len(lines[-1]) + 1)


def _syntax_problem(error: YAMLError, text: str, file: str) -> Problem:
    if isinstance(error, ReaderError):
        place = _place_at(text.removeprefix("\ufeff"), error.position, file)
        return place.problem("", "a control character", "remove it, or write it escaped in double quotes")
    if not isinstance(error, MarkedYAMLError) or (mark := error.problem_mark or error.context_mark) is None:
        return Place(file, 1, 1).problem("", f"not YAML: {error}", "check the syntax")
    what = ": ".join(part for part in (error.context, error.problem) if part)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    return Place(file, mark.line + 1, mark.column + 1).problem("", f"not YAML: {what}", _syntax_fix(what, line))


def _syntax_fix(what: str, line: str) -> str:
    if "\\t" in what or "\t" in line[: len(line) - len(line.lstrip())]:
        return _TAB_FIX
    if "mapping values are not allowed" in what:
        return "indent keys of one level alike, and quote text that holds a colon and a space"
    if "cannot start any token" in what:
        return "quote text that starts with a sign that YAML keeps for itself, such as @, ` or %"
    if "quoted scalar" in what:
        return "close the quotation mark"
    if "flow" in what:
        return "close the bracket, and put commas between its parts"
    return "check indentation, colons and quotation marks around this place"

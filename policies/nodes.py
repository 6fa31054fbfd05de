"""The nodes of a YAML file, each with its place, and the problems that are reported there."""

import re
from dataclasses import dataclass

from policies.errors import Problem

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

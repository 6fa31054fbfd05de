"""A policy set from one file, a folder of files, or text. Loads whole or not at all, with every problem."""

from collections.abc import Sequence
from pathlib import Path

from policies.checks import check
from policies.errors import PolicyError, Problem
from policies.nodes import MAX_BYTES, Mapping, Place, Scalar, parse
from policies.resolve import PolicySet
from policies.schema import PolicyDocument
from policies.strict import read_node
from policies.written import Branch, merge

SUFFIXES = (".yaml", ".yml")
_BY_NAME = ("models", "stages", "teams")
"""Parts that several files may add names to; every other key stands in one file only."""


def load(path: Path | str) -> PolicySet:
    """The set in a file, or in all `*.yaml` and `*.yml` of a folder (not of folders below, nor hidden files).

    Raises:
        PolicyError: with every problem, each with file, line, column, path and a fix.
    """
    return _load([(_read(file), str(file)) for file in _files(Path(path))])


def load_text(text: str | bytes, file: str = "<text>") -> PolicySet:
    """The set that `text` spells; `file` is its name in problems and origins.

    Raises:
        PolicyError: with every problem.
    """
    return _load([(text, file)])


def _files(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        found = [p for p in sorted(path.iterdir()) if p.suffix in SUFFIXES and not p.name.startswith(".")]
    except OSError as error:
        raise _unreadable(path, error) from None
    if not (files := [p for p in found if p.is_file()]):
        raise PolicyError([Place(str(path), 1, 1).problem("", "the folder holds no *.yaml file", "put one there")])
    return files


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> PolicyError:
    message = f"cannot be read: {error.strerror or error}"
    return PolicyError([Place(str(path), 1, 1).problem("", message, "check the path and its permissions")])


def _load(sources: Sequence[tuple[bytes | str, str]]) -> PolicySet:
    document: Branch = {}
    problems: list[Problem] = []
    first_places: dict[tuple[str, ...], Place] = {}
    for data, file in sources:
        node, found = parse(data, file)
        problems += found
        if node is None:
            continue
        tree, found = read_node(node, PolicyDocument)
        problems += found
        if isinstance(node, Mapping):
            problems += _clashes(node, first_places)
        document = merge(document, tree)
    problems += check(document)
    if problems:
        raise PolicyError(sorted(problems, key=lambda p: (p.file, p.line, p.column)))
    return PolicySet.of(document)


def _clashes(root: Mapping, first: dict[tuple[str, ...], Place]) -> list[Problem]:
    """What this file defines and an earlier one did too; `first` is added to."""
    problems = []
    for path, key in _definitions(root):
        if earlier := first.get(path):
            message = f"defined in two files; the first is {earlier}"
            problems.append(key.place.problem(path, message, "keep one of the two"))
        first.setdefault(path, key.place)
    return problems


def _definitions(root: Mapping) -> list[tuple[tuple[str, ...], Scalar]]:
    found: list[tuple[tuple[str, ...], Scalar]] = []
    for name, (key, value) in root.entries.items():
        if name in _BY_NAME and isinstance(value, Mapping):
            found += [((name, below), key_below) for below, (key_below, _) in value.entries.items()]
        elif name != "version" and name not in _BY_NAME:
            found.append(((name,), key))
    return found

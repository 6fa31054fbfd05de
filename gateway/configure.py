"""Settings from their three places: `tidegate.yaml`, then `TIDEGATE_…` variables, then command-line options."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from gateway.settings import Settings
from policies.nodes import Mapping as MappingNode
from policies.nodes import Node, Place, Scalar, parse
from policies.strict import read_node
from policies.written import plain

PREFIX = "TIDEGATE_"
DEFAULT_FILE = "tidegate.yaml"
OTHER_VARIABLES = frozenset({"CONFIG", "CACHE", "URL", "DATA", "CASES"})
"""Read elsewhere: the settings file's place, the cache of converted models, what examples and tests read."""

_FIELDS = {field.name: field.type for field in inspect.type_info(Settings).fields}  # type: ignore[attr-defined]
# Kubernetes sets these for a service called "tidegate"; they are not ours.
_SERVICE_LINK = re.compile(r"TIDEGATE_(SERVICE_(HOST|PORT)(_.*)?|PORT_\d+_.*)")
_TYPO = 0.75


class SettingsError(Exception):
    """Settings that are refused: every problem, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))


def load_settings(
    environ: Mapping[str, str], options: Mapping[str, object] | None = None, config: str | None = None
) -> Settings:
    """The settings in force. `options` are named as the fields; None among them was not given.

    `config` (else TIDEGATE_CONFIG) must exist where it is named; `tidegate.yaml` here is read where it is there.

    Raises:
        SettingsError: with all problems of all three places.
    """
    problems: list[str] = []
    values = _from_file(config or environ.get(PREFIX + "CONFIG") or None, problems)
    values |= _from_environment(environ, problems)
    for name, value in (options or {}).items():
        if name in _FIELDS and value is not None:
            values |= _one(name, str(value), "--" + name.replace("_", "-"), problems)
    if problems:
        raise SettingsError(problems)
    return msgspec.convert(values, Settings)


def stray_variables(environ: Mapping[str, str]) -> list[str]:
    """`TIDEGATE_…` variables that nobody reads and that are no near miss either: worth a word, not a refusal."""
    return sorted(name for name in environ if _is_unknown(name) and _near_miss(name) is None)


def _from_file(config: str | None, problems: list[str]) -> dict[str, Any]:
    if config is None and not Path(DEFAULT_FILE).is_file():
        return {}
    path = Path(config or DEFAULT_FILE)
    try:
        data = path.read_bytes()
    except OSError as error:
        problems.append(f"{path}: {error.strerror}; name an existing settings file")
        return {}
    if not data.strip():
        return {}
    node, found = parse(data, str(path))
    problems += [str(problem) for problem in found]
    return {} if node is None else _read(node, problems)


def _from_environment(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX).lower()
        if _is_unknown(variable):
            if meant := _near_miss(variable):
                problems.append(f"{variable}: no such setting (did you mean {PREFIX}{meant.upper()}?)")
        elif variable.startswith(PREFIX) and name in _FIELDS and text and not _is_service_link(variable, text):
            values |= _one(name, text, variable, problems)
    return values


def _one(name: str, text: str, label: str, problems: list[str]) -> dict[str, Any]:
    """One setting, read by the same rules as in the file; text needs no quotes here."""
    place = Place(label, 1, 1)
    value = Scalar(text, plain=not _is_text(name), place=place)
    return _read(MappingNode({name: (Scalar(name, plain=True, place=place), value)}, place), problems, label)


def _read(node: Node, problems: list[str], label: str | None = None) -> dict[str, Any]:
    """The values that are fine. A problem is shown with its `label`, else with its place in the file."""
    tree, found = read_node(node, Settings)
    problems += [f"{label}: {p.message} ({p.fix})" if label else str(p) for p in found]
    values: dict[str, Any] = plain(tree)
    return values


def _is_text(name: str) -> bool:
    type_ = _FIELDS[name]
    types = type_.types if isinstance(type_, inspect.UnionType) else (type_,)
    return any(isinstance(t, inspect.StrType) for t in types)


def _is_unknown(variable: str) -> bool:
    name = variable.removeprefix(PREFIX)
    known = name.lower() in _FIELDS or name in OTHER_VARIABLES or _SERVICE_LINK.fullmatch(variable)
    return variable.startswith(PREFIX) and not known


def _near_miss(variable: str) -> str | None:
    found = difflib.get_close_matches(variable.removeprefix(PREFIX).lower(), _FIELDS, n=1, cutoff=_TYPO)
    return found[0] if found else None


def _is_service_link(variable: str, text: str) -> bool:
    return variable == PREFIX + "PORT" and text.startswith(("tcp://", "udp://"))

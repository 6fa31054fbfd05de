"""docs/policies.md has every key once, with the type and the default that the code has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, inspect

from policies.load import load_text
from policies.scalars import spell
from policies.schema import KeyEntry, ModelPolicy, Policy
from policies.strict import unwrap

REFERENCE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def type_text(type_: inspect.Type) -> str:
    """A type in the reference's words."""
    type_, extra, nullable = unwrap(type_)
    match type_:
        case inspect.LiteralType():
            text = ", ".join(f"`{value}`" for value in type_.values)
        case inspect.VarTupleType():
            text = f"list of {type_text(type_.item_type)}"
        case inspect.BoolType():
            text = "`true`, `false`"
        case inspect.StrType():
            text = "text"
        case inspect.IntType() | inspect.FloatType():
            is_share = (type_.ge, type_.le) == (0, 1)
            kind = "whole number" if isinstance(type_, inspect.IntType) else "number"
            text = "share" if is_share else extra.get("unit", kind)
            text += f" over {type_.gt:g}" if type_.gt == 0 and "duration" not in text else ""
        case _:
            raise TypeError(f"no words for {type_}")
    return f"{text} or null" if nullable else text


def keys_of(root: type) -> Iterator[tuple[str, str, str]]:
    """(path, type, default) of every leaf below a struct."""
    info = inspect.type_info(root)
    assert isinstance(info, inspect.StructType)
    yield from _keys(info, "")


def _keys(info: inspect.StructType, prefix: str) -> Iterator[tuple[str, str, str]]:
    for field in info.fields:
        type_, extra, _ = unwrap(field.type)
        if isinstance(type_, inspect.StructType):
            yield from _keys(type_, f"{prefix}{field.name}.")
        else:
            default = "required" if field.default is NODEFAULT else _default_text(field.default, extra.get("unit"))
            yield f"{prefix}{field.name}", type_text(field.type), default


def _default_text(value: Any, unit: str | None) -> str:
    spelled = spell(msgspec.to_builtins(value), unit)
    is_word = isinstance(spelled, str) and re.fullmatch(r"\w+", spelled)
    return f"`{spelled if is_word else msgspec.json.encode(spelled).decode()}`"


@pytest.mark.parametrize(("heading", "root"), [("Policy", Policy), ("Models", ModelPolicy), ("Keys", KeyEntry)])
def test_the_reference_has_every_key_with_its_type_and_default(heading: str, root: type) -> None:
    """In the section named after the part; a meaning stands in every row."""
    section = REFERENCE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [match.groups() for match in _ROW.finditer(section)]
    assert [row[:3] for row in rows] == list(keys_of(root))
    assert all(len(row[3]) > 10 for row in rows)


def test_the_example_of_the_reference_loads() -> None:
    """What people copy works."""
    (example,) = re.findall(r"```yaml\n(.*?)```", REFERENCE, re.DOTALL)
    loaded = load_text(example)
    assert loaded.resolve("support", "helpdesk", "production", "chat").policy.context.max_prompt_tokens == 1200


def test_the_reference_warns_of_the_side_channel() -> None:
    """Sharing prefixes between teams lets one learn what another sent: the reader is told."""
    (row,) = [row for row in _ROW.finditer(REFERENCE) if row[1] == "prefix_sharing"]
    assert "cached_tokens" in REFERENCE
    assert "side channel" in row[4]

"""Every effective value with the place it came from, spelled as the YAML spells it."""

from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from policies.resolve import PolicySet
from policies.scalars import spell
from policies.schema import Policy
from policies.strict import unwrap


class Explained(NamedTuple):
    """One line of an explanation: dotted path, value, and `file:line` or `default`."""

    path: str
    value: Any
    origin: str


def explain(policies: PolicySet, team: str, app: str, stage: str, model: str | None = None) -> list[Explained]:
    """What applies, value by value, in the order of the schema.

    Raises:
        UnknownName: the set has no such team, app, stage or model.
    """
    effective = policies.resolve(team, app, stage, model)
    values = flatten(msgspec.to_builtins(effective.policy))
    units = policy_units()
    return [
        Explained(path, spell(value, units.get(path)), effective.origins.get(path, "default"))
        for path, value in values.items()
    ]


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted path -> value, for everything that is no mapping."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


@cache
def policy_units() -> dict[str, str]:
    """Dotted path within a policy -> `duration`, `size` or `count`."""
    return _units(inspect.type_info(Policy), "")


def _units(type_: inspect.Type, prefix: str) -> dict[str, str]:
    type_, extra, _ = unwrap(type_)
    if isinstance(type_, inspect.StructType):
        found: dict[str, str] = {}
        for field in type_.fields:
            found |= _units(field.type, f"{prefix}.{field.name}" if prefix else field.name)
        return found
    return {prefix: extra["unit"]} if "unit" in extra else {}

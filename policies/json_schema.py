"""The JSON Schema of a policy set, spelled as the YAML is written: for editors and for `/v1/schemas/policy.json`."""

import inspect as python_inspect
from typing import Any

import msgspec
from msgspec import NODEFAULT, inspect

from policies.scalars import COUNT_UNITS, DURATION_UNITS, SIZE_UNITS, spell
from policies.schema import PolicyDocument
from policies.strict import unwrap

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_UNITS = {"duration": DURATION_UNITS, "size": SIZE_UNITS, "count": COUNT_UNITS}


def json_schema() -> dict[str, Any]:
    """The schema of `PolicyDocument`; structs are `$defs`, durations are texts with a unit."""
    definitions: dict[str, Any] = {}
    root = _schema(inspect.type_info(PolicyDocument), definitions)
    return {"$schema": DIALECT, "title": "Tidegate policy set", **root, "$defs": dict(sorted(definitions.items()))}


def _schema(type_: inspect.Type, definitions: dict[str, Any]) -> dict[str, Any]:
    type_, extra, nullable = unwrap(type_)
    if "unit" in extra:
        schema = _unit_schema(extra["unit"], type_)
    else:
        schema = _plain_schema(type_, definitions)
    return {"anyOf": [schema, {"type": "null"}]} if nullable else schema


def _plain_schema(type_: inspect.Type, definitions: dict[str, Any]) -> dict[str, Any]:
    match type_:
        case inspect.StructType():
            return _struct_schema(type_, definitions)
        case inspect.DictType():
            names, values = _schema(type_.key_type, definitions), _schema(type_.value_type, definitions)
            return {"type": "object", "propertyNames": names, "additionalProperties": values}
        case inspect.VarTupleType():
            return {"type": "array", "items": _schema(type_.item_type, definitions)}
        case inspect.LiteralType():
            return {"enum": list(type_.values)}
        case inspect.StrType():
            return {"type": "string", **({"pattern": type_.pattern} if type_.pattern else {})}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType() | inspect.FloatType():
            return {"type": "integer" if isinstance(type_, inspect.IntType) else "number", **_bounds(type_)}
    raise TypeError(f"no schema for {type_}")


def _struct_schema(type_: inspect.StructType, definitions: dict[str, Any]) -> dict[str, Any]:
    name = type_.cls.__name__
    if name not in definitions:
        definitions[name] = {}  # keeps its place while its fields are described
        definitions[name] = {
            "type": "object",
            "description": (python_inspect.getdoc(type_.cls) or "").split("\n\n")[0],
            "properties": {field.encode_name: _property(field, definitions) for field in type_.fields},
            "required": [field.encode_name for field in type_.fields if field.required],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def _property(field: inspect.Field, definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(field.type, definitions)
    is_struct = "$ref" in schema
    if field.default is NODEFAULT or is_struct:
        return schema
    _, extra, _ = unwrap(field.type)
    return {**schema, "default": spell(msgspec.to_builtins(field.default), extra.get("unit"))}


def _unit_schema(unit: str, type_: inspect.Type) -> dict[str, Any]:
    text = {"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)?({'|'.join(sorted(_UNITS[unit]))})$"}
    if unit == "duration":
        return text
    assert isinstance(type_, inspect.IntType)
    return {"anyOf": [{"type": "integer", **_bounds(type_)}, text]}


def _bounds(type_: inspect.IntType | inspect.FloatType) -> dict[str, float]:
    named = {"exclusiveMinimum": type_.gt, "minimum": type_.ge, "maximum": type_.le, "exclusiveMaximum": type_.lt}
    return {name: bound for name, bound in named.items() if bound is not None}

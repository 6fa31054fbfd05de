"""One scalar read as one type: YAML 1.2's core rules, and a fix for every way to get it wrong."""

import difflib
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import inspect

from policies.nodes import Scalar
from policies.scalars import ScalarError, parse_count, parse_duration, parse_size

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) ?%")
_SPOKEN_BOOLS = dict.fromkeys(("true", "yes", "on", "y", "1"), True)
_SPOKEN_BOOLS |= dict.fromkeys(("false", "no", "off", "n", "0"), False)

UNITS: dict[str, tuple[str, Callable[[str], float]]] = {
    "duration": ("a duration such as 30s", parse_duration),
    "size": ("a size such as 2MiB", parse_size),
    "count": ("a count such as 1200 or 400k", parse_count),
}


def is_null(scalar: Scalar) -> bool:
    """Whether YAML 1.2 reads null here: nothing, `~` or `null`, without quotes."""
    return scalar.plain and scalar.text in _NULL


def describe(scalar: Scalar) -> str:
    """What was read, for messages: `the number 300`, `the text 'no'`, `null`, `true`."""
    if is_null(scalar):
        return "null"
    if scalar.plain and (scalar.text in _TRUE or scalar.text in _FALSE):
        return scalar.text.lower()
    shown = scalar.text if len(scalar.text) <= 60 else f"{scalar.text[:40]}…{scalar.text[-15:]}"
    if scalar.plain and (_FLOAT.fullmatch(scalar.text) or _NOT_FINITE.fullmatch(scalar.text)):
        return f"the number {shown}"
    return f"the text {shown!r}"


def read_leaf(scalar: Scalar, type_: inspect.Type, extra: dict[str, Any]) -> Any:
    """The value, in seconds, bytes or plain numbers where the type's `extra` names a unit.

    Raises:
        ScalarError: the scalar is not of that type, or out of its bounds.
    """
    if "unit" in extra:
        value: Any = _with_unit(scalar, extra["unit"])
    elif isinstance(type_, inspect.BoolType):
        return _bool(scalar)
    elif isinstance(type_, inspect.LiteralType):
        return _literal(scalar, type_.values)
    elif isinstance(type_, inspect.StrType):
        return _text(scalar, type_, extra)
    elif isinstance(type_, inspect.IntType):
        value = _int(scalar)
    elif isinstance(type_, inspect.FloatType):
        value = _float(scalar, is_share=type_.ge == 0 and type_.le == 1)
    else:
        raise TypeError(f"no reader for {type_}")
    if isinstance(type_, inspect.IntType | inspect.FloatType):
        _check_bounds(scalar, value, type_)
    return value


def nearest(word: str, choices: Sequence[str]) -> str | None:
    """The choice that was probably meant, if any is close."""
    found = [c for c in choices if c.startswith(word.lower())] if len(word) > 2 else []
    if len(found) != 1:
        found = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.6)
    return found[0] if found else None


def _wrong(scalar: Scalar, expected: str, fix: str) -> ScalarError:
    return ScalarError(f"read {describe(scalar)} where {expected} is expected", fix)


def _with_unit(scalar: Scalar, unit: str) -> float:
    expected, parse = UNITS[unit]
    try:
        value = parse(scalar.text)
    except ScalarError as error:
        if error.message.startswith("read "):
            raise _wrong(scalar, expected, error.fix) from None
        raise
    if not scalar.plain and scalar.text.isdigit():
        raise _wrong(scalar, expected, f"remove the quotes: {scalar.text}")
    return value


def _bool(scalar: Scalar) -> bool:
    if scalar.plain and scalar.text in _TRUE:
        return True
    if scalar.plain and scalar.text in _FALSE:
        return False
    meant = _SPOKEN_BOOLS.get(scalar.text.lower())
    fix = "write true or false" if meant is None else f"write {str(meant).lower()}"
    raise _wrong(scalar, "true or false", fix if scalar.plain else f"{fix}, without quotes")


def _literal(scalar: Scalar, values: tuple[Any, ...]) -> Any:
    for value in values:
        if scalar.text == str(value) and (isinstance(value, str) or scalar.plain):
            return value
    names = [str(value) for value in values]
    expected = names[0] if len(names) == 1 else f"one of {', '.join(names)}"
    fix = f"write {expected}"
    if set(names) == {"on", "off"} and (meant := _SPOKEN_BOOLS.get(scalar.text.lower())) is not None:
        fix = "write on" if meant else "write off"
    elif len(names) > 1 and (near := nearest(scalar.text.replace("-", "_"), names)):
        fix = f"did you mean {near}?"
    raise _wrong(scalar, expected, fix)


def _text(scalar: Scalar, type_: inspect.StrType, extra: dict[str, Any]) -> str:
    if not describe(scalar).startswith("the text"):
        fix = "write a text, or remove the key" if is_null(scalar) else f'put it in quotes: "{scalar.text[:60]}"'
        raise _wrong(scalar, "text", fix)
    if type_.pattern and not re.fullmatch(type_.pattern, scalar.text):
        what = "text" if extra.get("secret") else describe(scalar)
        raise ScalarError(f"{what} is not {extra.get('is', type_.pattern)}", extra.get("fix", "write it in that form"))
    return scalar.text


def _int(scalar: Scalar) -> int:
    if scalar.plain and _INT.fullmatch(scalar.text):
        digits = scalar.text.lstrip("+-")
        if len(digits) > 18:
            raise ScalarError(f"{describe(scalar)} is too large", "write a smaller number")
        if len(digits) > 1 and digits.startswith("0"):
            message = f"{scalar.text} has a leading zero, which some readers take for octal"
            raise ScalarError(message, f"write {int(scalar.text)}")
        return int(scalar.text)
    raise _wrong(scalar, "a whole number", "write a whole number, without quotes")


def _float(scalar: Scalar, *, is_share: bool) -> float:
    if scalar.plain and _FLOAT.fullmatch(scalar.text):
        value = float(scalar.text)
        if math.isfinite(value):
            return value
    if is_share and (percent := _PERCENT.fullmatch(scalar.text)):
        raise _wrong(scalar, "a share from 0 to 1", f"write {float(percent[1]) / 100:g}")
    if not scalar.plain and _FLOAT.fullmatch(scalar.text):
        raise _wrong(scalar, "a number", f"remove the quotes: {scalar.text}")
    raise _wrong(scalar, "a finite number", "write a number such as 0.5")


def _check_bounds(scalar: Scalar, value: float, type_: inspect.IntType | inspect.FloatType) -> None:
    if type_.gt is not None and value <= type_.gt:
        raise ScalarError(f"{scalar.text} is not more than {type_.gt:g}", f"write more than {type_.gt:g}")
    if type_.ge is not None and value < type_.ge:
        raise ScalarError(f"{scalar.text} is less than {type_.ge:g}", f"write {type_.ge:g} or more")
    if type_.le is not None and value > type_.le:
        as_share = type_.ge == 0 and type_.le == 1 and value <= 100
        fix = f"write {value / 100:g} for {value:g} percent" if as_share else f"write {type_.le:g} or less"
        raise ScalarError(f"{scalar.text} is more than {type_.le:g}", fix)

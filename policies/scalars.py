"""Durations, sizes and counts as policies spell them: `1500ms`, `2MiB`, `400k`; parsed exactly, never guessed."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

DURATION_UNITS: Mapping[str, Fraction] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
SIZE_UNITS: Mapping[str, Fraction] = {
    "B": Fraction(1),
    **{f"{p}iB": Fraction(1024**n) for n, p in enumerate("KMGT", start=1)},
    **{f"{p}B": Fraction(1000**n) for n, p in enumerate("kMGT", start=1)},
    "KB": Fraction(1000),
}
COUNT_UNITS: Mapping[str, Fraction] = {"k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9)}

Fix = Callable[[str], str]
"""From the text that was read to the advice what to write."""

MAX_DURATION_S = 36500 * 86400
MAX_INT = 2**63 - 1

_NUMBER = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)([A-Za-z]*)")
_LEADING_NUMBER = re.compile(r"[0-9]{1,19}(?:\.[0-9]{1,19})?")
_EXPONENT = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?[eE]\+?[0-9]{1,2}")
_DURATION_WORDS = re.compile(r"(?i)(msecs?|milli(?:second)?s?)|(secs?|seconds?)|(mins?|minutes?)|(hrs?|hours?)|(days?)")


class ScalarError(ValueError):
    """A value that does not parse. `fix` says what to write instead."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(f"{message} ({fix})")
        self.message = message
        self.fix = fix


def parse_duration(text: str) -> float:
    """Seconds of `1500ms`, `2s`, `1.5m`, `1h` or `30d`; the nearest float to the exact value.

    Raises:
        ScalarError: no unit, an unknown unit, a sign, or more than 100 years.
    """
    number, unit = _split(text, "a duration such as 30s", _duration_fix)
    if unit not in DURATION_UNITS:
        raise ScalarError(f"read {_quote(text)} where a duration such as 30s is expected", _duration_fix(text))
    seconds = Fraction(number) * DURATION_UNITS[unit]
    if seconds > MAX_DURATION_S:
        raise ScalarError(f"{text} is longer than 36500d (100 years)", "write a shorter duration, or null for never")
    return float(seconds)


def parse_size(text: str) -> int:
    """Bytes of `2MiB` (1024²), `2MB` (1000²), `512KiB`, `64kB` or a plain number of bytes.

    Raises:
        ScalarError: an unknown unit, a sign, or no whole number of bytes.
    """
    return _whole(text, SIZE_UNITS, "a size such as 2MiB", _size_fix)


def parse_count(text: str) -> int:
    """The number that `400k`, `20M`, `1.5k` or `1200` stands for.

    Raises:
        ScalarError: an unknown suffix, a sign, or no whole number.
    """
    return _whole(text, COUNT_UNITS, "a count such as 1200 or 400k", _count_fix)


def format_duration(seconds: float) -> str:
    """The shortest spelling that parses back to exactly `seconds`."""
    exact = Fraction(Decimal(repr(seconds)))
    for unit in ("d", "h", "m", "s", "ms"):
        amount = exact / DURATION_UNITS[unit]
        if amount.denominator == 1:
            return f"{amount.numerator}{unit}"
    return f"{Decimal(repr(seconds)):f}s"


def format_size(num_bytes: int) -> str:
    """`2MiB` where the number of bytes is a whole one of a binary unit, else plain bytes."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        amount = num_bytes / SIZE_UNITS[unit]
        if num_bytes and amount.denominator == 1:
            return f"{amount.numerator}{unit}"
    return str(num_bytes)


def spell(value: Any, unit: str | None) -> Any:
    """A value as YAML spells it: durations and sizes as text with their unit, tuples as lists, all else as it is."""
    if isinstance(value, tuple):
        return [spell(item, unit) for item in value]
    if unit == "duration" and value is not None:
        return format_duration(value)
    return format_size(value) if unit == "size" and value is not None else value


def _split(text: str, expected: str, fix: Fix) -> tuple[str, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        if text.startswith("-") and _NUMBER.fullmatch(text[1:]):
            raise ScalarError(f"{text} is negative", f"write {expected}")
        raise ScalarError(f"read {_quote(text)} where {expected} is expected", fix(text))
    return match[1], match[2]


def _whole(text: str, units: Mapping[str, Fraction], expected: str, fix: Fix) -> int:
    number, unit = _split(text, expected, fix)
    if unit and unit not in units:
        raise ScalarError(f"read {_quote(text)} where {expected} is expected", fix(text))
    value = Fraction(number) * units.get(unit, Fraction(1))
    if value.denominator != 1:
        raise ScalarError(f"{text} is not a whole number", f"write {value.numerator // value.denominator}")
    if value > MAX_INT:
        raise ScalarError(f"{text} is larger than {MAX_INT}", "write a smaller number")
    if not unit and len(number) > 1 and number.startswith("0"):
        raise ScalarError(f"{text} has a leading zero, which some readers take for octal", f"write {value.numerator}")
    return value.numerator


def _duration_fix(text: str) -> str:
    found = _LEADING_NUMBER.match(text)
    number = found[0] if found else "30"
    if found and found[0] == text:
        return f"write {number}s or {number}ms"
    rest = text[found.end() :].strip() if found else ""
    word = _DURATION_WORDS.fullmatch(rest)
    if word or rest in DURATION_UNITS or rest.lower() in DURATION_UNITS:
        unit = ("ms", "s", "m", "h", "d")[word.lastindex - 1] if word and word.lastindex else rest.lower()
        return f"write {number}{unit}" if rest != "M" else f"write {number}m for minutes"
    return f"write one number and one of ms, s, m, h, d without a space, such as {number}s"


def _size_fix(text: str) -> str:
    found = _LEADING_NUMBER.match(text)
    number = found[0] if found else "2"
    letter = text[found.end() :].strip()[:1].upper() if found else ""
    if letter in ("K", "M", "G", "T"):
        decimal = "kB" if letter == "K" else f"{letter}B"
        return f"write {number}{letter}iB (powers of 1024) or {number}{decimal} (powers of 1000)"
    return f"write a number and one of B, KiB, MiB, GiB, kB, MB, GB without a space, such as {number}MiB"


def _count_fix(text: str) -> str:
    found = _LEADING_NUMBER.match(text)
    suffix = text[found.end() :].strip() if found else ""
    if found and suffix.lower() in ("k", "m", "g"):
        return f"write {found[0]}{'k' if suffix.lower() == 'k' else suffix.upper()}"
    if _EXPONENT.fullmatch(text) and (value := Fraction(text)) <= MAX_INT:
        return f"write {round(value)}"
    if "_" in text or "," in text:
        digits = text.replace("_", "").replace(",", "")
        if digits.isascii() and digits.isdigit():
            return f"write {digits}"
    return "write a whole number, or one with k, M or G, such as 1200 or 400k"


def _quote(text: str) -> str:
    """The text in quotes, its middle left out where it is long."""
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-15:]}")

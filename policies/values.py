"""Checks of single values whose type alone does not tell good from bad: time zones, dates, templates, patterns."""

import re
from collections.abc import Callable
from datetime import date
from string import Formatter
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from policies.leaves import nearest
from policies.scalars import ScalarError
from policies.schema import EXTRACT_PATTERNS

PLACEHOLDERS = ("id", "title", "text")


def check_time_zone(name: str) -> None:
    """An IANA name.

    Raises:
        ScalarError: the system knows no such zone.
    """
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        if name == "UTC":
            return
        by_lower = {zone.lower(): zone for zone in sorted(available_timezones())}
        meant = nearest(name, tuple(by_lower))
        fix = f"did you mean {by_lower[meant]}?" if meant else "write an IANA name such as UTC or Europe/Berlin"
        raise ScalarError(f"{name!r} is no time zone", fix) from None


def check_date(text: str) -> None:
    """`YYYY-MM-DD`.

    Raises:
        ScalarError: another form, or no day of the calendar.
    """
    try:
        if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
            raise ValueError("not in the form YYYY-MM-DD")
        date.fromisoformat(text)
    except ValueError as error:
        raise ScalarError(f"{text!r} is no date: {error}", "write it as 2027-06-30") from None


def check_document_template(template: str) -> None:
    """`{id}`, `{title}` and `{text}` as `str.format` takes them; the text must be there.

    Raises:
        ScalarError: another placeholder, a stray brace, or no `{text}`.
    """
    known = "use {id}, {title} and {text}; write {{ or }} for a brace itself"
    try:
        fields = [(name, spec, conversion) for _, name, spec, conversion in Formatter().parse(template)]
    except ValueError as error:
        raise ScalarError(f"the template does not parse: {error}", known) from None
    for name, spec, conversion in fields:
        if name is not None and (name not in PLACEHOLDERS or spec or conversion):
            shown = f"{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}"
            raise ScalarError(f"the template has an unknown placeholder {{{shown}}}", known)
    if "text" not in {name for name, _, _ in fields}:
        raise ScalarError("the template leaves the passage's text out", "add {text}")


def check_extract_pattern(pattern: str) -> None:
    """A pattern's name, or a regular expression with a group `text`.

    Raises:
        ScalarError: neither.
    """
    if pattern in EXTRACT_PATTERNS:
        return
    names = ", ".join(EXTRACT_PATTERNS)
    fix = f"write one of {names}, or a regular expression with a group (?P<text>…)"
    if re.fullmatch(r"[\w-]*", pattern):
        meant = nearest(pattern, EXTRACT_PATTERNS)
        raise ScalarError(f"{pattern!r} is no known pattern", f"did you mean {meant}?" if meant else fix)
    try:
        groups = re.compile(pattern).groupindex
    except (re.error, RecursionError, OverflowError) as error:
        raise ScalarError(f"the regular expression does not compile: {error}", fix) from None
    if "text" not in groups:
        raise ScalarError("the regular expression has no group named text", "name the passage's part (?P<text>…)")


VALUE_CHECKS: dict[tuple[str, ...], Callable[[Any], None]] = {
    ("limits", "quota", "time_zone"): check_time_zone,
    ("context", "render", "document"): check_document_template,
    ("context", "extract_documents"): check_extract_pattern,
}
"""By path within a policy. Null is not checked."""

"""Durations, sizes and counts: exact, round, and never guessed."""

from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.scalars import (
    COUNT_UNITS,
    DURATION_UNITS,
    MAX_DURATION_S,
    SIZE_UNITS,
    ScalarError,
    format_duration,
    format_size,
    parse_count,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1500ms", 1.5), ("2s", 2.0), ("5m", 300.0), ("1h", 3600.0), ("30d", 2_592_000.0), ("1.5m", 90.0), ("0.1s", 0.1)],
)
def test_a_duration_is_its_seconds(text: str, seconds: float) -> None:
    """Every unit, and decimals."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("2MiB", 2 * 1024**2), ("512KiB", 512 * 1024), ("1GiB", 1024**3), ("64kB", 64_000), ("3MB", 3_000_000), ("7", 7)],
)
def test_a_size_is_its_bytes(text: str, num_bytes: int) -> None:
    """Powers of 1024 with an i, of 1000 without, plain numbers are bytes."""
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(("text", "count"), [("400k", 400_000), ("20M", 20_000_000), ("1.5k", 1500), ("1200", 1200)])
def test_a_count_is_its_number(text: str, count: int) -> None:
    """Suffixes multiply exactly."""
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["0.29M", "0.57M", "1.13k", "4.35k", "9007199254740993", "8.41M"])
def test_counts_do_not_pass_through_floats(text: str) -> None:
    """Numbers that a float would round stay what they are."""
    number = text.rstrip("kM")
    factor = COUNT_UNITS.get(text[len(number) :], Fraction(1))
    assert parse_count(text) == Fraction(number) * factor


@pytest.mark.parametrize(
    ("parse", "text", "fix"),
    [
        (parse_duration, "300", "write 300s or 300ms"),
        (parse_duration, "0.5", "write 0.5s or 0.5ms"),
        (parse_duration, "-5s", "such as 30s"),
        (parse_duration, "30 sekunden", "such as 30s"),
        (parse_duration, "30 s", "write 30s"),
        (parse_duration, "5min", "write 5m"),
        (parse_duration, "2 hours", "write 2h"),
        (parse_duration, "10 sec", "write 10s"),
        (parse_duration, "250msec", "write 250ms"),
        (parse_duration, "5M", "write 5m for minutes"),
        (parse_duration, "2S", "write 2s"),
        (parse_duration, "1m30s", "one number and one of"),
        (parse_duration, "", "such as 30s"),
        (parse_duration, "40000d", "null for never"),
        (parse_duration, "1:00", "without a space"),
        (parse_duration, "３０s", "such as"),
        (parse_size, "2M", "2MiB (powers of 1024) or 2MB (powers of 1000)"),
        (parse_size, "2mib", "2MiB"),
        (parse_size, "64K", "64KiB (powers of 1024) or 64kB"),
        (parse_size, "0.3KiB", "write 307"),
        (parse_size, "two", "such as 2MiB"),
        (parse_count, "400K", "write 400k"),
        (parse_count, "20m", "write 20M"),
        (parse_count, "1_000", "write 1000"),
        (parse_count, "1,000", "write 1000"),
        (parse_count, "1.0005k", "write 1000"),
        (parse_count, "-3", "such as 1200"),
        (parse_count, "0400", "write 400"),
        (parse_count, "9" * 40, "whole number"),
        (parse_count, "9999999999G", "smaller"),
        (parse_count, "many", "such as 1200 or 400k"),
    ],
)
def test_what_is_not_clear_is_refused_with_a_fix(parse: object, text: str, fix: str) -> None:
    """No default, no guess: an error that says what to write."""
    assert callable(parse)
    with pytest.raises(ScalarError) as caught:
        parse(text)
    assert fix in caught.value.fix


@given(st.floats(min_value=1e-9, max_value=MAX_DURATION_S))
def test_durations_round_trip(seconds: float) -> None:
    """Spelling a duration and reading it back gives the same float."""
    text = format_duration(seconds)
    if len(text.partition(".")[2]) <= 20 and len(text) <= 38:
        assert parse_duration(text) == seconds


@given(st.integers(min_value=1, max_value=10**9), st.sampled_from(sorted(DURATION_UNITS)))
def test_whole_durations_are_exact(number: int, unit: str) -> None:
    """A whole number of any unit is the nearest float to it, and comes back as the same time."""
    exact = number * DURATION_UNITS[unit]
    if exact <= MAX_DURATION_S:
        assert parse_duration(f"{number}{unit}") == float(exact)
        assert parse_duration(format_duration(float(exact))) == float(exact)


@given(st.integers(min_value=0, max_value=2**62))
def test_sizes_round_trip(num_bytes: int) -> None:
    """Spelling a size and reading it back gives the same bytes."""
    assert parse_size(format_size(num_bytes)) == num_bytes


@given(st.decimals(min_value=0, max_value=10**6, places=3), st.sampled_from(["k", "M", "G"]))
def test_counts_with_decimals_are_exact(number: object, suffix: str) -> None:
    """Three decimals always fit a suffix of at least a thousand."""
    assert parse_count(f"{number}{suffix}") == Fraction(str(number)) * COUNT_UNITS[suffix]


@given(st.text(max_size=20))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No other exception, whatever is read."""
    for parse in (parse_duration, parse_size, parse_count):
        with suppress(ScalarError):
            assert parse(text) >= 0


def test_units_do_not_overlap_in_meaning() -> None:
    """A unit of one kind that another kind has too would be a trap: only none is shared."""
    assert not set(DURATION_UNITS) & set(SIZE_UNITS)
    assert not set(DURATION_UNITS) & set(COUNT_UNITS)

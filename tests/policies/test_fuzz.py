"""Whatever is read: a policy set, or a PolicyError whose problems all have a place and a fix. Nothing else."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import policies
from policies.errors import PolicyError
from policies.load import load_text

LINES = (Path(policies.__file__).parent / "default.yaml").read_text(encoding="utf-8").splitlines()
WORDS = ["", "~", "no", ".inf", "-1", "0", "1e9", "9" * 400, "漢字"]
SIGNS = [
    "'",
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    ": ",
    "- ",
    "? ",
    "&a",
    "*a",
    "<<: ",
    "!!x ",
    "|",
    ">",
    "#",
    "%",
    "@",
    "--- ",
]
SPACES = ["\t", "\n", "\n  ", "\x00", "\x85", "\u2028", "\ufeff", "\ud800", "... "]
SCRAPS = st.sampled_from(WORDS + SIGNS + SPACES)


def load_or_refuse(text: str | bytes) -> None:
    """Load; a refusal must name places within the text and say what to do."""
    try:
        load_text(text)
    except PolicyError as error:
        problems = error.problems
    else:
        return
    assert problems
    assert all(p.line >= 1 and p.column >= 1 and p.message and p.fix for p in problems)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(LINES) - 1), st.integers(0, 80), st.integers(0, 8), SCRAPS)
def test_a_damaged_set_is_refused_in_order(line: int, column: int, cut: int, scrap: str) -> None:
    """One place of the shipped set is overwritten with something unexpected."""
    damaged = LINES[line][:column] + scrap + LINES[line][column + cut :]
    load_or_refuse("\n".join([*LINES[:line], damaged, *LINES[line + 1 :]]))


@settings(max_examples=150, deadline=None)
@given(st.lists(SCRAPS | st.sampled_from(LINES), max_size=12))
def test_scraps_of_yaml_are_refused_in_order(parts: list[str]) -> None:
    """Signs and lines in any order."""
    load_or_refuse("".join(parts))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused_in_order(data: bytes) -> None:
    """Not every upload is text."""
    load_or_refuse(data)

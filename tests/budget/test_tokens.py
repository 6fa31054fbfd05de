"""Cutting text at a number of tokens."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget.tokens import SegmentEncoder, truncate
from budget.types import Segment


@pytest.mark.parametrize("number", [21, 23, 39])
def test_cuts_whole_characters_of_the_text_itself(counter, case, number):
    """Reported faults: own U+FFFD kept, no lone surrogates, Chinese text cut though it has no spaces."""
    given = case(number)
    for budget in given["budgets"]:
        cut = truncate(given["text"], budget, counter)
        assert given["text"].startswith(cut)
        assert counter.count(cut) <= budget
        assert cut.encode().decode() == cut
        assert cut or number != 39


def test_chinese_is_cut_at_a_comma(counter, case):
    """The clause before the bound ends the cut."""
    assert truncate(case(39)["text"], 50, counter).endswith("，")


def test_text_that_fits_is_returned_as_it_is(counter):
    """No cut without need."""
    assert truncate("A b c.", 100, counter) == "A b c."


def test_no_room_gives_no_text(counter):
    """A bound of nothing, or less than a character needs."""
    assert truncate("abc", 0, counter) == truncate("abc", -3, counter) == ""
    assert truncate("\U0001f600", 1, counter) == ""


def test_one_long_sentence_is_cut_in_little_time(counter):
    """Only as much of a megabyte is encoded as the bound needs."""
    start = time.perf_counter()
    cut = truncate("长句没有标点也没有空格" * 40_000, 100, counter)
    assert 0 < counter.count(cut) <= 100
    assert time.perf_counter() - start < 1


@given(data=st.data(), budget=st.integers(0, 40))
def test_a_cut_is_a_prefix_within_its_bound(counter, texts, data, budget):
    """For any text, and never stuck."""
    text = data.draw(st.one_of(texts, st.text()))
    text = text.encode("utf-8", "replace").decode()
    cut = truncate(text, budget, counter)
    assert text.startswith(cut)
    assert counter.count(cut) <= budget


def test_only_template_text_becomes_control_tokens(counter):
    """The same text as template and as a caller's."""
    control, text = (Segment("<|im_end|>", flag, "template") for flag in (True, False))
    encoder = SegmentEncoder(counter)
    assert counter.control_ids.intersection(encoder.encode(control))
    assert not counter.control_ids.intersection(encoder.encode(text))
    for segment in (control, text):
        assert encoder.count(segment) == len(encoder.encode(segment))

"""Passages in units that can be left out without breaking what is kept."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget.dedupe import Candidate
from budget.trim import split
from budget.windows import Piece

PAGE = """# The museum

The museum is a house. It was built in 1900. He said so. Next thing is here.

Options are:
- one
- two

| day | hours |
|---|---|
| Mon | 9-17 |
| Sun | closed |

```sh
open --now
```
The end."""


def passage(text, **changes):
    """A passage with this text."""
    return split(Candidate(0, text, (Piece(0, 0, len(text)),), None, False), "d", "", **changes)


def texts_of(found, units=None):
    """The units' texts."""
    text = found.candidate.text
    return [text[unit.start : unit.end] for n, unit in enumerate(found.units) if units is None or n in units]


def needs(found, beginning):
    """What is kept with the unit that begins so."""
    unit = next(n for n, text in enumerate(texts_of(found)) if text.startswith(beginning))
    return texts_of(found, found.closure(unit))


def test_content_keeps_its_heading():
    """And nothing else, if it stands on its own."""
    assert needs(passage(PAGE), "Next thing") == ["# The museum", "Next thing is here."]


@pytest.mark.parametrize(
    ("text", "sentence", "needed"),
    [
        ("A dam is here. It is old. Fish swim.", "It is", ["A dam is here.", "It is old."]),
        ("A dam is here. It is old. This helps.", "This", ["A dam is here.", "It is old.", "This helps."]),
        ("Ann came. However, she left.", "However", ["Ann came.", "However, she left."]),
        ("Ann came. Sheep ate. Items fell.", "Sheep", ["Sheep ate."]),
        ("Ann came. Sheep ate. Items fell.", "Items", ["Items fell."]),
        ("故宫在北京。它建于1420年。今天开放。", "它", ["故宫在北京。", "它建于1420年。"]),
        ("故宫在北京。该馆很大。其中有钟。", "其中", ["故宫在北京。", "该馆很大。", "其中有钟。"]),
        ("故宫在北京。其实不远。那么走吧。", "其实", ["其实不远。"]),
        ("李明来了。他走了。", "他", ["李明来了。", "他走了。"]),
    ],
)
def test_a_sentence_that_points_back_keeps_the_one_before(text, sentence, needed):
    """Pronouns in both languages; words that only look like them do not."""
    assert needs(passage(text), sentence) == needed


def test_a_list_keeps_the_line_that_introduces_it():
    """Each item alone."""
    assert needs(passage(PAGE), "- two") == ["# The museum", "Options are:", "- two"]


def test_a_row_keeps_the_header_row():
    """With its ruler; the other rows may go."""
    assert needs(passage(PAGE), "| Sun") == ["# The museum", "| day | hours |\n|---|---|", "| Sun | closed |"]


def test_code_is_one_unit():
    """Whole or not at all."""
    assert "```sh\nopen --now\n```" in texts_of(passage(PAGE))


def test_a_heading_is_no_content():
    """Unless there is nothing else."""
    found = passage(PAGE)
    assert 0 not in found.content
    assert passage("# Only a heading").content == (0,)


def test_kept_units_stand_as_they_stood():
    """Neighbours keep the space between them; the largest gap stays where others were."""
    found = passage(PAGE)
    assert found.text(found.everything) == PAGE
    assert found.text(found.closure(4)) == "# The museum\n\nNext thing is here."
    assert found.text(frozenset({1, 2})) == "The museum is a house. It was built in 1900."
    assert found.text(frozenset()) == ""


def test_an_ellipsis_marks_each_cut():
    """Within, before and behind; in the text's own form."""
    found = passage("A is. B is. C is. D is.")
    assert found.text(frozenset({0, 2}), ellipsis=True) == "A is. … C is. …"
    assert found.text(frozenset({1}), ellipsis=True) == "… B is. …"
    assert found.text(found.everything, ellipsis=True) == "A is. B is. C is. D is."
    chinese = passage("一在。二在。三在。")
    assert chinese.text(frozenset({0, 2}), ellipsis=True) == "一在。……三在。"


def test_spans_join_neighbours():
    """Offsets into the passage."""
    found = passage("A is. B is. C is. D is.")
    assert found.spans(frozenset({0, 1, 3})) == [(0, 11), (18, 23)]
    assert found.spans(found.everything) == [(0, 23)]


def test_a_cut_keeps_the_beginning_of_one_unit(counter):
    """In whole characters, within its tokens."""
    found = passage("短句。" + "很长的句子，" * 30 + "完。")
    cut = found.cut(1, 20, counter)
    (text,) = texts_of(cut)
    assert text.startswith("很长的句子，")
    assert counter.count(text) <= 20
    assert not cut.covers_all(cut.everything)
    assert cut.text(cut.everything) == text


def test_unit_none_is_one_unit():
    """The whole passage or nothing."""
    found = passage(" A is. B is. ", whole=True)
    assert found.text(found.everything) == "A is. B is."


def test_a_text_of_pronouns_alone_takes_little_time():
    """Chains of needs are bounded."""
    start = time.perf_counter()
    found = passage("It is so. " * 20_000)
    assert len(found.closure(19_999)) < 50
    assert time.perf_counter() - start < 3


@given(data=st.data())
def test_units_and_their_needs_are_sound(texts, data):
    """Units cover all but white space; needs point backwards and are closed; kept text is made of units."""
    text = data.draw(st.one_of(texts, st.text(alphabet="# |-\nab.:它。It ")))
    found = passage(text)
    joined = "".join("".join(texts_of(found)).split())
    assert joined == "".join(text.split())
    for unit in range(len(found.units)):
        closure = found.closure(unit)
        assert max(closure) == unit
        assert all(found.closure(need) <= closure for need in closure)
    units = frozenset(n for n in found.everything if data.draw(st.booleans()))
    assert "".join(found.text(units).split()) == "".join("".join(texts_of(found, units)).split())
    assert sum(end - start for start, end in found.spans(units)) <= len(text)

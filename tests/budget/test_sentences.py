import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget.sentences import Span, sentences, soft_cut


def parts(text: str) -> list[str]:
    """The spans' texts."""
    return [text[s.start : s.end] for s in sentences(text)]


def kinds(text: str) -> list[str]:
    """The spans' kinds."""
    return [s.kind for s in sentences(text)]


ANY_TEXT = st.text(
    st.one_of(
        st.sampled_from(list(" \n\t.!?。！？；…,，、:;\"'”」)）1aA北京|-#`•\u200b\u200d\ufe0f\ud83d🙂אب")),
        st.characters(codec=None),
    ),
    max_size=120,
)


def test_addresses_paths_and_versions_are_whole(case) -> None:
    """E-mail and web addresses, file names and versions hold no sentence end."""
    assert parts(case(35)["text"]) == [
        "Mail ops@example.org or see https://docs.example.org/v1.2/setup.html?x=1.",
        "Edit app.config.toml for v2.10.3!",
        "Done.",
    ]


def test_decimals_and_abbreviations_do_not_split(case) -> None:
    """A stop within a number, or after Dr., et al., Jan., a.m. or St., ends nothing."""
    assert parts(case(37)["text"]) == [
        "Body heat was 98.6 degrees.",
        "Pi is 3.14.",
        "Dr. Lee et al. measured it on Jan. 5 at 10 a.m. in St. Gallen.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("他说：“好。”然后走了。", ["他说：“好。”", "然后走了。"]),
        ("温度是3.5度！真的？是；不是……", ["温度是3.5度！", "真的？", "是；", "不是……"]),
        ("曹爽撤军.蜀汉截击.", ["曹爽撤军.", "蜀汉截击."]),
        ("他(见图3。)离开了。", ["他(见图3。)", "离开了。"]),
        ("版本v2.0发布！下载地址https://a.cn/x?y=1。", ["版本v2.0发布！", "下载地址https://a.cn/x?y=1。"]),
        ("Really?! Yes. “No.” She left.", ["Really?!", "Yes.", "“No.”", "She left."]),
        ("See e.g. the U.S. Army. J. K. Rowling wrote it.", ["See e.g. the U.S. Army.", "J. K. Rowling wrote it."]),
        ("It closed at 5 p.m. The shop reopened.", ["It closed at 5 p.m.", "The shop reopened."]),
        ("He lives in the U.S. He works there.", ["He lives in the U.S.", "He works there."]),
        ("Wait... what? He left... Then he came.", ["Wait... what?", "He left...", "Then he came."]),
        ("Founded in 1990. It grew.", ["Founded in 1990.", "It grew."]),
        ("returns are accepted. refunds take days.", ["returns are accepted.", "refunds take days."]),
        ("No. 5 is alive. No. It is not.", ["No. 5 is alive.", "No.", "It is not."]),
        ("games played． He was first．", ["games played．", "He was first．"]),
    ],
)
def test_ends(text: str, expected: list[str]) -> None:
    """English and Chinese ends, with what closes them, and stops that end nothing."""
    assert parts(text) == expected


def test_structure_stands_apart() -> None:
    """Headings, list items, tables and fenced code are spans of their own kind; code and tables are never cut."""
    text = (
        "# Setup\n\nInstall it. Run it.\n- first item\n- second\n\n| a | b |\n|---|---|\n| x. Y | 2 |\n\n"
        "```py\nx = 1. \nY! z\n```\n一、总则。\n二、附则。"
    )
    assert kinds(text) == [
        "heading",
        "sentence",
        "sentence",
        "list",
        "list",
        "table",
        "code",
        "list",
        "list",
    ]
    assert parts(text)[5] == "| a | b |\n|---|---|\n| x. Y | 2 |"
    assert parts(text)[6].endswith("Y! z\n```")


def test_title_line_is_a_heading() -> None:
    """A short line without an end above longer text is a heading, in both languages; a wrapped line is not."""
    assert kinds("Kobe Bryant\nKobe Bean Bryant (born 1978) is an American. He played.") == ["heading"] + 2 * [
        "sentence"
    ]
    assert kinds("退货政策\n商品签收后七天内可以无理由退货，运费由买家承担。") == ["heading", "sentence"]
    assert parts("He was a\nplayer for the\nLakers. He won.") == ["He was a\nplayer for the\nLakers.", "He won."]


def test_unclosed_fence_runs_to_the_end() -> None:
    """Code whose fence is never closed is one span."""
    assert kinds("```\na. B. C.\nd") == ["code"]


@settings(max_examples=300, deadline=None)
@given(ANY_TEXT)
def test_spans_partition_the_text(text: str) -> None:
    """Spans come in order, do not overlap, begin and end with ink, and leave out only white space."""
    spans = sentences(text)
    end = 0
    for span in spans:
        assert end <= span.start < span.end
        assert not text[end : span.start].strip()
        assert not text[span.start].isspace()
        assert not text[span.end - 1].isspace()
        end = span.end
    assert not text[end:].strip()


PIECES = [
    "a",
    "字",
    ".",
    "a.",
    "\u200b",
    "🙂",
    "x. ",
    "- a\n",
    "“(",
    "| a | b |\n",
    "A\n",
    "\ud83d",
    "。”",
    "1. ",
    "\n",
    "．א",
]


@pytest.mark.parametrize("piece", PIECES, ids=range(len(PIECES)))
def test_linear_in_length(piece: str) -> None:
    """Whatever is repeated, eight times the text takes about eight times the time, not sixty-four."""

    def cpu_s(length: int) -> float:
        text = piece * (length // len(piece))
        start = time.thread_time()
        assert all(isinstance(s, Span) for s in sentences(text))
        return time.thread_time() - start

    assert min(cpu_s(200_000), cpu_s(200_100)) < 30 * min(cpu_s(25_000), cpu_s(25_100)) + 0.1


def test_a_megabyte_in_one_sentence() -> None:
    """A megabyte without a stop is one sentence, and is cut without looking at all of it."""
    text = "字" * 1_000_000
    assert len(sentences(text)) == 1
    assert soft_cut(text, 0, 500_000) == 500_000


def test_soft_cut_finds_the_chinese_comma(case) -> None:
    """Chinese without a stop is cut behind a comma; without a comma, between characters."""
    text = case(39)["text"]
    cut = soft_cut(text, 0, 50)
    assert 16 <= cut <= 50
    assert text[cut - 1] == "，"
    assert soft_cut("字" * 100, 0, 50) == 50


def test_soft_cut_prefers_clause_then_space() -> None:
    """English is cut behind a clause in the second half of the room, else at a space, else within a word."""
    assert soft_cut("one two three, four five six", 0, 20) == len("one two three,")
    assert soft_cut("one, two three four five six", 0, 20) == len("one, two three four")
    assert soft_cut("a" * 50, 0, 20) == 20


def test_soft_cut_keeps_what_is_one_sign() -> None:
    """A combining mark, a skin tone or a joined emoji stays with its base."""
    assert soft_cut("ae\u0301" * 10, 0, 2) == 1
    assert soft_cut("👍🏽👍🏽", 0, 1) == 1  # nothing shorter is left: better a torn sign than none
    assert soft_cut("ab👩\u200d👩\u200d👧cd", 0, 4) == 2


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT, st.integers(0, 100), st.integers(1, 130))
def test_soft_cut_moves_on_and_within_bounds(text: str, start: int, room: int) -> None:
    """A cut is never at or before its start and never beyond its limit, so that cutting on always ends."""
    if start < len(text):
        cut = soft_cut(text, start, start + room)
        assert start < cut <= min(start + room, len(text))

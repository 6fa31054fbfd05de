"""Tokens to text: whole characters, stop strings, nothing repeated and nothing taken back."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.detokenize import TextStream


def stream(pieces: Sequence[bytes], stops: Sequence[str] = ()) -> tuple[list[str], bool]:
    """Deltas of a run that ends when a stop string is complete or the pieces are used up."""
    text = TextStream(pieces.__getitem__, stops)
    deltas = []
    for index in range(len(pieces)):
        deltas.append(text.push(index))
        if text.stopped:
            break
    deltas.append(text.finish())
    return deltas, text.stopped


def unfinished(data: bytes) -> int:
    """Bytes at the end that begin a character and could still become one."""
    for length in range(1, min(len(data), 3) + 1):
        try:
            data[-length:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return length
    return 0


def reference(data: bytes, stops: Sequence[str]) -> str:
    """The whole text at once: decoded without its unfinished end, cut before the stop string that ends first."""
    whole = data[: len(data) - unfinished(data)]
    text = whole.decode("utf-8", "replace")
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    return text[: min(ends)[0] + min(ends)[1]] if ends else text


def test_character_split_over_tokens_comes_whole() -> None:
    """Half a character is held until the other half arrives."""
    assert stream([b"\xed\x95", b"\x9c", b"\xea\xb5", b"\xad"])[0] == ["", "한", "", "국", ""]


def test_invalid_bytes_become_replacement_characters() -> None:
    """Bytes that can never be a character show as U+FFFD, and the text goes on."""
    assert "".join(stream([b"a\xff", b"\xf0\x9f", b"b"])[0]) == "a\ufffd\ufffdb"


def test_replacement_characters_of_the_model_are_kept() -> None:
    """U+FFFD that was generated as such is not mistaken for half a character."""
    assert "".join(stream(["�".encode(), b"x", "�".encode()])[0]) == "�x�"


def test_text_is_held_only_while_it_may_begin_a_stop() -> None:
    """A beginning of the stop string waits; as soon as it cannot become one, it goes out."""
    assert stream([b"a<", b"/", b"b", b"<", b"/s", b">!"], ["</s>"]) == (["a", "", "</b", "", "", "", ""], True)


def test_the_end_flushes_what_was_held() -> None:
    """Without a stop string the held beginning of one is part of the text."""
    assert stream([b"ab", b"<"], ["<|"]) == (["ab", "", "<"], False)


def test_first_complete_stop_wins_and_the_longest_of_those() -> None:
    """Of several stop strings the one complete first ends the text; of those complete together, the longest."""
    assert "".join(stream([b"xabcd"], ["bcd", "bc"])[0]) == "xa"
    assert "".join(stream([b"xabcd"], ["c", "abc"])[0]) == "x"
    assert "".join(stream([b"one\n\ntwo"], ["\n\n", "\n"])[0]) == "one"


def test_stop_with_repeating_beginning_is_found() -> None:
    """Overlapping beginnings of the stop string do not hide it."""
    assert stream([b"aa", b"aab", b"z"], ["aab"]) == (["", "aa", ""], True)


def test_empty_stop_string_is_refused() -> None:
    """It would end every text before it begins."""
    with pytest.raises(ValueError, match="empty"):
        TextStream(lambda token: b"", [""])


@given(
    text=st.text(alphabet="ab<>é한😀", max_size=24).map(str.encode) | st.binary(max_size=16),
    cuts=st.lists(st.integers(0, 96), max_size=24),
    stops=st.lists(st.text(alphabet="ab<>é한", min_size=1, max_size=4), max_size=3),
)
@example(text=b"ab<><cd", cuts=[3], stops=["><"])
def test_text_does_not_depend_on_token_borders(text: bytes, cuts: list[int], stops: list[str]) -> None:
    """However the bytes are cut into tokens, the deltas join to the same text, up to the same stop string."""
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    deltas, stopped = stream(pieces, stops)
    expected = reference(text, stops)
    assert "".join(deltas) == expected
    assert not any(stop in "".join(deltas) for stop in stops)
    assert not stopped or expected != text.decode("utf-8", "replace")

"""Faults that other projects reported, as they would show here."""

import json
import os
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

import pytest

from engine.detokenize import TextStream
from engine.fake import FakeVocabulary

CASES = Path(os.environ.get("TIDEGATE_CASES", Path(__file__).parents[3] / "../shared/cases")) / "reported_faults.jsonl"


def fault(number: int) -> Any:
    """The input of a reported fault."""
    if not CASES.exists():
        pytest.skip(f"no reported faults at {CASES}; set TIDEGATE_CASES")
    cases = {case["n"]: case for case in map(json.loads, CASES.read_text(encoding="utf-8").splitlines())}
    return cases[number]["input"]


def scripted(bench: Any, pieces: list[bytes], **options: Any) -> Any:
    """A bench whose sequences all produce these pieces."""
    vocabulary = FakeVocabulary()
    b = bench(scripts=repeat([vocabulary.piece(piece) for piece in pieces]), **options)
    for piece in pieces:
        b.runner.vocabulary.piece(piece)
    return b


def test_41_generation_stops_inside_a_character(bench: Any) -> None:
    """Unfinished bytes are dropped, the tokens count."""
    pieces = [bytes.fromhex(piece) for piece in fault(41)["token_bytes_hex"]]
    b = scripted(bench, pieces)
    b.add("a", [1], len(pieces))
    b.finish_all()
    assert (b.text("a"), b.finish("a").reason, b.finish("a").usage.output_tokens) == ("Hi ", "length", 4)


@pytest.mark.parametrize("text", ["한국어 텍스트", "汉字🙂测试", "e\u0301👨‍👩‍👧", "\ufffd ok \ufffd"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_41_any_split_of_characters_over_tokens(bench: Any, text: str, size: int) -> None:
    """However characters lie over tokens, no delta has half of one, and together they are the text."""
    data = text.encode()
    pieces = [data[start:end] for start, end in pairwise([*range(0, len(data), size), len(data)])]
    b = scripted(bench, pieces)
    b.add("a", [1], len(pieces))
    b.finish_all()
    assert b.text("a") == text


def test_43_stop_string_that_begins_in_sent_text(bench: Any) -> None:
    """What was sent stays sent, once."""
    case = fault(43)
    b = scripted(bench, [piece.encode() for piece in case["pieces"]])
    b.add("a", [1], 9, stop=tuple(case["stop"]))
    b.finish_all()
    assert [event.text for event in b.events["a"][:-1]] == ["ab<", ""]
    assert b.finish("a").reason == "stop"


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["ab<", ">", "<cd"], ["><"], "ab<"),
        (["ab", "<", "<", "/s", ">"], ["</s>"], "ab<"),
        (["x", "终", "止"], ["终止"], "x"),
        (["aaa", "aab"], ["aaab"], "aa"),
        (["stop"], ["stop"], ""),
    ],
)
def test_43_stop_strings_over_token_borders(pieces: list[str], stop: list[str], expected: str) -> None:
    """Deltas only ever grow into the text before the stop string."""
    text = TextStream([piece.encode() for piece in pieces].__getitem__, stop)
    sent = ""
    for index in range(len(pieces)):
        sent += text.push(index)
        assert expected.startswith(sent)
        if text.stopped:
            break
    assert text.stopped
    assert sent + text.finish() == expected


def test_58_token_bytes_are_the_real_ones(bench: Any) -> None:
    """The bytes of tokens that hold part of a character are its own, and join to the text."""
    pieces = [bytes.fromhex(piece) for piece in fault(58)["token_bytes_hex"]]
    b = scripted(bench, pieces)
    b.add("a", [1], len(pieces))
    b.finish_all()
    found = [b.runner.vocabulary.token_bytes(token) for token in b.tokens("a")]
    assert [list(data) for data in found] == [[240, 159], [152, 138]]
    assert b"".join(found).decode() == b.text("a") == "😊"


def test_63_reused_blocks_lose_their_old_prefix(bench: Any) -> None:
    """A prompt comes back after others took its blocks: it is computed anew, and the same."""
    b = bench(num_blocks=fault(63)["blocks"], block_size=4)
    b.add("first", b"A" * 20, 4)
    b.finish_all()
    for other in (b"B", b"C", b"D"):
        b.add(other.decode(), other * 20, 8)
        b.finish_all()
    b.add("again", b"A" * 20, 4)
    b.finish_all()
    assert b.finish("again").usage.cached_tokens == 0
    assert b.tokens("again") == b.tokens("first") == b.solo("first")


def test_65_same_new_prompt_four_times_at_once(bench: Any) -> None:
    """Duplicates are freed only out of live tables; unrelated load afterwards changes nothing."""
    b = bench(num_blocks=64, block_size=4)
    for n in range(4):
        b.add(f"same{n}", bytes(range(10)), 30)
    for n in range(30):
        b.step()
        b.add(f"load{n}", bytes([200 + n] * 9), 6)
        if n == 20:
            tables = [b.table(f"same{n}") for n in range(4)]
    b.finish_all()
    assert len(tables[0]) >= 6
    assert len({tuple(table[:6]) for table in tables}) == 1
    assert all(b.tokens(f"same{n}") == b.solo("same0") for n in range(4))
    assert all(b.tokens(f"load{n}") == b.solo(f"load{n}") for n in range(30))
    assert b.finish("same3").usage.kv_blocks_shared >= 2


@pytest.mark.parametrize("key", [lambda tokens: 0, lambda tokens: sum(tokens) % 16])
def test_67_colliding_hash_costs_hits_only(bench: Any, key: Any) -> None:
    """Under a useless hash every output is still its own prompt's."""
    b = bench(block_size=2, key=key)
    for turn in range(2):
        for n, prompt in enumerate(fault(67)["prompts"]):
            b.add(f"{turn}{n}", prompt.encode(), 8)
        b.finish_all()
    assert all(b.tokens(request_id) == b.solo(request_id) for request_id in b.requests)
    assert b.finish("10").usage.cached_tokens > 0


def test_68_namespaces_that_join_to_the_same_string(bench: Any) -> None:
    """No cached token crosses namespaces whose parts only look alike when joined."""
    cases = [(f"tenant={r['tenant']}", f"salt={r['salt']}") for r in fault(68)["requests"]]
    spaces = [*cases, ("ab", "c"), ("a", "bc"), ("", "abc"), ("abc",), ("abc", ""), ("ab\0c",), ()]
    b = bench(num_blocks=64, block_size=4)
    for n, namespace in enumerate(spaces):
        b.add(f"r{n}", b"the same prompt", 2, namespace=namespace)
        b.finish_all()
        assert b.finish(f"r{n}").usage.cached_tokens == 0, namespace
        assert b.core.probe(namespace, list(b"the same prompt")) == 12
    b.add("again", b"the same prompt", 2, namespace=spaces[0])
    b.finish_all()
    assert b.finish("again").usage.cached_tokens == 12

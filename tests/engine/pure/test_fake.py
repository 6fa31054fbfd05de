"""The fake runner is honest: what it draws depends on what it reads through the block table."""

from itertools import repeat

import pytest

from engine.batch import SequenceWork
from engine.fake import FakeRunner, FakeVocabulary
from engine.request import SamplingParams

GREEDY = SamplingParams(temperature=0)


def draw(runner: FakeRunner, tokens: list[int], table: list[int], start: int = 0, seq_id: int = 1) -> int:
    """Compute `tokens` from `start` on and draw one."""
    token = runner.run([SequenceWork(seq_id, tokens, start, table, True, GREEDY)])[0]
    assert token is not None
    return token


def test_draw_depends_on_the_blocks_alone() -> None:
    """The same tokens in other blocks draw the same; another token in one block draws another."""
    runner = FakeRunner(8, 2)
    first = draw(runner, [1, 2, 3], [0, 1])
    assert draw(runner, [1, 2, 3], [5, 2]) == first == runner.solo([1, 2, 3], 1)[0]
    draw(runner, [9, 9], [0])
    assert draw(runner, [3], [0, 1], start=2) != first


def test_wrong_position_is_noticed() -> None:
    """A block that was written for another position reads as something else."""
    runner = FakeRunner(8, 2)
    draw(runner, [1, 2, 1, 2, 3], [0, 1, 2])
    assert draw(runner, [3], [1, 0, 2], start=4) != runner.solo([1, 2, 1, 2, 3], 1)[0]


def test_seed_and_temperature_change_the_draw() -> None:
    """A seeded draw repeats itself, another seed gives another text; greedy ignores the seed."""
    runner = FakeRunner(8, 4)
    one, two = SamplingParams(seed=1), SamplingParams(seed=2)
    assert runner.solo([1, 2], 8, one) == runner.solo([1, 2], 8, one) != runner.solo([1, 2], 8, two)
    assert runner.solo([1, 2], 8, SamplingParams(temperature=0, seed=5)) == runner.solo([1, 2], 8, GREEDY)


def test_scripts_are_played_in_order_of_arrival() -> None:
    """The n-th sequence gets the n-th script; a finished script draws the end token; then the digest takes over."""
    runner = FakeRunner(8, 4, scripts=[[65], [66]])
    assert [draw(runner, [1], [0], seq_id=n) for n in (1, 2)] == [65, 66]
    work = SequenceWork(1, [65], 1, [0], True, GREEDY, output_index=1)
    assert runner.run([work]) == [runner.vocabulary.eos_id]
    assert draw(runner, [1], [0], seq_id=3) == runner.solo([1], 1)[0]
    forever = FakeRunner(8, 4, scripts=repeat([65]))
    assert [draw(forever, [1], [0], seq_id=n) for n in range(3)] == [65] * 3


def test_faults_are_raised_where_told() -> None:
    """A step or an output token can be made to fail."""
    runner = FakeRunner(8, 4, raise_at_step=2)
    draw(runner, [1], [0])
    with pytest.raises(RuntimeError, match="step 2"):
        draw(runner, [1], [0])
    with pytest.raises(RuntimeError, match="token 1"):
        draw(FakeRunner(8, 4, raise_at_token=1), [1], [0])


def test_vocabulary_gives_bytes() -> None:
    """Bytes are themselves, control tokens are empty, pieces keep their id."""
    vocabulary = FakeVocabulary(size=262)
    half = vocabulary.piece(b"\xf0\x9f")
    assert vocabulary.piece(b"\xf0\x9f") == half
    assert vocabulary.token_bytes(half) == b"\xf0\x9f"
    assert vocabulary.token_bytes(vocabulary.control("<|start|>")) == b""
    assert b"".join(map(vocabulary.token_bytes, vocabulary.encode("é漢"))).decode() == "é漢"
    vocabulary.piece(b"ab")
    with pytest.raises(ValueError, match="all 262 ids"):
        vocabulary.piece(b"cd")

"""A deterministic engine back end for tests: a byte vocabulary and a runner whose KV blocks hold real content.

The next token depends on what is read *through the block table*, so a block that is shared, reused or evicted
wrongly changes the output:

    runner = FakeRunner(num_blocks=64, block_size=16)
    engine = EmbeddedEngine(EngineConfig(model="fake"), lambda: (runner, runner.vocabulary.token_bytes))
"""

import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

from engine.batch import SequenceWork
from engine.config import ModelInfo
from engine.request import SamplingParams

NUM_BYTES = 256
CONTROL_TOKENS = ("<|eos|>", "<|start|>", "<|end|>", "<|pad|>")
LETTERS = b"abcdefghijklmnopqrstuvwxyz "


class FakeVocabulary:
    """Ids 0..255 are single bytes, the next four control tokens, the rest pieces added by `piece`."""

    def __init__(self, size: int = 4096) -> None:
        self.size = size
        self.eos_id = NUM_BYTES
        self._pieces: list[bytes] = [bytes([b]) for b in range(NUM_BYTES)] + [b""] * len(CONTROL_TOKENS)
        self._ids: dict[bytes, int] = {}

    def piece(self, data: bytes) -> int:
        """Id of a token with exactly these bytes, made on first use.

        Raises:
            ValueError: the vocabulary is full.
        """
        if len(data) == 1:
            return data[0]
        if data not in self._ids:
            if len(self._pieces) >= self.size:
                raise ValueError(f"the vocabulary has no room for another piece: all {self.size} ids are taken")
            self._ids[data] = len(self._pieces)
            self._pieces.append(data)
        return self._ids[data]

    def control(self, name: str) -> int:
        """Id of one of `CONTROL_TOKENS`."""
        return NUM_BYTES + CONTROL_TOKENS.index(name)

    def encode(self, text: str) -> list[int]:
        """One id a UTF-8 byte; never a control token."""
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of a token; empty for control tokens and ids without a piece."""
        return self._pieces[token_id] if token_id < len(self._pieces) else b""


class FakeRunner:
    """An `engine.batch.Runner` without a model.

    Args:
        num_blocks: KV blocks in the pool.
        block_size: tokens a block holds.
        vocabulary: shared with the test, for `piece`; a new one by default.
        max_context_tokens: what `model` says.
        eos_probability: chance of the end token at each draw, decided by the same digest.
        alphabet: ids that are drawn from.
        scripts: token ids to produce, one script a sequence in the order of their first draw; a finished script
            draws the end token. `itertools.repeat(script)` gives all sequences the same one.
        step_delay_s: real time every step takes.
        token_delay_s: real time every computed token takes on top.
        raise_at_step: 1-based step that raises.
        raise_at_token: 1-based output token whose draw raises, for whichever sequence comes to it.
    """

    def __init__(
        self,
        num_blocks: int = 256,
        block_size: int = 16,
        *,
        vocabulary: FakeVocabulary | None = None,
        max_context_tokens: int = 8192,
        eos_probability: float = 0.0,
        alphabet: Sequence[int] = LETTERS,
        scripts: Iterable[Sequence[int]] = (),
        step_delay_s: float = 0.0,
        token_delay_s: float = 0.0,
        raise_at_step: int | None = None,
        raise_at_token: int | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocabulary = vocabulary or FakeVocabulary()
        self.model = ModelInfo(
            id="fake",
            revision="1",
            max_context_tokens=max_context_tokens,
            vocab_size=self.vocabulary.size,
            eos_token_ids=frozenset({self.vocabulary.eos_id}),
            kv_bytes_per_token=8,
        )
        self.num_steps = 0
        self.closed = False
        self._eos_probability = eos_probability
        self._alphabet = alphabet
        self._scripts: Iterator[Sequence[int]] = iter(scripts)
        self._script_of: dict[int, Sequence[int]] = {}
        self._delays = (step_delay_s, token_delay_s)
        self._raise_at = (raise_at_step, raise_at_token)
        self._slots = array("Q", bytes(8 * num_blocks * block_size))
        self._bytes = memoryview(self._slots).cast("B")

    def warm_up(self) -> None:
        """Nothing to warm."""

    def run(self, batch: Sequence[SequenceWork]) -> list[int | None]:
        """Write every work's tokens into its blocks, then draw from what is read back."""
        self.num_steps += 1
        if self.num_steps == self._raise_at[0]:
            raise RuntimeError(f"fake runner was told to raise at step {self.num_steps}")
        delay_s = self._delays[0] + self._delays[1] * sum(len(work.token_ids) for work in batch)
        if delay_s:
            time.sleep(delay_s)
        for work in batch:
            self._write(work)
        return [self._draw(work) if work.sample else None for work in batch]

    def close(self) -> None:
        """Remember that it was called."""
        self.closed = True

    def solo(self, prompt: Sequence[int], num_tokens: int, sampling: SamplingParams | None = None) -> list[int]:
        """What an unshared, unbatched run of `prompt` generates, computed without any block."""
        tokens = list(prompt)
        for index in range(num_tokens):
            slots = array("Q", (slot(token, position) for position, token in enumerate(tokens)))
            tokens.append(self._choose(zlib.crc32(slots.tobytes()), index, sampling or SamplingParams()))
            if tokens[-1] in self.model.eos_token_ids:
                break
        return tokens[len(prompt) :]

    def _write(self, work: SequenceWork) -> None:
        for offset, token in enumerate(work.token_ids):
            block, place = divmod(work.start + offset, self.block_size)
            self._slots[work.block_table[block] * self.block_size + place] = slot(token, work.start + offset)

    def _draw(self, work: SequenceWork) -> int:
        if work.output_index + 1 == self._raise_at[1]:
            raise RuntimeError(f"fake runner was told to raise at token {work.output_index + 1}")
        if work.output_index == 0 and (script := next(self._scripts, None)) is not None:
            self._script_of[work.seq_id] = script
        script = self._script_of.get(work.seq_id)
        if script is None:
            return self._choose(self._digest(work), work.output_index, work.sampling)
        return script[work.output_index] if work.output_index < len(script) else self.vocabulary.eos_id

    def _digest(self, work: SequenceWork) -> int:
        """CRC-32 of all slots of the sequence, in table order."""
        crc, left, width = 0, work.start + len(work.token_ids), 8 * self.block_size
        for block in work.block_table:
            if left <= 0:
                break
            crc = zlib.crc32(self._bytes[block * width : block * width + 8 * min(left, self.block_size)], crc)
            left -= self.block_size
        return crc

    def _choose(self, digest: int, index: int, sampling: SamplingParams) -> int:
        seeded = sampling.temperature > 0 and sampling.seed is not None
        salt = f"{digest}/{sampling.seed}/{index}" if seeded else str(digest)
        number = zlib.crc32(salt.encode())
        if number % 10_000 < self._eos_probability * 10_000:
            return self.vocabulary.eos_id
        return self._alphabet[number // 10_000 % len(self._alphabet)]


def slot(token: int, position: int) -> int:
    """A KV slot's content: never 0, so that an unwritten slot is told from every written one."""
    return token << 32 | position + 1

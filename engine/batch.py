"""One step's work, as the scheduler hands it to a runner: sequences packed without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config import ModelInfo
from engine.request import SamplingParams


@dataclass(slots=True)
class SequenceWork:
    """The part of one sequence that a step computes: a prefill chunk (n >= 1 tokens) or one decode token.

    Positions `start .. start + n - 1` are computed and written to KV; positions below `start` are in KV already.
    """

    seq_id: int
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    """KV blocks in order; covers at least `start + n` positions. The same list object lives as long as the sequence.

    It grows, and an entry may give way to another block of the same content between steps: read it anew each step.
    """
    sample: bool
    """Whether the step ends this sequence's known tokens, so that the next one is drawn."""
    sampling: SamplingParams
    output_index: int = 0
    """How many tokens were generated before the one to draw; seeded draws depend on it."""
    history: Sequence[int] = ()
    """Prompt and output so far; only for penalties, empty where none is asked for."""


class Runner(Protocol):
    """Computes steps over one KV pool. Called from the engine thread only."""

    model: ModelInfo
    block_size: int
    num_blocks: int

    def warm_up(self) -> None:
        """Touch every code path once, so that the first request pays for none of them."""
        ...

    def run(self, batch: Sequence[SequenceWork]) -> list[int | None]:
        """Compute one step; returns the drawn token id for each work with `sample`, None for the others."""
        ...

    def close(self) -> None:
        """Give memory back."""
        ...

"""How long a request waits for its first token: what runs and what waits before it, played forward by the model."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import NamedTuple

from engine.cache import KVCache
from engine.config import EngineConfig
from engine.pace import Audience, Pace
from engine.running import RunningSet
from engine.sequence import SequenceState
from engine.steptime import StepLoad, StepTimeModel

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
RETRY_VALID_S = 0.1
"""Everybody who is refused within so long is told the same: refusing must stay cheap."""


class StepKind(NamedTuple):
    """What steps are like with a certain number of decode rows."""

    chunk_tokens: int
    """The prefill that one may carry."""
    decode_ms: float
    """How long it takes without any."""


class Future:
    """The engine as it will be: prompts are computed one after the other, while others decode.

    Args:
        num_places: sequences that may begin at once.
        num_blocks: KV blocks that can be promised at once.
        kind: what a step is like with so many decodes.
    """

    def __init__(self, num_places: int, num_blocks: int, kind: Callable[[int], StepKind]) -> None:
        self.ms = 0.0
        self._step = 0.0
        self._num_places = num_places
        self._num_blocks = num_blocks
        self._kind = kind
        self._departures: list[tuple[float, int]] = []
        """Step at which a sequence ends, and the blocks that it gives back; a heap."""

    @property
    def kind(self) -> StepKind:
        """What a step is like now."""
        return self._kind(len(self._departures))

    def decode(self, seq: SequenceState) -> None:
        """From now on, `seq` decodes until its expected end."""
        heappush(self._departures, (self._step + seq.expected_output_left, seq.num_blocks))

    def compute(self, num_tokens: int, prefill_ms: float, least_steps: float = 0.0) -> None:
        """Let time pass until so many prompt tokens are computed, which adds `prefill_ms` to the steps."""
        kind = self.kind
        self._pass(max(least_steps, num_tokens / kind.chunk_tokens), kind.decode_ms)
        self.ms += prefill_ms

    def enter(self, seq: SequenceState) -> None:
        """Let time pass until there are a place and the blocks for `seq`, and take them."""
        while self._departures and (self._num_places < 1 or self._num_blocks < seq.num_blocks):
            self._pass(self._departures[0][0] - self._step, self.kind.decode_ms)
        self._num_places -= 1
        self._num_blocks -= seq.num_blocks

    def _pass(self, num_steps: float, step_ms: float) -> None:
        self._step += num_steps
        self.ms += num_steps * step_ms
        while self._departures and self._departures[0][0] <= self._step:
            self._num_blocks += heappop(self._departures)[1]
            self._num_places += 1


class Forecast:
    """Predicts from the engine's present state; changes nothing."""

    def __init__(
        self, config: EngineConfig, running: RunningSet, cache: KVCache, model: StepTimeModel, pace: Pace
    ) -> None:
        self._max_running = config.max_running
        self._step_tokens = config.step_tokens
        self._running = running
        self._cache = cache
        self._model = model
        self._pace = pace
        self._retry: tuple[float, float] = (-math.inf, MIN_RETRY_S)

    def ttft_s(self, seq: SequenceState) -> float | None:
        """Seconds from now until a queued request has its first token; None while too little was measured."""
        if not self._model.ready:
            return None
        start_tag, ahead = self._ahead(seq)
        return self._play([*ahead, seq], start_tag + seq.cost / seq.request.weight) / 1000

    def retry_after_s(self, now: float) -> float:
        """Seconds after which all that waits now should have begun."""
        if self._model.ready and now >= self._retry[0] + RETRY_VALID_S:
            wait_s = self._play(list(self._running.waiting), math.inf) / 1000
            self._retry = now, min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)
        return self._retry[1]

    def _ahead(self, seq: SequenceState) -> tuple[float, list[SequenceState]]:
        """The start tag that `seq` will have, and those in the queue that begin before, if nobody else comes."""
        waiting = self._running.waiting
        ahead = waiting.ahead_in_team(seq)
        start_tag = seq.start_tag + sum(other.cost / other.request.weight for other in ahead)
        for team in self._running.teams.live():
            theirs = team.committed
            for other in waiting.of_team(team) if team is not seq.team else ():
                if theirs >= start_tag:
                    break
                ahead.append(other)
                theirs += other.cost / other.request.weight
        return start_tag, ahead

    def _play(self, queue: Sequence[SequenceState], finish_tag: float) -> float:
        """Milliseconds until the last of `queue`, which has this finish tag, has its first token."""
        running, last = list(self._running.sequences.values()), queue[-1]
        num_places = self._running.num_places or int(self._running.has_place(last.team))
        future = Future(num_places, self._cache.num_available, self._kinds(running, queue))
        for seq in running:
            if seq.decoding:
                future.decode(seq)
        short = future.kind.chunk_tokens // 2
        if last.num_uncached <= short and num_places > sum(seq.num_uncached <= short for seq in queue):
            queue = [last]  # while there are places, the short do not wait for the long
        else:
            for seq in running:
                if not seq.decoding and seq.finish_tag <= finish_tag:
                    future.compute(seq.num_pending, self._model.prefill_ms(seq.num_pending, seq.num_computed))
                    future.decode(seq)
        for seq in queue:
            future.enter(seq)
            start, least_steps = len(seq.tokens) - seq.num_uncached, 1.0 if seq is last else 0.0
            future.compute(seq.num_uncached, self._model.prefill_ms(seq.num_uncached, start), least_steps)
            future.decode(seq)
        return future.ms

    def _kinds(self, running: Iterable[SequenceState], queue: Sequence[SequenceState]) -> Callable[[int], StepKind]:
        """What steps are like by decode rows, with contexts as long as those of `running` and `queue` on average."""
        lengths = [len(seq.tokens) for seq in (*running, *queue)]
        context = sum(lengths) / len(lengths)

        @cache
        def kind(rows: int) -> StepKind:
            decodes = StepLoad(decode_rows=rows, decode_context=int(rows * context))
            audience = Audience(rows, min(len(queue), max(1, self._max_running - rows)))
            start = int(context / 2)
            most = max(1, self._step_tokens - rows)
            chunk = self._pace.prefill_tokens(decodes, audience, start, most, self._cache.block_size)
            return StepKind(chunk, self._model.predict_ms(decodes))

        return kind

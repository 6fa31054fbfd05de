"""Live requests, from the door to their one finish: admission to the queue, deadlines, endings."""

import math
from collections.abc import Iterator

from engine.admission import Bounds, check_request, num_kv_blocks
from engine.blocks import BlockPool
from engine.counters import Counters
from engine.detokenize import TextStream, TokenBytes
from engine.errors import EngineError, RequestRejected
from engine.forecast import Forecast
from engine.meter import Meter, usage
from engine.request import Delta, EngineRequest, Event, Finish, FinishReason, Phase, Usage
from engine.running import RunningSet
from engine.sequence import SequenceState

Emitted = tuple[str, Event]
"""A request's id and its event."""


class RequestTable:
    """Every live request stands here and either waits or runs; `end` is the only way out."""

    def __init__(
        self,
        bounds: Bounds,
        running: RunningSet,
        forecast: Forecast,
        pool: BlockPool,
        counters: Counters,
        eos_token_ids: frozenset[int],
        token_bytes: TokenBytes,
    ) -> None:
        self._bounds = bounds
        self._running = running
        self._forecast = forecast
        self._pool = pool
        self._counters = counters
        self._eos_token_ids = eos_token_ids
        self._token_bytes = token_bytes
        self._sequences: dict[str, SequenceState] = {}
        self._next_id = 0
        self._earliest = math.inf
        """No deadline passes before this instant."""

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(list(self._sequences.values()))

    def get(self, request_id: str) -> SequenceState | None:
        """The live request with this id."""
        return self._sequences.get(request_id)

    def add(self, request: EngineRequest, arrived: float, now: float) -> list[Emitted]:
        """Queue a request; the answer is empty, or its `rejected` finish.

        Raises:
            EngineError: a request with this id is live.
        """
        if request.request_id in self._sequences:
            raise EngineError(f"request id {request.request_id!r} is still live; give every request its own id")
        try:
            check_request(request, self._bounds)
            seq = self._queue(request, arrived, now)
        except RequestRejected as error:
            return [(request.request_id, self._rejected(error, len(request.prompt_token_ids)))]
        except (TypeError, ValueError) as error:  # a caller's bug must not take the engine thread down
            return [(request.request_id, self._rejected(RequestRejected(f"not a valid request: {error}"), 0))]
        self._sequences[request.request_id] = seq
        self._earliest = min(self._earliest, seq.deadline)
        return []

    def expire(self, now: float) -> list[Emitted]:
        """End what is past a deadline, before any more work goes into it."""
        if now < self._earliest:
            return []
        emitted: list[Emitted] = []
        for seq in [seq for seq in self if seq.deadline <= now]:
            passed, phase = min(seq.open_phases(), key=lambda open_phase: open_phase[0])
            self._counters.cancel_to_free_steps[self._counters.steps_since(passed)] += 1
            emitted += self.end(seq, "timeout", now, phase=phase)
        self._earliest = min((seq.deadline for seq in self), default=math.inf)
        return emitted

    def end(
        self,
        seq: SequenceState,
        reason: FinishReason,
        now: float,
        *,
        phase: Phase | None = None,
        message: str | None = None,
        retryable: bool = False,
    ) -> list[Emitted]:
        """Take a request out for good: blocks back, held text out, one finish."""
        self._pool.now = now
        is_complete = reason in ("stop", "length")
        self._running.remove(seq, complete=is_complete)
        del self._sequences[seq.request.request_id]
        self._counters.finished[reason] += 1
        self._counters.recomputed_tokens += seq.meter.num_recomputed
        if not is_complete:
            self._counters.aborts[f"{reason}_{phase}" if phase else reason] += 1
        taken = usage(seq.meter, seq.num_prompt, seq.num_output, self._bounds.block_bytes, now)
        held = seq.text.finish()
        emitted: list[Emitted] = [(seq.request.request_id, Delta(held, ()))] if held else []
        finish = Finish(reason, taken, phase=phase, message=message, retryable=retryable)
        return [*emitted, (seq.request.request_id, finish)]

    def check_integrity(self) -> None:
        """Prove that the table and the scheduler know the same requests.

        Raises:
            RuntimeError: naming what is wrong.
        """
        known = [*self._running.sequences.values(), *self._running.waiting]
        if sorted(seq.seq_id for seq in known) != sorted(seq.seq_id for seq in self):
            raise RuntimeError("a live request is neither waiting nor running, or a dead one still is")
        self._running.check_integrity()

    def _queue(self, request: EngineRequest, arrived: float, now: float) -> SequenceState:
        num_prompt, waiting = len(request.prompt_token_ids), self._running.waiting
        team = self._running.teams.of(request.team, request.weight)
        if waiting.is_full(team, num_prompt):
            self._running.teams.leave(team)
            raise RequestRejected(waiting.describe_full(num_prompt), self._forecast.retry_after_s(now))
        self._next_id += 1
        seq = SequenceState(
            request=request,
            seq_id=self._next_id,
            tokens=list(request.prompt_token_ids),
            num_prompt=num_prompt,
            text=TextStream(self._token_bytes, request.stop),
            stop_ids=(frozenset() if request.ignore_eos else self._eos_token_ids).union(request.stop_token_ids),
            meter=Meter(arrived),
            team=team,
            num_blocks=num_kv_blocks(request, self._bounds),
        )
        seq.next_phase()
        waiting.add(seq)
        ttft_s = self._forecast.ttft_s(seq)
        seq.meter.predicted_ttft_s = None if ttft_s is None else now - arrived + ttft_s
        return seq

    def _rejected(self, error: RequestRejected, num_prompt: int) -> Finish:
        self._counters.finished["rejected"] += 1
        self._counters.aborts["rejected_invalid" if error.retry_after_s is None else "rejected_full"] += 1
        return Finish(
            "rejected",
            Usage(prompt_tokens=num_prompt),
            message=str(error),
            retry_after_s=error.retry_after_s,
            retryable=error.retry_after_s is not None,
        )

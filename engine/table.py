"""Live requests, from the door to their one finish: admission to the queue, deadlines, endings."""

import math
from collections.abc import Iterator

from engine.admission import Bounds, check_request
from engine.blocks import BlockPool
from engine.counters import Counters
from engine.detokenize import TextStream, TokenBytes
from engine.errors import EngineError, RequestRejected
from engine.request import Delta, EngineRequest, Event, Finish, FinishReason, Phase, Usage
from engine.scheduler import Scheduler
from engine.sequence import Meter, SequenceState, usage

Emitted = tuple[str, Event]
"""A request's id and its event."""


class RequestTable:
    """Every live request stands here and either waits or runs in the scheduler; `end` is the only way out."""

    def __init__(
        self,
        bounds: Bounds,
        scheduler: Scheduler,
        pool: BlockPool,
        counters: Counters,
        eos_token_ids: frozenset[int],
        token_bytes: TokenBytes,
    ) -> None:
        self._bounds = bounds
        self._scheduler = scheduler
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

    def add(self, request: EngineRequest, arrived: float) -> list[Emitted]:
        """Queue a request; the answer is empty, or its `rejected` finish.

        Raises:
            EngineError: a request with this id is live.
        """
        if request.request_id in self._sequences:
            raise EngineError(f"request id {request.request_id!r} is still live; give every request its own id")
        try:
            check_request(request, self._bounds)
            seq = self._sequence(request, arrived)
            self._scheduler.waiting.add(seq, self._counters.tokens_per_s)
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
        lease, num_blocks = seq.lease, len(seq.lease.table) if seq.lease else 0
        self._scheduler.remove(seq)
        del self._sequences[seq.request.request_id]
        self._counters.finished[reason] += 1
        taken = usage(seq, lease, num_blocks, self._bounds.block_bytes, now)
        held = seq.text.finish()
        emitted: list[Emitted] = [(seq.request.request_id, Delta(held, ()))] if held else []
        finish = Finish(reason, taken, phase=phase, message=message, retryable=retryable)
        return [*emitted, (seq.request.request_id, finish)]

    def check_integrity(self) -> None:
        """Prove that the table and the scheduler know the same requests.

        Raises:
            RuntimeError: naming what is wrong.
        """
        waiting = list(self._scheduler.waiting)
        scheduled = [*self._scheduler.running.values(), *waiting]
        if sorted(seq.seq_id for seq in scheduled) != sorted(seq.seq_id for seq in self):
            raise RuntimeError("a live request is neither waiting nor running, or a dead one still is")
        if self._scheduler.waiting.num_tokens != sum(seq.num_prompt for seq in waiting):
            raise RuntimeError("the queue's tokens are miscounted")

    def _sequence(self, request: EngineRequest, arrived: float) -> SequenceState:
        self._next_id += 1
        eos_token_ids = frozenset() if request.ignore_eos else self._eos_token_ids
        seq = SequenceState(
            request=request,
            seq_id=self._next_id,
            tokens=list(request.prompt_token_ids),
            num_prompt=len(request.prompt_token_ids),
            text=TextStream(self._token_bytes, request.stop),
            stop_ids=eos_token_ids.union(request.stop_token_ids),
            meter=Meter(arrived),
        )
        seq.next_phase()
        return seq

    def _rejected(self, error: RequestRejected, num_prompt: int) -> Finish:
        self._counters.finished["rejected"] += 1
        return Finish(
            "rejected",
            Usage(prompt_tokens=num_prompt),
            message=str(error),
            retry_after_s=error.retry_after_s,
            retryable=error.retry_after_s is not None,
        )

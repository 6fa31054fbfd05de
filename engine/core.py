"""The engine without threads: requests in, events out, one step at a time. `engine.loop` drives it."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from threading import Lock

from engine.admission import Bounds, check_request
from engine.batch import Runner
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.detokenize import TextStream, TokenBytes
from engine.errors import EngineError, RequestRejected
from engine.prefix import Namespace, Tokens, tokens_themselves
from engine.request import Delta, EngineRequest, EngineStats, Event, Finish, FinishReason, Phase, Usage
from engine.scheduler import Scheduled, Scheduler
from engine.sequence import Meter, SequenceState, usage
from engine.waiting import WaitingQueue

Emitted = tuple[str, Event]
"""A request's id and its event."""

MAX_FAILURES_IN_A_ROW = 5
RATE_DECAY = 0.98
"""A step's weight in the measured rate falls by this with every later step: the last 50 steps count most."""


class EngineCore:
    """One thread calls `add`, `cancel` and `step`; `probe`, `flush` and `stats` may be called from others.

    Args:
        config: bounds of queue, batch and context.
        runner: computes steps; its pool decides how many blocks there are.
        token_bytes: bytes of a token id, empty for control tokens.
        clock: monotonic seconds.
        key: see `PrefixTree`.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        token_bytes: TokenBytes,
        *,
        clock: Callable[[], float] = time.monotonic,
        key: Callable[[Tokens], Hashable] = tokens_themselves,
    ) -> None:
        _check_config(config)
        model = runner.model
        self.cache = KVCache(runner.num_blocks, runner.block_size, sharing=config.prefix_sharing, key=key)
        self.num_steps = 0
        self.broken: str | None = None
        """Set when steps keep failing: nothing more should be asked of this engine."""
        self._runner = runner
        self._token_bytes = token_bytes
        self._clock = clock
        self._bounds = Bounds(
            max_context_tokens=min(config.max_context_tokens or model.max_context_tokens, model.max_context_tokens),
            vocab_size=model.vocab_size,
            block_size=runner.block_size,
            num_blocks=runner.num_blocks,
        )
        self._waiting = WaitingQueue(config.max_queue_requests, config.max_queue_tokens)
        self._scheduler = Scheduler(
            self.cache, self._waiting, max_running=config.max_running, step_tokens=config.step_tokens
        )
        self._sequences: dict[str, SequenceState] = {}
        self._next_id = 0
        self._earliest = math.inf
        """No deadline passes before this instant."""
        self._lock = Lock()
        """Guards cache and tables against `flush`; never held while the runner computes."""
        self._step_ends: deque[float] = deque(maxlen=64)
        self._failures_in_a_row = 0
        self._recent_tokens = self._recent_s = self._total_s = 0.0
        self._counts: Counter[str] = Counter()
        self._finished: Counter[str] = Counter()
        self._cancel_to_free: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, request: EngineRequest, arrived: float) -> list[Emitted]:
        """Queue a request; the answer is empty, or its `rejected` finish."""
        if request.request_id in self._sequences:
            raise EngineError(f"request id {request.request_id!r} is already live")
        num_prompt = len(request.prompt_token_ids)
        try:
            num_blocks = self._scheduler.blocks_to_promise(num_prompt, request.max_tokens)
            check_request(request, self._bounds, num_blocks)
            seq = self._new_sequence(request, arrived)
            self._waiting.add(seq, self._rate())
        except RequestRejected as error:
            self._finished["rejected"] += 1
            finish = Finish(
                "rejected",
                Usage(prompt_tokens=num_prompt),
                message=str(error),
                retry_after_s=error.retry_after_s,
                retryable=error.retry_after_s is not None,
            )
            return [(request.request_id, finish)]
        self._sequences[request.request_id] = seq
        seq.next_phase()
        self._earliest = min(self._earliest, seq.deadline)
        return []

    def cancel(self, request_id: str, asked_at_step: int | None = None) -> list[Emitted]:
        """End a request with `cancelled`, wherever it is; unknown ids are ignored.

        `asked_at_step` is `num_steps` when the caller asked, for the histogram.
        """
        seq = self._sequences.get(request_id)
        if seq is None:
            return []
        self._cancel_to_free[self.num_steps - (self.num_steps if asked_at_step is None else asked_at_step)] += 1
        with self._lock:
            return self._end(seq, "cancelled", self._clock())

    def step(self) -> list[Emitted]:
        """Expire, schedule, run, commit. Without live requests it does nothing."""
        started = self._clock()
        with self._lock:
            emitted = self._expire(started)
            batch = self._schedule(started)
        if not batch:
            return emitted
        try:
            drawn = self._run(batch)
        except Exception as error:
            return emitted + self._fail(batch, error)
        with self._lock:
            return emitted + self._commit(batch, drawn, started)

    def end_all(self, reason: FinishReason, message: str | None = None) -> list[Emitted]:
        """End every live request."""
        now = self._clock()
        with self._lock:
            return [
                event for seq in [*self._sequences.values()] for event in self._end(seq, reason, now, message=message)
            ]

    def probe(self, namespace: Namespace, token_ids: Sequence[int]) -> int:
        """Tokens of this prefix that are cached; from any thread."""
        return self.cache.probe(namespace, token_ids)

    def flush(self, namespace: Namespace | None) -> int:
        """Free idle cached blocks, all or a namespace's; from any thread."""
        with self._lock:
            return self.cache.flush(namespace)

    def stats(self) -> EngineStats:
        """A snapshot; from any thread."""
        pool, counts = self.cache.pool, self._counts
        num_free, num_idle = pool.num_free, pool.num_idle
        return EngineStats(
            ready=self.broken is None,
            healthy=self.broken is None,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._waiting),
            waiting_tokens=self._waiting.num_tokens,
            blocks_total=pool.num_blocks,
            blocks_in_use=pool.num_blocks - num_free - num_idle,
            blocks_idle=num_idle,
            blocks_free=num_free,
            prompt_tokens_total=counts["cached"] + counts["computed"],
            cached_tokens_total=counts["cached"],
            output_tokens_total=counts["output"],
            steps_total=self.num_steps,
            preemptions_total=counts["preemptions"],
            finished_total=dict(self._finished),
            cancel_to_free_steps=dict(self._cancel_to_free),
            step_ms_mean=self._total_s / self.num_steps * 1000 if self.num_steps else None,
            detail=self.broken,
        )

    def check_integrity(self) -> None:
        """Prove tables, tree and pool consistent; between steps only.

        Raises:
            RuntimeError: naming what is wrong.
        """
        running, waiting = self._scheduler.running.values(), list(self._waiting)
        if {id(seq) for seq in [*running, *waiting]} != {id(seq) for seq in self._sequences.values()}:
            raise RuntimeError("a live request is neither waiting nor running, or a dead one still is")
        if self._waiting.num_tokens != sum(seq.num_prompt for seq in waiting):
            raise RuntimeError("the queue's tokens are miscounted")
        self.cache.check_integrity(seq.lease for seq in running if seq.lease is not None)

    def _new_sequence(self, request: EngineRequest, arrived: float) -> SequenceState:
        self._next_id += 1
        eos_ids = frozenset() if request.ignore_eos else self._runner.model.eos_token_ids
        return SequenceState(
            request=request,
            seq_id=self._next_id,
            tokens=list(request.prompt_token_ids),
            num_prompt=len(request.prompt_token_ids),
            text=TextStream(self._token_bytes, request.stop),
            stop_ids=eos_ids.union(request.stop_token_ids),
            meter=Meter(arrived),
        )

    def _expire(self, now: float) -> list[Emitted]:
        if now < self._earliest:
            return []
        emitted: list[Emitted] = []
        for seq in [seq for seq in self._sequences.values() if seq.deadline <= now]:
            passed, phase = min(seq.open_phases(), key=lambda open_phase: open_phase[0])
            self._cancel_to_free[sum(end > passed for end in self._step_ends)] += 1
            emitted += self._end(seq, "timeout", now, phase=phase)
        self._earliest = min((seq.deadline for seq in self._sequences.values()), default=math.inf)
        return emitted

    def _schedule(self, now: float) -> list[Scheduled]:
        self.cache.pool.now = now
        batch = self._scheduler.schedule(now)
        if self._sequences and not batch:
            raise EngineError(f"no progress: {len(self._waiting)} requests wait and nothing can be scheduled")
        return batch

    def _run(self, batch: list[Scheduled]) -> list[int | None]:
        drawn = self._runner.run([scheduled.work for scheduled in batch])
        if [token is not None for token in drawn] != [scheduled.work.sample for scheduled in batch]:
            raise EngineError(f"the runner drew {drawn} for a batch of {len(batch)}")
        return drawn

    def _commit(self, batch: list[Scheduled], drawn: list[int | None], started: float) -> list[Emitted]:
        now = self._end_step(sum(len(scheduled.work.token_ids) for scheduled in batch), started)
        self._failures_in_a_row = 0
        used_ratio = self.cache.pool.num_in_use / self.cache.pool.num_blocks
        emitted: list[Emitted] = []
        for scheduled, token in zip(batch, drawn, strict=True):
            seq = scheduled.seq
            self._advance(seq, len(scheduled.work.token_ids))
            seq.meter.step(len(batch), used_ratio)
            if token is not None:
                emitted += self._append(seq, token, now)
        return emitted

    def _advance(self, seq: SequenceState, num_tokens: int) -> None:
        """Count computed tokens and file the blocks that they fill."""
        assert seq.lease is not None
        if seq.num_computed < seq.num_prompt:
            seq.meter.num_computed += num_tokens
            self._counts["computed"] += num_tokens
        seq.num_computed += num_tokens
        self.cache.commit(seq.lease, seq.num_computed)

    def _append(self, seq: SequenceState, token: int, now: float) -> list[Emitted]:
        """Add a drawn token; returns its delta, and the finish if it was the last."""
        if seq.meter.first_token is None:
            self._counts["cached"] += seq.meter.num_cached
        seq.meter.token(now)
        seq.next_phase()
        seq.tokens.append(token)
        self._counts["output"] += 1
        reason: FinishReason | None = "length" if seq.num_output >= seq.request.max_tokens else None
        text = ""
        if token in seq.stop_ids:
            reason = "stop"
        else:
            text = seq.text.push(token)
            reason = "stop" if seq.text.stopped else reason
        text += seq.text.finish() if reason else ""
        emitted: list[Emitted] = [(seq.request.request_id, Delta(text, (token,)))]
        return emitted + self._end(seq, reason, now) if reason else emitted

    def _fail(self, batch: list[Scheduled], error: Exception) -> list[Emitted]:
        """End the requests of a failed step; none is tried again, so a poisonous one cannot spin."""
        with self._lock:
            now = self._end_step(0, self._clock())
            self._failures_in_a_row += 1
            message = f"the model step failed: {error or type(error).__name__}"
            if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
                self.broken = f"{self._failures_in_a_row} steps in a row failed; {message}"
            emitted: list[Emitted] = []
            for scheduled in batch:
                emitted += self._end(scheduled.seq, "failed", now, message=message, retryable=True)
            return emitted

    def _end(
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
        self.cache.pool.now = now
        lease, num_blocks = seq.lease, len(seq.lease.table) if seq.lease else 0
        self._scheduler.remove(seq)
        del self._sequences[seq.request.request_id]
        self._finished[reason] += 1
        block_bytes = self._bounds.block_size * self._runner.model.kv_bytes_per_token
        taken = usage(seq, now, block_bytes, lease, num_blocks)
        finish = Finish(reason, taken, phase=phase, message=message, retryable=retryable)
        held = seq.text.finish()
        emitted: list[Emitted] = [(seq.request.request_id, Delta(held, ()))] if held else []
        return [*emitted, (seq.request.request_id, finish)]

    def _end_step(self, num_tokens: int, started: float) -> float:
        now = self._clock()
        self.cache.pool.now = now
        self.num_steps += 1
        self._step_ends.append(now)
        self._total_s += now - started
        self._recent_tokens = self._recent_tokens * RATE_DECAY + num_tokens
        self._recent_s = self._recent_s * RATE_DECAY + now - started
        return now

    def _rate(self) -> float | None:
        return self._recent_tokens / self._recent_s if self._recent_s > 0 else None


def _check_config(config: EngineConfig) -> None:
    for name in ("block_size", "max_running", "step_tokens", "max_queue_requests", "max_queue_tokens"):
        if getattr(config, name) < 1:
            raise ValueError(f"engine.{name} is {getattr(config, name)}; it must be at least 1")

"""The engine without threads: requests in, events out, one step at a time. `engine.loop` drives it."""

import time
from collections.abc import Callable, Hashable, Sequence
from threading import Lock

from engine.admission import Bounds
from engine.batch import Runner
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.counters import Counters
from engine.detokenize import TokenBytes
from engine.entry import Entry
from engine.errors import EngineError
from engine.forecast import Forecast
from engine.pace import Pace
from engine.prefix import Namespace, Tokens, tokens_themselves
from engine.request import Delta, EngineRequest, EngineStats, FinishReason
from engine.running import RunningSet
from engine.scheduler import Scheduled, Scheduler, Step
from engine.sequence import SequenceState
from engine.snapshot import snapshot
from engine.steptime import StepTimeModel
from engine.table import Emitted, RequestTable
from engine.teams import OUTPUT_COST, Teams
from engine.waiting import WaitingQueue

MAX_FAILURES_IN_A_ROW = 5


class EngineCore:
    """One thread calls `add`, `cancel`, `step` and `end_all`; `probe`, `flush` and `stats` may be called from others.

    Args:
        config: bounds of queue, batch and context.
        runner: computes steps; its pool decides how many blocks there are.
        token_bytes: bytes of a token id, empty for control tokens.
        clock: monotonic seconds.
        key: see `PrefixTree`.

    Raises:
        ValueError: a bound in `config` is below 1.
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
        bounds, model = Bounds.of(config, runner), StepTimeModel()
        self.cache = KVCache(runner.num_blocks, runner.block_size, sharing=config.prefix_sharing, key=key)
        self.counters = Counters()
        self.broken: str | None = None
        """Set when steps keep failing: nothing more should be asked of this engine."""
        self._model, pace, teams = model, Pace(model, config.max_itl_stretch), Teams()
        waiting = WaitingQueue(config.max_queue_requests, config.max_queue_tokens, teams, self.cache, model.prefill_s)
        self._running = RunningSet(self.cache, waiting, teams, config.max_running)
        entry = Entry(self._running, self.cache, config.overcommit)
        self._scheduler = Scheduler(config, self._running, entry, self.cache, pace)
        forecast = Forecast(config, self._running, self.cache, model, pace)
        self._table = RequestTable(
            bounds, self._running, forecast, self.cache.pool, self.counters, runner.model.eos_token_ids, token_bytes
        )
        self._runner = runner
        self._clock = clock
        self._failures_in_a_row = 0
        self._lock = Lock()
        """Guards the cache against `flush`; never held while the runner computes."""

    def __len__(self) -> int:
        return len(self._table)

    def add(self, request: EngineRequest, arrived: float) -> list[Emitted]:
        """Queue a request; the answer is empty, or its `rejected` finish.

        Raises:
            EngineError: a request with this id is live.
        """
        with self._lock:
            return self._table.add(request, arrived, self._clock())

    def cancel(self, request_id: str, asked_at_step: int | None = None) -> list[Emitted]:
        """End a request with `cancelled`, wherever it is; unknown ids are ignored.

        `asked_at_step` is the number of steps when the caller asked, for the histogram.
        """
        seq = self._table.get(request_id)
        if seq is None:
            return []
        steps = 0 if asked_at_step is None else self.counters.num_steps - asked_at_step
        self.counters.cancel_to_free_steps[steps] += 1
        with self._lock:
            return self._table.end(seq, "cancelled", self._clock())

    def step(self) -> list[Emitted]:
        """Expire, schedule, run, commit. Without live requests it does nothing."""
        started = self._clock()
        with self._lock:
            emitted = self._table.expire(started)
            step = self._schedule(started)
        if not step.batch:
            return emitted
        try:
            drawn = self._run(step.batch)
        except Exception as error:
            with self._lock:
                return emitted + self._fail(step, error)
        with self._lock:
            return emitted + self._commit(step, drawn)

    def end_all(self, reason: FinishReason, message: str | None = None) -> list[Emitted]:
        """End every live request."""
        now = self._clock()
        emitted: list[Emitted] = []
        with self._lock:
            for seq in self._table:
                emitted += self._table.end(seq, reason, now, message=message, retryable=reason == "failed")
        return emitted

    def probe(self, namespace: Namespace, token_ids: Sequence[int]) -> int:
        """Tokens of this prefix that are cached; from any thread."""
        return self.cache.probe(namespace, token_ids)

    def flush(self, namespace: Namespace | None = None) -> int:
        """Free idle cached blocks, all or a namespace's; returns how many. From any thread."""
        with self._lock:
            return self.cache.flush(namespace)

    def stats(self) -> EngineStats:
        """A snapshot; from any thread."""
        return snapshot(self.counters, self._running, self.cache, self._model, self.broken)

    def check_integrity(self) -> None:
        """Prove table, queue, tree and pool consistent; between steps only.

        Raises:
            RuntimeError: naming what is wrong.
        """
        self._table.check_integrity()
        self.cache.check_integrity(seq.lease for seq in self._running.sequences.values() if seq.lease is not None)

    def _schedule(self, now: float) -> Step:
        self.cache.pool.now = now
        step = self._scheduler.schedule(now)
        if len(self._table) and not step.batch:
            raise EngineError(f"no progress: {len(self._table)} requests are live and nothing can be scheduled")
        return step

    def _run(self, batch: list[Scheduled]) -> list[int | None]:
        drawn = self._runner.run([scheduled.work for scheduled in batch])
        if [token is not None for token in drawn] != [scheduled.work.sample for scheduled in batch]:
            raise EngineError(f"the runner drew {drawn} for a batch of {len(batch)}")
        return drawn

    def _commit(self, step: Step, drawn: list[int | None]) -> list[Emitted]:
        """File what was computed, append what was drawn, end what is done."""
        now, batch = self._end_step(step), step.batch
        self._model.observe(step.load, (now - step.now) * 1000)
        self._failures_in_a_row = 0
        used_ratio = self.cache.pool.num_in_use / self.cache.pool.num_blocks
        emitted: list[Emitted] = []
        for scheduled, token in zip(batch, drawn, strict=True):
            scheduled.seq.meter.step(len(batch), used_ratio)
            self._advance(scheduled.seq, len(scheduled.work.token_ids))
            if token is not None:
                emitted += self._append(scheduled.seq, token, now)
        return emitted

    def _fail(self, step: Step, error: Exception) -> list[Emitted]:
        """End the requests of a failed step; none is tried again, so a poisonous one cannot spin."""
        now = self._end_step(step)
        self._failures_in_a_row += 1
        message = f"the model step failed: {type(error).__name__}: {error}"
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            self.broken = f"{self._failures_in_a_row} steps in a row failed; the last: {message}"
        emitted: list[Emitted] = []
        for scheduled in step.batch:
            emitted += self._table.end(scheduled.seq, "failed", now, message=message, retryable=True)
        return emitted

    def _end_step(self, step: Step) -> float:
        now = self._clock()
        self.cache.pool.now = now
        self.counters.step(step.now, now)
        return now

    def _advance(self, seq: SequenceState, num_tokens: int) -> None:
        """Count computed tokens and file the blocks that they fill."""
        lease = seq.lease
        assert lease is not None
        if num_prompt := seq.proceed(num_tokens, cached=False):
            seq.team.served += num_prompt / seq.request.weight
        if seq.num_computed >= (lease.num_filed + 1) * self.cache.block_size:
            self.cache.commit(lease, seq.num_computed)

    def _append(self, seq: SequenceState, token: int, now: float) -> list[Emitted]:
        """Add a drawn token; returns its delta, and the finish if it was the last."""
        seq.tokens.append(token)
        seq.meter.token(now)
        seq.team.served += OUTPUT_COST / seq.request.weight
        self.counters.output_tokens += 1
        if len(seq.tokens) == seq.num_prompt + 1:
            seq.next_phase()
            self.counters.first_token(
                seq.num_prompt, seq.meter.num_cached, seq.meter.predicted_ttft_s, now - seq.meter.arrived
            )
        try:
            text, reason = seq.read(token)
        except Exception as error:
            message = f"token {token} has no text: {type(error).__name__}: {error}"
            return self._table.end(seq, "failed", now, message=message, retryable=True)
        emitted: list[Emitted] = [(seq.request.request_id, Delta(text, (token,)))]
        return emitted + self._table.end(seq, reason, now) if reason else emitted

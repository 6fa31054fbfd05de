"""Continuous batching: what the next step computes, and who may begin.

A step has `step_tokens` of work: every running decode first, then prefill chunks in the order of admission, then new
admissions for as long as budget, places and KV blocks last.
"""

from dataclasses import dataclass

from engine.admission import num_kv_tokens
from engine.batch import SequenceWork
from engine.cache import KVCache
from engine.sequence import SequenceState
from engine.waiting import WaitingQueue


@dataclass(slots=True)
class Scheduled:
    """A sequence and the part of it that a step computes."""

    seq: SequenceState
    work: SequenceWork


class Scheduler:
    """Owns the running set; a waiting request holds nothing.

    Admission promises a sequence all blocks it can ever need, so a running one is never preempted. To over-commit,
    promise less in `_admit` and, where `KVCache.allocate` finds nothing, release a lease, set
    `num_computed` to 0 and queue the sequence again: its known tokens are then its prompt.
    """

    def __init__(self, cache: KVCache, waiting: WaitingQueue, *, max_running: int, step_tokens: int) -> None:
        self.running: dict[int, SequenceState] = {}
        self.waiting = waiting
        self._cache = cache
        self._max_running = max_running
        self._step_tokens = step_tokens

    def schedule(self, now: float) -> list[Scheduled]:
        """The next step's batch; empty only when nothing runs or waits."""
        budget = self._step_tokens
        batch: list[Scheduled] = []
        prefilling: list[SequenceState] = []
        for seq in self.running.values():
            if seq.decoding:
                batch.append(self._work(seq, 1))
            else:
                prefilling.append(seq)
        budget -= len(batch)
        for seq in prefilling:
            if budget <= 0:
                break
            budget -= self._prefill(seq, budget, batch)
        while budget > 0 and len(self.running) < self._max_running:
            admitted = self._admit(now)
            if admitted is None:
                break
            budget -= self._prefill(admitted, budget, batch)
        return batch

    def remove(self, seq: SequenceState) -> None:
        """Take a sequence out, wherever it is, and give its blocks back."""
        if seq.lease is None:
            self.waiting.remove(seq)
        else:
            del self.running[seq.seq_id]
            self._cache.release(seq.lease)

    def _admit(self, now: float) -> SequenceState | None:
        """Begin the head of the queue. Nobody overtakes a head that does not fit: it waits for blocks, not for luck."""
        seq = self.waiting.head()
        if seq is None or seq.blocked_at == self._cache.num_releases:
            return None
        promise = self._cache.blocks_for(num_kv_tokens(seq.num_prompt, seq.request.max_tokens))
        seq.lease = self._cache.admit(seq.request.namespace, seq.tokens, promise)
        if seq.lease is None:
            seq.blocked_at = self._cache.num_releases
            return None
        self.waiting.remove(seq)
        self.running[seq.seq_id] = seq
        seq.meter.scheduled = now
        seq.next_phase()
        self._skip(seq, seq.lease.num_filed * self._cache.block_size)
        return seq

    def _prefill(self, seq: SequenceState, budget: int, batch: list[Scheduled]) -> int:
        """Add the sequence's next chunk, at most `budget` tokens; returns its size."""
        assert seq.lease is not None
        self._skip(seq, self._cache.match(seq.lease, seq.num_computed))
        num_tokens = min(budget, seq.num_pending)
        if num_tokens < seq.num_pending:
            end = seq.num_computed + num_tokens
            aligned = end - end % self._cache.block_size - seq.num_computed
            num_tokens = aligned if aligned > 0 else num_tokens
        seq.meter.num_chunks += 1
        batch.append(self._work(seq, num_tokens))
        return num_tokens

    def _skip(self, seq: SequenceState, num_tokens: int) -> None:
        seq.num_computed += num_tokens
        seq.meter.num_cached += num_tokens

    def _work(self, seq: SequenceState, num_tokens: int) -> Scheduled:
        assert seq.lease is not None
        start, end = seq.num_computed, seq.num_computed + num_tokens
        self._cache.allocate(seq.lease, end)
        work = SequenceWork(
            seq_id=seq.seq_id,
            token_ids=seq.tokens[start:end],
            start=start,
            block_table=seq.lease.table,
            sample=end == len(seq.tokens),
            sampling=seq.request.sampling,
            output_index=seq.num_output,
            history=seq.tokens if seq.request.sampling.repetition_penalty != 1.0 else (),
        )
        return Scheduled(seq, work)

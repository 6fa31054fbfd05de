"""Continuous batching: what the next step computes.

Every running decode comes first; then prefill, up to half of it for the shortest, the rest in order of fair shares.
"""

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from engine.batch import SequenceWork
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.entry import Entry
from engine.pace import Audience, Pace, beside
from engine.running import RunningSet
from engine.sequence import SequenceState
from engine.steptime import StepLoad


@dataclass(slots=True)
class Scheduled:
    """A sequence and the part of it that a step computes."""

    seq: SequenceState
    work: SequenceWork


@dataclass(slots=True)
class Step:
    """The next step's work, as it is put together."""

    now: float
    batch: list[Scheduled] = field(default_factory=list)
    load: StepLoad = field(default_factory=StepLoad)
    computing: set[Hashable] = field(default_factory=set)
    """Blocks that the step goes on to fill; others that need the same wait for them."""


class Scheduler:
    """Divides each step among the running sequences and those that begin.

    Args:
        config: tokens and sequences of a step.
        running: who runs, and the queue before it.
        entry: who begins.
        cache: blocks for what is computed.
        pace: bounds the prefill of a step.
    """

    def __init__(self, config: EngineConfig, running: RunningSet, entry: Entry, cache: KVCache, pace: Pace) -> None:
        self._running = running
        self._entry = entry
        self._cache = cache
        self._pace = pace
        self._max_rows = min(config.max_running, config.step_tokens)
        self._step_tokens = config.step_tokens
        self._turn = 0

    def schedule(self, now: float) -> Step:
        """The next step; its batch is empty only when nothing runs or waits."""
        running = self._running
        self._entry.begin_step()
        step = Step(now)
        decoding: list[SequenceState] = []
        prefilling: list[SequenceState] = []
        for seq in running.sequences.values():
            (decoding if seq.decoding else prefilling).append(seq)
        if len(decoding) >= self._max_rows and (begun := self._entry.next(now, ())):
            prefilling.append(begun)
        for seq in self._take_turns(decoding, self._max_rows - bool(prefilling)):
            self._add(seq, 1, step)
        context = sum([scheduled.work.start for scheduled in step.batch])
        step.load = StepLoad(decode_rows=len(step.batch), decode_context=context)
        if prefilling or running.is_open:
            self._prefill(prefilling, self._prefill_tokens(decoding, prefilling, step), step)
        return step

    def _take_turns(self, decoding: list[SequenceState], num_rows: int) -> list[SequenceState]:
        """The decodes of this step: all, or as many as have a row.

        More run than there are rows only while a team claims its fair share from one that had taken every place; the
        sequences of the team that runs most then pause for a step, in turn.
        """
        excess = len(decoding) - max(num_rows, 1)
        if excess <= 0:
            return decoding
        teams = Counter(seq.team for seq in decoding)
        most = max(teams, key=lambda team: teams[team] / team.weight)
        theirs = [seq for seq in decoding if seq.team is most]
        pool = theirs if len(theirs) >= excess else decoding
        paused = {pool[(self._turn + n) % len(pool)] for n in range(excess)}
        self._turn += excess
        return [seq for seq in decoding if seq not in paused]

    def _prefill_tokens(self, decoding: list[SequenceState], prefilling: list[SequenceState], step: Step) -> int:
        """How much prefill goes into the step."""
        waiting, places = self._running.waiting, self._running.num_places
        audience = Audience(
            num_reading=sum(seq.interactive for seq in decoding),
            num_expecting=sum(seq.interactive for seq in prefilling) + min(waiting.num_interactive, places),
        )
        start = min((seq.num_computed for seq in prefilling), default=0)
        most = self._step_tokens - len(step.batch)
        return self._pace.prefill_tokens(step.load, audience, start, most, self._cache.block_size)

    def _prefill(self, prefilling: list[SequenceState], budget: int, step: Step) -> None:
        """Spend `budget` tokens: up to half on the shortest, the rest in order of finish tags, newcomers among them."""
        num_fresh, left = self._shortest_first(prefilling, budget, step)
        left = beside(num_fresh, left)
        scheduled = {item.seq for item in step.batch}
        queue = sorted((seq for seq in prefilling if seq not in scheduled), key=_finish_tag, reverse=True)
        while left >= (self._cache.block_size if step.load.prefill_tokens else 1) and len(step.batch) < self._max_rows:
            newcomer = self._entry.next(step.now, step.computing, before=queue[-1] if queue else None)
            seq = newcomer or (queue.pop() if queue else None)
            if seq is None:
                break
            left -= self._chunk(seq, left, step)

    def _shortest_first(self, prefilling: list[SequenceState], budget: int, step: Step) -> tuple[int, int]:
        """Compute the prompts that end within half of the budget; returns the tokens of those that began, and the rest.

        The other half is for the order of arrival, so the short cannot starve the long.
        """
        room, num_fresh = budget // 2, 0
        left = budget - room
        shortest = deque(sorted((seq for seq in prefilling if seq.num_pending <= room), key=_num_pending))
        while room > 0 and len(step.batch) < self._max_rows:
            if shortest and shortest[0].num_pending <= room:
                seq = shortest.popleft()
            elif (begun := self._entry.next(step.now, step.computing, most_uncached=room)) is not None:
                seq = begun
            else:
                break
            is_fresh = not seq.meter.num_chunks
            num_tokens = self._chunk(seq, room, step)
            room -= num_tokens
            num_fresh += num_tokens if is_fresh and num_tokens == seq.num_pending else 0
        return num_fresh, left + room

    def _chunk(self, seq: SequenceState, most: int, step: Step) -> int:
        """Add the sequence's next chunk, at most `most` tokens; returns its size.

        0 if it has to wait for a block that another sequence fills in this step.
        """
        assert seq.lease is not None
        seq.proceed(self._cache.match(seq.lease, seq.num_computed), cached=True)
        place = self._cache.next_block(seq.lease)
        if place is not None:
            if place in step.computing and seq.num_computed == seq.lease.num_filed * self._cache.block_size:
                return 0
            step.computing.add(place)
        num_tokens = min(most, seq.num_pending)
        if num_tokens < seq.num_pending:
            end = seq.num_computed + num_tokens
            aligned = end - end % self._cache.block_size - seq.num_computed
            num_tokens = aligned if aligned > 0 else num_tokens
        seq.meter.num_chunks += 1
        tokens, pairs, *decodes = step.load
        pairs += num_tokens * (seq.num_computed + num_tokens / 2)
        step.load = StepLoad(tokens + num_tokens, pairs, *decodes)
        self._add(seq, num_tokens, step)
        return num_tokens

    def _add(self, seq: SequenceState, num_tokens: int, step: Step) -> None:
        lease, tokens, sampling = seq.lease, seq.tokens, seq.request.sampling
        assert lease is not None
        start, end = seq.num_computed, seq.num_computed + num_tokens
        if end > len(lease.table) * self._cache.block_size:
            self._cache.allocate(lease, end)
        work = SequenceWork(
            seq_id=seq.seq_id,
            token_ids=tokens[start:end],
            start=start,
            block_table=lease.table,
            sample=end == len(tokens),
            sampling=sampling,
            output_index=len(tokens) - seq.num_prompt,
            history=tokens if sampling.repetition_penalty != 1.0 else (),
        )
        step.batch.append(Scheduled(seq, work))


def _num_pending(seq: SequenceState) -> int:
    return seq.num_pending


def _finish_tag(seq: SequenceState) -> float:
    return seq.finish_tag

"""Who runs: lets waiting requests begin, takes them out again, and preempts where more was promised than there is."""

import math
from collections.abc import Container, Hashable

from engine.admission import num_kv_tokens
from engine.cache import KVCache
from engine.config import EngineConfig
from engine.sequence import SequenceState
from engine.steptime import StepTimeModel
from engine.teams import OUTPUT_COST, Team, Teams
from engine.waiting import WaitingQueue

EXTRA_PLACES = 4
"""One place in so many is added for teams that run less than their fair share when all places are taken."""
MAX_REFUSED = 16
"""Requests that may be refused in one step; most cost a look into the prefix tree."""


class RunningSet:
    """The running sequences and the queue before them; a waiting request holds nothing."""

    def __init__(self, config: EngineConfig, cache: KVCache, model: StepTimeModel) -> None:
        self.sequences: dict[int, SequenceState] = {}
        self.teams = Teams()
        self.waiting = WaitingQueue(
            config.max_queue_requests,
            config.max_queue_tokens,
            self.teams,
            look_up=self._look_up,
            prefill_s=lambda num_tokens: model.prefill_ms(num_tokens) / 1000 if model.ready else 0.0,
        )
        self.num_preemptions = 0
        self._cache = cache
        self._max_running = config.max_running
        self._extra = config.max_running // EXTRA_PLACES
        self._overcommit = config.overcommit
        self._stuck: SequenceState | None = None
        """The request that did not fit in the pool first; nobody overtakes it for ever."""
        self._overtaken_blocks = 0
        """Blocks promised to others since then: at most as many as it needs itself."""
        self._refused: set[Team | SequenceState] = set()
        """Who cannot begin in this step: single requests, and teams with all of theirs."""
        self._num_refused = 0

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def num_places(self) -> int:
        """How many more may begin, whatever their team runs already."""
        return max(0, self._max_running - len(self.sequences))

    @property
    def is_open(self) -> bool:
        """Whether anyone waits for whom there could be a place."""
        spare = self._max_running + self._extra * (len(self.teams) > 1) - len(self.sequences)
        return len(self.waiting) > 0 and spare > 0

    def may_exceed(self, team: Team, num_more: int) -> bool:
        """Whether `num_more` of this team may begin though all places are taken."""
        return num_more <= self._extra and self._is_below_share(team, num_more)

    def begin_step(self) -> None:
        """Make room for every decode's next token, and look at the queue anew."""
        self._refused.clear()
        self._num_refused = 0
        self.waiting.refresh()
        if self._overcommit > 1.0:
            self._make_room()

    def begin_next(
        self,
        now: float,
        computing: Container[Hashable],
        *,
        before: SequenceState | None = None,
        most_uncached: int | None = None,
    ) -> SequenceState | None:
        """Let the next request run that fits; None if there is none.

        Args:
            now: when it begins.
            computing: blocks that others are filling; who would have to fill the same waits until they are found.
            before: only if it goes before this running prefill.
            most_uncached: only if no more of its tokens are to compute.
        """
        while self.is_open and self._num_refused < MAX_REFUSED:
            seq = self._choose(most_uncached)
            if seq is None or (before is not None and seq is not self._stuck and seq.finish_tag >= before.finish_tag):
                return None
            if most_uncached is not None and self.num_places <= 1 and seq is not self._choose(None):
                return None  # the last place goes by rank, or the short would take every one
            if not self._has_place(seq.team):
                return None
            if not self._has_share(seq):
                self._refused.add(seq.team)
                self._stuck = None if seq is self._stuck else self._stuck
            elif self._begin(seq, computing, now):
                return seq
            else:
                self._refused.add(seq)
                self._num_refused += 1
        return None

    def remove(self, seq: SequenceState, *, complete: bool) -> None:
        """Take a sequence out for good, wherever it is, and give its blocks back.

        `complete` is whether its answer ended by itself.
        """
        if seq.lease is None:
            self.waiting.remove(seq)
        else:
            self._give_back(seq)
        if seq is self._stuck:
            self._stuck = None
        if seq.tag is not None:
            taken = seq.meter.num_computed + OUTPUT_COST * seq.num_output
            self.teams.settle(seq.team, taken - seq.charged, seq.request.weight)
        if complete:
            self.teams.observe(seq.team, seq.num_output, seq.request.max_tokens)
        self.teams.leave(seq.team)

    def check_integrity(self) -> None:
        """Prove that the queue's and the teams' counts are those of their requests.

        Raises:
            RuntimeError: naming what is miscounted.
        """
        self.waiting.check()
        for team in self.teams:
            theirs = [seq for seq in self.sequences.values() if seq.team is team]
            counted = team.num_running, team.num_blocks
            if counted != (len(theirs), sum(seq.num_blocks for seq in theirs)):
                raise RuntimeError(f"team {team.name!r} is counted with {counted[0]} running and {counted[1]} blocks")
        if any(seq.lease is None for seq in self.sequences.values()):
            raise RuntimeError("a running sequence has no lease")
        if self._stuck is not None and self._stuck.lease is not None:
            raise RuntimeError("a request that runs is still waited for")

    def _choose(self, most_uncached: int | None) -> SequenceState | None:
        """Who is next: the stuck request, however long, until it was refused in this step; then by fair shares."""
        if self._stuck is not None and self._stuck not in self._refused:
            return self._stuck
        return self.waiting.pick(self._refused, most_uncached)

    def _has_place(self, team: Team) -> bool:
        return len(self) < self._max_running or self._is_below_share(team)

    def _has_share(self, seq: SequenceState) -> bool:
        """Whether the request's team may hold so many more blocks."""
        share, team = seq.request.kv_share, seq.team
        if share is None or team.num_blocks + seq.num_blocks <= int(share * self._cache.pool.num_blocks):
            return True
        self.teams.lift(team)
        return False

    def _is_below_share(self, team: Team, num_more: int = 1) -> bool:
        return team.num_running + num_more <= self.teams.fair_places(team, self._max_running)

    def _begin(self, seq: SequenceState, computing: Container[Hashable], now: float) -> bool:
        """Lease blocks and run, unless they are too few or about to be found."""
        cache, namespace, promise = self._cache, seq.request.namespace, self._promise(seq)
        if not self._may_overtake(seq, promise):
            return False
        if seq.blocked_at != cache.num_releases:
            self._look_up(seq)
            if cache.block_after(namespace, seq.tokens, seq.found) in computing:
                return False
            seq.lease = cache.admit(namespace, seq.tokens, promise, seq.found)
        if seq.lease is None:
            seq.blocked_at = cache.num_releases
            if self._stuck is None:
                self._stuck, self._overtaken_blocks = seq, 0
            return False
        if seq is self._stuck:
            self._stuck = None
        self._overtaken_blocks += promise
        self._enrol(seq, now)
        return True

    def _look_up(self, seq: SequenceState) -> None:
        self._cache.look_up(seq.request.namespace, seq.tokens, seq.found)
        seq.num_uncached = len(seq.tokens) - len(seq.found) * self._cache.block_size

    def _enrol(self, seq: SequenceState, now: float) -> None:
        team, weight = seq.team, seq.request.weight
        is_new, cost, seq.tag = seq.tag is None, seq.cost, seq.finish_tag
        self.waiting.remove(seq)
        self.sequences[seq.seq_id] = seq
        team.num_running += 1
        team.num_blocks += seq.num_blocks
        seq.proceed(len(seq.found) * self._cache.block_size, cached=True)
        seq.found.clear()
        if is_new:
            seq.charged = cost
            self.teams.charge(team, seq.charged, weight)
            seq.meter.scheduled = now
            seq.next_phase()

    def _promise(self, seq: SequenceState) -> int:
        """Blocks to promise: all that it can need, or less where that is over-committed and did not fail before."""
        if self._overcommit == 1.0 or seq.meter.num_preemptions:
            return seq.num_blocks
        likely = math.ceil(seq.request.max_tokens / self._overcommit)
        return self._cache.blocks_for(num_kv_tokens(seq.num_prompt, likely))

    def _may_overtake(self, seq: SequenceState, promise: int) -> bool:
        stuck = self._stuck
        return stuck is None or stuck is seq or self._overtaken_blocks + promise <= stuck.num_blocks

    def _make_room(self) -> None:
        """Promise every decode the block for its next token; where there is none, the last arrived gives way."""
        for seq in [seq for seq in self.sequences.values() if seq.decoding]:
            while seq.lease is not None and not self._cache.promise(seq.lease, len(seq.tokens)):
                self._preempt(min(self.sequences.values(), key=_first_to_go))

    def _preempt(self, seq: SequenceState) -> None:
        """Send a sequence back to the head of its team's queue; what it knows is its prompt then."""
        self._give_back(seq)
        seq.num_computed = 0
        seq.meter.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(seq)

    def _give_back(self, seq: SequenceState) -> None:
        assert seq.lease is not None
        lease, num_blocks = seq.lease, len(seq.lease.table)
        self._cache.release(lease)
        seq.meter.gave_back(lease, num_blocks)
        seq.lease = None
        seq.team.num_running -= 1
        seq.team.num_blocks -= seq.num_blocks
        del self.sequences[seq.seq_id]


def _first_to_go(seq: SequenceState) -> tuple[int, float, int]:
    return seq.request.priority, -seq.meter.arrived, -seq.seq_id

"""Who runs: sequences that hold KV blocks, and how they come to and give up what they hold."""

from engine.cache import KVCache
from engine.lease import Lease
from engine.sequence import SequenceState
from engine.teams import OUTPUT_COST, Team, Teams
from engine.waiting import WaitingQueue

EXTRA_PLACES = 4
"""One place in so many is added for teams that run less than their fair share when all places are taken."""


class RunningSet:
    """The running sequences, and the queue before them; a waiting request holds nothing."""

    def __init__(self, cache: KVCache, waiting: WaitingQueue, teams: Teams, max_running: int) -> None:
        self.sequences: dict[int, SequenceState] = {}
        self.waiting = waiting
        self.teams = teams
        self.num_preemptions = 0
        self._cache = cache
        self._max_running = max_running
        self._extra = max_running // EXTRA_PLACES

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def num_places(self) -> int:
        """How many more may run, whatever their team runs already."""
        return max(0, self._max_running - len(self.sequences))

    @property
    def is_open(self) -> bool:
        """Whether anyone waits for whom there could be a place."""
        spare = self._max_running + self._extra * (len(self.teams) > 1) - len(self.sequences)
        return len(self.waiting) > 0 and spare > 0

    def has_place(self, team: Team) -> bool:
        """Whether one more of this team may run: places are free, or it runs less than its fair share of them."""
        if len(self.sequences) < self._max_running:
            return True
        fair = self.teams.fair_places(team, self._max_running)
        return len(self.sequences) < self._max_running + self._extra and team.num_running + 1 <= fair

    def start(self, seq: SequenceState, lease: Lease, now: float) -> None:
        """Move a request from the queue to the running, with the blocks that it begins with."""
        team, cost = seq.team, seq.cost
        is_new, seq.tag = seq.tag is None, seq.finish_tag
        self.waiting.remove(seq)
        self.sequences[seq.seq_id] = seq
        seq.lease = lease
        team.num_running += 1
        team.num_blocks += seq.num_blocks
        seq.proceed(len(seq.found) * self._cache.block_size, cached=True)
        seq.found.clear()
        if is_new:
            seq.charged = cost
            self.teams.charge(team, cost, seq.request.weight)
            seq.meter.scheduled = now
            seq.next_phase()

    def remove(self, seq: SequenceState, *, complete: bool) -> None:
        """Take a request out for good, wherever it is, and give its blocks back.

        `complete` is whether its answer ended by itself.
        """
        if seq.lease is None:
            self.waiting.remove(seq)
        else:
            self._give_back(seq, seq.lease)
        if seq.tag is not None:
            taken = seq.meter.num_computed + OUTPUT_COST * seq.num_output
            self.teams.settle(seq.team, taken - seq.charged, seq.request.weight)
        if complete:
            self.teams.observe(seq.team, seq.num_output, seq.request.max_tokens)
        self.teams.leave(seq.team)

    def make_room(self) -> None:
        """Promise every decode the block for its next token; where there is none, the last arrived gives way."""
        for seq in [seq for seq in self.sequences.values() if seq.decoding]:
            while seq.lease is not None and not self._cache.promise(seq.lease, len(seq.tokens)):
                self._preempt(min(self.sequences.values(), key=_first_to_go))

    def check_integrity(self) -> None:
        """Prove that the queue's and the teams' counts are those of their requests.

        Raises:
            RuntimeError: naming what is miscounted.
        """
        self.waiting.check()
        if any(seq.lease is None for seq in self.sequences.values()):
            raise RuntimeError("a running sequence has no lease")
        for team in self.teams:
            theirs = [seq for seq in self.sequences.values() if seq.team is team]
            if (team.num_running, team.num_blocks) != (len(theirs), sum(seq.num_blocks for seq in theirs)):
                raise RuntimeError(f"the running requests of team {team.name!r}, or their blocks, are miscounted")

    def _preempt(self, seq: SequenceState) -> None:
        """Send a sequence back to the head of the queue; what it knows is its prompt then."""
        assert seq.lease is not None
        self._give_back(seq, seq.lease)
        seq.num_computed = 0
        seq.meter.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(seq)

    def _give_back(self, seq: SequenceState, lease: Lease) -> None:
        num_blocks = len(lease.table)
        self._cache.release(lease)
        seq.meter.gave_back(lease, num_blocks)
        seq.lease = None
        seq.team.num_running -= 1
        seq.team.num_blocks -= seq.num_blocks
        del self.sequences[seq.seq_id]


def _first_to_go(seq: SequenceState) -> tuple[int, float, int]:
    return seq.request.priority, -seq.meter.arrived, -seq.seq_id

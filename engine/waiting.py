"""The waiting queue: bounded in requests and tokens; a queue of its own for every team."""

from bisect import insort
from collections.abc import Callable, Container, Iterator

from engine.cache import KVCache
from engine.sequence import SequenceState
from engine.teams import Team, Teams

PRIORITY_HEAD_START_S = 10.0
"""Seconds of earlier arrival that one level of priority is worth. A waiting request therefore gains on every newer
one of its team as it ages, and no priority can keep it waiting for ever."""
LENGTH_PENALTY = 4.0
"""Seconds of later arrival that one second of prefill is worth, cached tokens aside: shorter ones may overtake only
if they come soon enough after."""
THROUGHPUT_DELAY_S = 2.0
"""Seconds of later arrival for a request whose first token nobody waits for."""


class WaitingQueue:
    """Requests that hold no KV blocks.

    Args:
        max_requests: how many may wait.
        max_tokens: how many prompt tokens they may have together.
        teams: where requests report that they wait.
        cache: tells how much of a prompt is cached.
        prefill_s: seconds that so many tokens take to compute; 0 while unknown.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        teams: Teams,
        cache: KVCache,
        prefill_s: Callable[[int], float],
    ) -> None:
        self.num_tokens = 0
        self.num_interactive = 0
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._teams = teams
        self._cache = cache
        self._prefill_s = prefill_s
        self._all: dict[int, SequenceState] = {}
        """By seq_id, the one whose prefix was looked up last at the end."""
        self._by_team: dict[Team, list[SequenceState]] = {}
        """Each team's requests, the next one last."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._all.values())

    def __contains__(self, seq: SequenceState) -> bool:
        return seq.seq_id in self._all

    def is_full(self, team: Team, num_prompt: int) -> bool:
        """Whether another prompt of so many tokens is too much.

        A team with less than its fair share of the queue may always queue one more, so that a team that floods the
        queue shuts nobody else out; the queue then holds up to twice its bounds.
        """
        if not self._all:
            return False
        fair_requests = self._teams.fair_places(team, self.max_requests)
        fair_tokens = self._teams.fair_places(team, self.max_tokens)
        return (len(self._all) >= self.max_requests and team.num_waiting + 1 > fair_requests) or (
            self.num_tokens + num_prompt > self.max_tokens and team.waiting_tokens + num_prompt > fair_tokens
        )

    def describe_full(self, num_prompt: int) -> str:
        """Why a prompt of so many tokens is too much, in numbers."""
        return (
            f"the queue is full: {len(self._all)} of {self.max_requests} requests and {self.num_tokens} of "
            f"{self.max_tokens} prompt tokens wait, and this prompt has {num_prompt}; retry later"
        )

    def add(self, seq: SequenceState) -> None:
        """Queue a request, or one that was preempted, which goes to the head of its team."""
        self._look_up(seq)
        self._set_order(seq)
        self._count(seq, 1)
        self._all[seq.seq_id] = seq
        self._insert(seq)

    def remove(self, seq: SequenceState) -> None:
        """Take a request out, wherever it stands."""
        del self._all[seq.seq_id]
        self._take_out(seq)
        self._count(seq, -1)

    def pick(self, passed: Container[Team | SequenceState], most_uncached: int | None = None) -> SequenceState | None:
        """The next to run, but for the teams and requests in `passed` and for longer ones than `most_uncached`.

        Preempted requests come first, then the team that is next by its counter; among equals, who runs less.
        """
        best, best_rank = None, (0.0, 0.0)
        for team, queue in self._by_team.items():
            if team in passed:
                continue
            for seq in reversed(queue):
                if seq not in passed and (most_uncached is None or seq.num_uncached <= most_uncached):
                    rank = (seq.start_tag, team.num_running / team.weight)
                    if best is None or rank < best_rank:
                        best, best_rank = seq, rank
                    break
        return best

    def ahead_in_team(self, seq: SequenceState) -> list[SequenceState]:
        """Those of its team that would run before `seq`; first to last."""
        return [other for other in self.of_team(seq.team) if _next_last(other) > _next_last(seq)]

    def of_team(self, team: Team) -> list[SequenceState]:
        """A team's requests, first to last."""
        return self._by_team.get(team, [])[::-1]

    def refresh(self) -> None:
        """Count anew what is cached of the prompt that was looked up longest ago, and move the request accordingly."""
        if not self._all:
            return
        seq = self._all.pop(next(iter(self._all)))
        self._all[seq.seq_id] = seq
        self._look_up(seq)
        if seq.num_uncached != seq.ordered_by:
            self._take_out(seq)
            self._set_order(seq)
            self._insert(seq)

    def check(self) -> None:
        """Prove the counts, and that every queue is in order.

        Raises:
            RuntimeError: naming what is wrong.
        """
        queued = [seq for queue in self._by_team.values() for seq in queue]
        if sorted(seq.seq_id for seq in queued) != sorted(self._all):
            raise RuntimeError("a waiting request is in no team's queue, or a queue has one that does not wait")
        for team, queue in self._by_team.items():
            if any(seq.team is not team or seq.lease is not None for seq in queue):
                raise RuntimeError(f"team {team.name!r} has another's request, or one that runs, in its queue")
            if queue != sorted(queue, key=_next_last) or len(queue) != team.num_waiting:
                raise RuntimeError(f"the queue of team {team.name!r} is out of order or miscounted")
            if team.waiting_tokens != sum(seq.num_prompt for seq in queue):
                raise RuntimeError(f"the tokens of team {team.name!r} are miscounted")
        if self.num_tokens != sum(seq.num_prompt for seq in queued):
            raise RuntimeError("the queue's tokens are miscounted")

    def _look_up(self, seq: SequenceState) -> None:
        seq.num_uncached = self._cache.look_up(seq.request.namespace, seq.tokens, seq.found)

    def _count(self, seq: SequenceState, sign: int) -> None:
        if sign > 0:
            self._teams.join(seq.team)
        else:
            seq.team.num_waiting -= 1
        seq.team.waiting_tokens += sign * seq.num_prompt
        self.num_tokens += sign * seq.num_prompt
        self.num_interactive += sign * seq.interactive

    def _set_order(self, seq: SequenceState) -> None:
        """Place a request among its team's. Not every time that the model moves: equals stay in order of arrival."""
        request, meter = seq.request, seq.meter
        delay = request.priority * -PRIORITY_HEAD_START_S + (0.0 if seq.interactive else THROUGHPUT_DELAY_S)
        seq.ordered_by = seq.num_uncached
        seq.order = meter.arrived + delay + LENGTH_PENALTY * self._prefill_s(seq.num_uncached)

    def _insert(self, seq: SequenceState) -> None:
        insort(self._by_team.setdefault(seq.team, []), seq, key=_next_last)

    def _take_out(self, seq: SequenceState) -> None:
        queue = self._by_team[seq.team]
        queue.remove(seq)
        if not queue:
            del self._by_team[seq.team]


def _next_last(seq: SequenceState) -> tuple[bool, float, int]:
    return seq.tag is not None, -seq.order, -seq.seq_id

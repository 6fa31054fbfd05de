"""Who begins next: by fair shares, within places, KV shares and the pool, and so that nobody is overtaken for ever."""

import math
from collections.abc import Container, Hashable

from engine.admission import num_kv_tokens
from engine.cache import KVCache
from engine.running import RunningSet
from engine.sequence import SequenceState
from engine.teams import Team

MAX_REFUSED = 16
"""Requests that may be refused in one step; most cost a look into the prefix tree."""


class Entry:
    """Lets waiting requests begin.

    Args:
        running: where they go, from its queue.
        cache: leases blocks; `seq.found` is what it has of a waiting prompt.
        overcommit: outputs are promised blocks for one in so many of their tokens.
    """

    def __init__(self, running: RunningSet, cache: KVCache, overcommit: float) -> None:
        self._running = running
        self._cache = cache
        self._overcommit = overcommit
        self._stuck: SequenceState | None = None
        """The request that did not fit in the pool first; it is next, and not overtaken for ever."""
        self._overtaken_blocks = 0
        """Blocks promised to others since then: at most as many as it needs itself."""
        self._refused: set[Team | SequenceState] = set()
        """Who cannot begin in this step: single requests, and teams with all of theirs."""
        self._num_refused = 0

    def begin_step(self) -> None:
        """Make room for every decode's next token, and look at the queue anew."""
        if self._overcommit > 1.0:
            self._running.make_room()
        self._refused.clear()
        self._num_refused = 0
        if self._stuck is not None and self._stuck not in self._running.waiting:
            self._stuck = None
        self._running.waiting.refresh()

    def next(
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
        running = self._running
        while running.is_open and self._num_refused < MAX_REFUSED:
            seq = self._choose(most_uncached)
            if seq is None or (before is not None and seq is not self._stuck and seq.finish_tag >= before.finish_tag):
                return None
            if not running.has_place(seq.team):
                if seq is not self._stuck:
                    return None
                self._refuse(seq)
            elif most_uncached is not None and running.num_places <= 1 and seq is not self._choose(None):
                return None  # the last place goes by fair shares, or the short would take every one
            elif not self._has_share(seq):
                self._refused.add(seq.team)
                self._stuck = None if seq is self._stuck else self._stuck
            elif self._begin(seq, computing, now):
                return seq
            else:
                self._refuse(seq)
        return None

    def _choose(self, most_uncached: int | None) -> SequenceState | None:
        """The stuck request, however long, until it was refused in this step; then by fair shares."""
        if self._stuck is not None and self._stuck not in self._refused:
            return self._stuck
        return self._running.waiting.pick(self._refused, most_uncached)

    def _refuse(self, seq: SequenceState) -> None:
        self._refused.add(seq)
        self._num_refused += 1

    def _has_share(self, seq: SequenceState) -> bool:
        """Whether the request's team may hold so many more blocks."""
        share, team = seq.request.kv_share, seq.team
        if share is None or team.num_blocks + seq.num_blocks <= int(share * self._cache.pool.num_blocks):
            return True
        self._running.teams.lift(team)
        return False

    def _begin(self, seq: SequenceState, computing: Container[Hashable], now: float) -> bool:
        """Lease blocks and run, unless they are too few or about to be found."""
        cache, namespace, promise, lease = self._cache, seq.request.namespace, self._promise(seq), None
        if self._stuck not in (None, seq) and self._overtaken_blocks + promise > self._stuck.num_blocks:
            return False
        if seq.blocked_at != cache.num_releases:
            seq.num_uncached = cache.look_up(namespace, seq.tokens, seq.found)
            if cache.block_after(namespace, seq.tokens, seq.found) in computing:
                return False
            lease = cache.admit(namespace, seq.tokens, promise, seq.found)
        if lease is None:
            seq.blocked_at = cache.num_releases
            if self._stuck is None:
                self._stuck, self._overtaken_blocks = seq, 0
            return False
        self._stuck = None if seq is self._stuck else self._stuck
        self._overtaken_blocks += promise
        self._running.start(seq, lease, now)
        return True

    def _promise(self, seq: SequenceState) -> int:
        """Blocks to promise: all that it can need, or less where that is over-committed and did not fail before."""
        if self._overcommit == 1.0 or seq.meter.num_preemptions:
            return seq.num_blocks
        likely = math.ceil(seq.request.max_tokens / self._overcommit)
        return self._cache.blocks_for(num_kv_tokens(seq.num_prompt, likely))

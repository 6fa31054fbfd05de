"""The waiting queue: bounded in requests and tokens, ordered by priority and arrival."""

from bisect import insort
from collections.abc import Iterator

from engine.errors import RequestRejected
from engine.sequence import SequenceState

PRIORITY_HEAD_START_S = 10.0
"""Seconds of earlier arrival that one level of priority is worth. A waiting request therefore gains on every newer
one as it ages, and no priority can keep it waiting for ever."""
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0


class WaitingQueue:
    """Requests that hold no KV blocks yet."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._items: list[SequenceState] = []
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[SequenceState]:
        return iter(self._items)

    def head(self) -> SequenceState | None:
        """The next to run."""
        return self._items[-1] if self._items else None

    def add(self, seq: SequenceState, rate: float | None) -> None:
        """Queue a request behind all that arrived before it, head starts counted in.

        `rate` is what the engine computes lately, in tokens a second.

        Raises:
            RequestRejected: the queue is full; `retry_after_s` is when it should have drained.
        """
        tokens = self.num_tokens + seq.num_prompt
        if len(self._items) >= self._max_requests or (self._items and tokens > self._max_tokens):
            raise RequestRejected(
                f"the queue is full: {len(self._items)} of {self._max_requests} requests and {self.num_tokens} of "
                f"{self._max_tokens} prompt tokens wait, and this prompt has {seq.num_prompt}; retry later",
                retry_after_s=self._drain_s(rate),
            )
        insort(self._items, seq, key=_last_first)
        self.num_tokens = tokens

    def remove(self, seq: SequenceState) -> None:
        """Take a request out, wherever it stands."""
        if self._items[-1] is seq:
            self._items.pop()
        else:
            self._items.remove(seq)
        self.num_tokens -= seq.num_prompt

    def _drain_s(self, rate: float | None) -> float:
        """Seconds until what waits has been computed, if every answer takes all it was granted."""
        work = self.num_tokens + sum(seq.request.max_tokens for seq in self._items)
        return min(max(work / rate, MIN_RETRY_S), MAX_RETRY_S) if rate else MIN_RETRY_S


def _last_first(seq: SequenceState) -> tuple[float, int]:
    return seq.request.priority * PRIORITY_HEAD_START_S - seq.meter.arrived, -seq.seq_id

"""What the engine counts about itself: for metrics, for retry estimates, for the cancel histogram."""

from collections import Counter, deque

RATE_DECAY = 0.98
"""A step's weight in the measured rate falls by this with every later step: the last 50 steps count most."""


class Counters:
    """Written by the engine thread; numbers and dict copies may be read by any."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.preemptions = 0
        self.finished: Counter[str] = Counter()
        self.cancel_to_free_steps: Counter[int] = Counter()
        self._step_ends: deque[float] = deque(maxlen=64)
        self._total_s = 0.0
        self._recent_tokens = 0.0
        self._recent_s = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens computed a second lately; None before there is anything to measure."""
        return self._recent_tokens / self._recent_s if self._recent_s > 0 else None

    @property
    def step_ms_mean(self) -> float | None:
        """Mean duration of all steps."""
        return self._total_s / self.num_steps * 1000 if self.num_steps else None

    def step(self, num_tokens: int, started: float, ended: float) -> None:
        """A step that computed `num_tokens` is over."""
        self.num_steps += 1
        self._step_ends.append(ended)
        self._total_s += ended - started
        self._recent_tokens = self._recent_tokens * RATE_DECAY + num_tokens
        self._recent_s = self._recent_s * RATE_DECAY + ended - started

    def steps_since(self, instant: float) -> int:
        """Steps that ended after `instant`, of the last 64."""
        return sum(ended > instant for ended in self._step_ends)

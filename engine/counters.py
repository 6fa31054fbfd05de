"""What the engine counts about itself, for metrics and for the cancel histogram."""

from bisect import bisect_left
from collections import Counter, deque

STEP_MS_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, float("inf"))
ERROR_GAIN = 0.02
"""How much a first token moves the mean error of prediction, once there are many: about the last hundred count."""


class Counters:
    """Written by the engine thread; numbers and dict copies may be read by any."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.recomputed_tokens = 0
        self.finished: Counter[str] = Counter()
        self.aborts: Counter[str] = Counter()
        """By cause; see `EngineStats.aborts_total`."""
        self.cancel_to_free_steps: Counter[int] = Counter()
        self.total_s = 0.0
        self.ttft_error_ratio: float | None = None
        self._num_predicted = 0
        self._step_ends: deque[float] = deque(maxlen=64)
        self._steps_by_ms = [0] * len(STEP_MS_BOUNDS)

    @property
    def step_ms_mean(self) -> float | None:
        """Mean duration of all steps."""
        return self.total_s / self.num_steps * 1000 if self.num_steps else None

    def step(self, started: float, ended: float) -> None:
        """A step is over."""
        self.num_steps += 1
        self._step_ends.append(ended)
        self.total_s += ended - started
        self._steps_by_ms[bisect_left(STEP_MS_BOUNDS, (ended - started) * 1000)] += 1

    def step_ms_histogram(self) -> dict[float, int]:
        """Steps by the lowest of `STEP_MS_BOUNDS` that they did not exceed."""
        return dict(zip(STEP_MS_BOUNDS, self._steps_by_ms, strict=True))

    def steps_since(self, instant: float) -> int:
        """Steps that ended after `instant`, of the last 64."""
        return sum(ended > instant for ended in self._step_ends)

    def first_token(self, num_prompt: int, num_cached: int, predicted_s: float | None, measured_s: float) -> None:
        """A prompt, of which `num_cached` tokens were in the cache, has its first token after `measured_s`."""
        self.prompt_tokens += num_prompt
        self.cached_tokens += num_cached
        if predicted_s is not None and measured_s > 0:
            self._num_predicted += 1
            mean, error = self.ttft_error_ratio or 0.0, abs(predicted_s - measured_s) / measured_s
            self.ttft_error_ratio = mean + max(ERROR_GAIN, 1 / self._num_predicted) * (error - mean)

"""How long a step takes: a linear model that is fitted while the engine runs.

    ms = a + b * prefill_tokens + e * prefill_pairs + c * decode_rows + d * decode_context

Weighted least squares with exponential forgetting (Ljung, System Identification, 1999, ch. 11), coefficients kept at
zero or above. Steps with and without prefill are forgotten separately, so that a long stretch of decoding does not
wash out what prefill costs.
"""

import math
from typing import NamedTuple

FORGET = 0.98
"""An observation's weight falls by this with each later one of its kind: the last 50 count most."""
MAX_SURPRISE = 3.0
"""A step counts as at most this many times what was expected of it: one stall does not bend the model."""
CHANGED_AFTER = 5
"""So many stalls in a row are none: the machine has become slower, and what was learned counts for little."""
MIN_OBSERVED = 3
"""Steps with prefill that it takes to say anything."""
SAMPLE_EVERY = 4
"""Of steps without prefill that decode as many rows as the one before, one in so many is learned from."""
TOKENS, PAIRS, ROWS, CONTEXT, FIXED = range(5)
SWEEP_ORDER = (TOKENS, ROWS, CONTEXT, PAIRS, FIXED)
"""What cannot be told apart yet is put down to the work first and to the fixed cost last."""


class StepLoad(NamedTuple):
    """What a step computes, in the terms that its time depends on."""

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    """Over all chunks: tokens times the positions that one of them attends to on average."""
    decode_rows: int = 0
    decode_context: int = 0
    """Positions that the decodes read, together."""


class _Sums:
    """Decayed sums of the normal equations of one kind of step, each step scaled to a duration of 1."""

    def __init__(self) -> None:
        self.num_observed = 0
        self.matrix = [[0.0] * 5 for _ in range(5)]
        self.vector = [0.0] * 5

    def add(self, row: list[float]) -> None:
        self.num_observed += 1
        v, w, x, y, z = row
        self.matrix = [
            [FORGET * a + u * v, FORGET * b + u * w, FORGET * c + u * x, FORGET * d + u * y, FORGET * e + u * z]
            for (a, b, c, d, e), u in zip(self.matrix, row, strict=True)
        ]
        self.vector = [FORGET * old + value for old, value in zip(self.vector, row, strict=True)]

    def fade(self, share: float) -> None:
        """Let everything so far count only for this share."""
        self.matrix = [[value * share for value in line] for line in self.matrix]
        self.vector = [value * share for value in self.vector]


class StepTimeModel:
    """Learns from every step; predicts in milliseconds."""

    def __init__(self) -> None:
        self.num_stalls = 0
        """Steps that took more than `MAX_SURPRISE` times what was expected."""
        self.largest_prefill = 0
        """The most prefill tokens of a step so far; beyond a multiple of it the model would be guessing."""
        self._without, self._with = _Sums(), _Sums()
        self._stalls_in_a_row = 0
        self._rows, self._num_alike = 0, 0
        self._coefficients = [0.0] * 5

    @property
    def ready(self) -> bool:
        """Whether enough was seen to predict."""
        return self._with.num_observed >= MIN_OBSERVED

    def observe(self, load: StepLoad, ms: float) -> None:
        """Learn from a step that took `ms`."""
        tokens, pairs, rows, context = load
        self._num_alike = self._num_alike + 1 if not tokens and rows == self._rows else 0
        self._rows = rows
        longest = self.predict_ms(load) * MAX_SURPRISE if self.ready else math.inf
        if ms > longest > 0:
            self._stalled()
            ms = longest
        else:
            self._stalls_in_a_row = 0
            if ms <= 0 or self._num_alike % SAMPLE_EVERY:
                return
        sums = self._with if tokens else self._without
        sums.add([tokens / ms, pairs / ms, rows / ms, context / ms, 1.0 / ms])
        self.largest_prefill = max(self.largest_prefill, tokens)
        self._sweep()

    def predict_ms(self, load: StepLoad) -> float:
        """What a step with this load takes; 0 before anything was observed."""
        b, e, c, d, a = self._coefficients
        return a + b * load[0] + e * load[1] + c * load[2] + d * load[3]

    def prefill_ms(self, num_tokens: int, start: int = 0) -> float:
        """What computing `num_tokens` after `start` adds to a step."""
        return num_tokens * (self._coefficients[TOKENS] + self._coefficients[PAIRS] * (start + num_tokens / 2))

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds that a prompt of so many tokens adds to its steps; 0 while that is unknown."""
        return self.prefill_ms(num_tokens) / 1000 if self.ready else 0.0

    def prefill_within(self, ms: float, start: int) -> float:
        """How many tokens after `start` add at most `ms` to a step; the inverse of `prefill_ms`."""
        half, linear = self._coefficients[PAIRS] / 2, self._coefficients[TOKENS]
        linear += self._coefficients[PAIRS] * start
        if half > 0:
            return (math.sqrt(linear * linear + 4 * half * ms) - linear) / (2 * half)
        return ms / linear if linear > 0 else math.inf

    def _stalled(self) -> None:
        self.num_stalls += 1
        self._stalls_in_a_row += 1
        if self._stalls_in_a_row >= CHANGED_AFTER:
            self._with.fade(0.01)
            self._without.fade(0.01)

    def _sweep(self) -> None:
        """One round of non-negative coordinate descent on the normal equations, from where the last one ended."""
        fit, prefill, decode = self._coefficients, self._with, self._without
        for j in SWEEP_ORDER:
            p, d = prefill.matrix[j], decode.matrix[j]
            square = p[j] + d[j]
            if square > 0:
                rest = prefill.vector[j] + decode.vector[j] - (p[0] + d[0]) * fit[0] - (p[1] + d[1]) * fit[1]
                rest -= (p[2] + d[2]) * fit[2] + (p[3] + d[3]) * fit[3] + (p[4] + d[4]) * fit[4]
                fit[j] = max(0.0, fit[j] + rest / square)

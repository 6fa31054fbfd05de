"""How much prefill a step may carry without making those who read an answer wait."""

from dataclasses import dataclass

from engine.steptime import StepLoad, StepTimeModel

UNTRIED_TOKENS = 256
"""Prefill beside decodes while nothing is known of step times."""
MAX_GROWTH = 2
"""A step's prefill is at most so many times the largest seen: the model is not trusted further out."""
BESIDE_SHORT_TOKENS = 128
"""What a step may compute of other prompts, at least, beside a short prompt that begins and ends in it."""


@dataclass(slots=True)
class Audience:
    """Who waits for what. Only interactive requests count."""

    num_reading: int = 0
    """Decodes."""
    num_expecting: int = 0
    """Requests without a first token that could run now."""


class Pace:
    """Bounds the prefill of a step.

    Args:
        model: what steps take.
        stretch: how many times as long as without prefill a step may take.
    """

    def __init__(self, model: StepTimeModel, stretch: float) -> None:
        self._model = model
        self._stretch = stretch

    def prefill_tokens(self, decodes: StepLoad, audience: Audience, start: int, most: int, least: int) -> int:
        """Prefill tokens after `start` for a step that also computes `decodes`; from `least` to `most`.

        A step without readers may be as large as it likes. With them it takes at most `stretch` times as long as
        without prefill; more, in proportion, while more requests expect a first token than there are readers: a
        millisecond of prefill then costs the readers less than it saves the others.
        """
        if not audience.num_reading:
            return most
        if not self._model.ready:
            return min(most, UNTRIED_TOKENS)
        crowd = max(1.0, audience.num_expecting / audience.num_reading)
        spare_ms = self._model.predict_ms(decodes) * (self._stretch - 1) * crowd
        tokens = min(self._model.prefill_within(spare_ms, start), MAX_GROWTH * self._model.largest_prefill)
        return max(min(most, least), min(most, int(tokens)))


def beside(num_short_tokens: int, most: int) -> int:
    """What of `most` other prefill tokens goes into a step with short prompts that begin and end in it.

    Never much more than they have themselves, so that the step takes them little longer than alone.
    """
    return min(most, max(num_short_tokens, BESIDE_SHORT_TOKENS)) if num_short_tokens else most

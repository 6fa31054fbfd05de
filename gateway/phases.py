"""The time limits of a request: a policy's and its caller's, the shorter of both, counted from arrival."""

from dataclasses import dataclass

from engine.request import Deadlines, Phase
from gateway.errors import FirstTokenTimeout, GatewayError, QueueTimeout, TotalTimeout
from gateway.schemas import TimeoutsIn, TimeoutsReport
from policies.schema import Timeouts

LATE_S = 5.0
"""The engine ends a request at its deadline; when it has not by this much later, the gateway does."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds from arrival in which a phase must be over; None never ends it."""

    plan: float | None
    queue: float | None
    first_token: float | None
    total: float | None

    @classmethod
    def tightest(cls, policy: Timeouts, caller: TimeoutsIn | None) -> "Phases":
        """The shorter of both in every phase."""
        asked = caller or TimeoutsIn()
        return cls(
            plan=policy.plan,
            queue=_shorter(policy.queue, asked.queue_ms),
            first_token=_shorter(policy.first_token, asked.first_token_ms),
            total=_shorter(policy.total, asked.total_ms),
        )

    def deadlines(self, arrival: float) -> Deadlines:
        """The engine's three, as `time.monotonic()` instants."""
        return Deadlines(*(None if s is None else arrival + s for s in (self.queue, self.first_token, self.total)))

    def nearest(self, *phases: Phase) -> float | None:
        """The shortest of these phases."""
        bounds = [s for s in (getattr(self, phase) for phase in phases) if s is not None]
        return min(bounds, default=None)

    def plan_limit(self) -> tuple[float | None, GatewayError]:
        """In what time the plan must be there, and the error of the phase that ends first."""
        late_plan = TotalTimeout(f"planning took longer than {_ms(self.plan)} (the policy's timeouts.plan)")
        limits: list[tuple[float | None, GatewayError]] = [
            (self.plan, late_plan),
            (self.queue, self.error("queue")),
            (self.first_token, self.error("first_token")),
            (self.total, self.error("total")),
        ]
        return min(limits, key=lambda limit: float("inf") if limit[0] is None else limit[0])

    def error(self, phase: Phase) -> GatewayError:
        """What a request ends with when this phase took too long."""
        match phase:
            case "queue":
                return QueueTimeout(f"prefill had not begun {_ms(self.queue)} after arrival; the engine is busy")
            case "first_token":
                return FirstTokenTimeout(f"there was no token {_ms(self.first_token)} after arrival")
            case "total":
                return TotalTimeout(
                    f"the answer was not complete {_ms(self.total)} after arrival; ask for fewer tokens, or stream"
                )

    def report(self) -> TimeoutsReport:
        """The report's `limits.timeouts_ms`."""
        queue, first_token, total = (
            None if s is None else round(s * 1000, 3) for s in (self.queue, self.first_token, self.total)
        )
        return TimeoutsReport(queue=queue, first_token=first_token, total=total)


def _shorter(policy_s: float | None, caller_ms: int | None) -> float | None:
    bounds = [s for s in (policy_s, None if caller_ms is None else caller_ms / 1000) if s is not None]
    return min(bounds, default=None)


def _ms(seconds: float | None) -> str:
    return f"{(seconds or 0) * 1000:,.0f} ms"

"""What is known of one request while it is served; report, headers, metrics and log line all read it from here."""

import time
from dataclasses import dataclass, field

from budget.types import Plan
from engine.request import Finish, Usage
from gateway.admission import Ticket
from gateway.auth import Caller
from gateway.error_table import kind_of
from gateway.ids import new_ulid
from gateway.job import Job
from gateway.ratelimit import ratelimit_headers
from gateway.schemas import Cost, Outcome
from policies.resolve import Effective

NOTHING_USED = Usage()


@dataclass(slots=True)
class Exchange:
    """One request, filled in step by step. Instants are `time.monotonic()` seconds."""

    ulid: str = field(default_factory=new_ulid)
    arrival: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    caller: Caller | None = None
    effective: Effective | None = None
    job: Job | None = None
    ticket: Ticket | None = None
    plan: Plan | None = None
    plan_ms: float | None = None
    first_token_at: float | None = None
    text: list[str] = field(default_factory=list)
    num_output_tokens: int = 0
    finish: Finish | None = None
    ended_at: float | None = None
    error: Exception | None = None
    cost: Cost | None = None

    @property
    def request_id(self) -> str:
        """The id that headers, report, log and ledger share."""
        return f"req_{self.ulid}"

    @property
    def usage(self) -> Usage:
        """What the engine took; what was seen of it if it did not tell; nothing if it was never asked."""
        if self.finish is not None:
            return self.finish.usage
        if self.first_token_at is None or self.plan is None:
            return NOTHING_USED
        return Usage(len(self.plan.prompt_token_ids), None, None, None, self.num_output_tokens)

    @property
    def outcome(self) -> Outcome:
        """How it ended, or would end now."""
        if self.error is not None:
            return kind_of(self.error).outcome
        return "length" if self.finish and self.finish.reason == "length" else "ok"

    @property
    def ttft_ms(self) -> float | None:
        """From arrival to the first token at the gateway."""
        return None if self.first_token_at is None else (self.first_token_at - self.arrival) * 1000

    @property
    def total_ms(self) -> float:
        """From arrival to the end, or to now."""
        return ((self.ended_at or time.monotonic()) - self.arrival) * 1000

    def headers(self) -> dict[str, str]:
        """The response headers, as far as their values are known."""
        headers = {"x-request-id": self.request_id, "x-tidegate-request-id": self.request_id}
        if self.effective is not None:
            headers["x-tidegate-policy"] = f"{self.effective.name}@{self.effective.revision}"
        if self.plan is not None:
            in_prompt = sum(document.tokens_after > 0 for document in self.plan.report.documents)
            headers["x-tidegate-prompt-tokens"] = str(len(self.plan.prompt_token_ids))
            headers["x-tidegate-documents-kept"] = str(in_prompt)
        if self.ticket is not None:
            headers |= ratelimit_headers(self.ticket.standing)
        return headers

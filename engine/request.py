"""What crosses the engine's door: requests in, events out, and the `Engine` protocol itself.

Instants are `time.monotonic()` seconds; durations end in `_ms` or `_s`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

FinishReason = Literal["stop", "length", "cancelled", "timeout", "rejected", "failed"]
Phase = Literal["queue", "first_token", "total"]
Objective = Literal["interactive", "throughput"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy and ignores every other field but penalties.

    `seed` makes a draw depend on (seed, output position) alone, never on what else is in the batch.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Absolute instants; None never expires. The engine ends a request with `timeout` and the phase that passed."""

    queue: float | None = None
    first_token: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generation. `max_tokens` is the granted number: what was asked, clamped to what fits the context."""

    request_id: str
    prompt_token_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    namespace: tuple[str, ...] = ()
    """Tagged parts of the cache namespace; requests share KV blocks only when all parts are equal."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    team: str = ""
    weight: float = 1.0
    """The team's, against other teams' under load."""
    priority: int = 0
    """Against other requests of the same team."""
    kv_share: float | None = None
    """The part of the KV pool that the team's running requests may need together; None is all of it."""
    objective: Objective = "interactive"
    messages: tuple[Mapping[str, Any], ...] = ()
    """The planned chat messages, for engines that take text."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What one request took. `cached_tokens + computed_tokens == prompt_tokens`, whatever the outcome,
    once prefill is done; a request that ended earlier counts only what was reached.

    `recomputed_tokens` are those computed again after a preemption. Shared blocks count in `kv_blocks_peak` and
    are charged in `kv_byte_seconds` by their number of sharers. None is unknown (a remote engine).
    """

    prompt_tokens: int = 0
    cached_tokens: int | None = 0
    computed_tokens: int | None = 0
    recomputed_tokens: int | None = 0
    output_tokens: int = 0
    queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    decode_ms: float | None = None
    inter_token_p50_ms: float | None = None
    inter_token_p95_ms: float | None = None
    kv_blocks_peak: int | None = None
    kv_blocks_shared: int | None = None
    kv_bytes_peak: int | None = None
    kv_byte_seconds: float | None = None
    kv_pool_used_ratio: float | None = None
    prefill_chunks: int | None = None
    preemptions: int | None = None
    batch_size_mean: float | None = None
    predicted_ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that is safe to send: whole characters, and no part of a stop string. `text` may be empty."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of every request, exactly once. `phase` is set with `timeout`, `message` with an error."""

    reason: FinishReason
    usage: Usage
    phase: Phase | None = None
    message: str | None = None
    retry_after_s: float | None = None
    retryable: bool = False


Event = Delta | Finish


OTHER_NAMESPACES = ("other",)
OTHER_TEAMS = "other"


@dataclass(frozen=True, slots=True)
class TeamStats:
    """One team's live requests, and the KV blocks that the running ones may need together."""

    num_running: int
    num_waiting: int
    blocks_promised: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics and `/readyz`; counters only grow."""

    ready: bool
    healthy: bool
    num_running: int
    num_waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_in_use: int
    blocks_idle: int
    """Cached and unreferenced: reusable, evictable."""
    blocks_free: int
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    output_tokens_total: int = 0
    steps_total: int = 0
    preemptions_total: int = 0
    finished_total: Mapping[str, int] = field(default_factory=dict)
    """By finish reason."""
    aborts_total: Mapping[str, int] = field(default_factory=dict)
    """Requests that did not end by themselves, by cause: `cancelled`, `timeout_queue`, `timeout_first_token`,
    `timeout_total`, `rejected_full` (the queue), `rejected_invalid` (can never run), `failed`."""
    recomputed_tokens_total: int = 0
    """Tokens computed again after preemptions, of requests that ended."""
    cancel_to_free_steps: Mapping[int, int] = field(default_factory=dict)
    """Histogram: engine steps from a cancel or a passed deadline to its blocks being free -> count."""
    step_ms_mean: float | None = None
    step_ms_total: float = 0.0
    step_ms_histogram: Mapping[float, int] = field(default_factory=dict)
    """Upper bound in ms (the last is infinite) -> steps that took so long, and longer than the bound before."""
    stalls_total: int = 0
    """Steps that took more than three times what the step-time model expected."""
    ttft_error_ratio: float | None = None
    """Mean of |predicted - measured| / measured over the last hundred or so first tokens."""
    blocks_by_namespace: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Cached KV blocks, in use and idle, of the largest namespaces; the rest together under `OTHER_NAMESPACES`."""
    teams: Mapping[str, "TeamStats"] = field(default_factory=dict)
    """Teams with live requests, the busiest; the rest together under `OTHER_TEAMS`."""
    detail: str | None = None
    """Why it is not healthy."""


class Engine(Protocol):
    """Embedded or remote. All methods are called on the event loop; `probe` from any thread."""

    def submit(self, request: EngineRequest) -> AsyncIterator[Event]:
        """Yield `Delta`s and then one `Finish`. Closing the iterator early cancels the request."""
        ...

    def cancel(self, request_id: str) -> None:
        """Ask for the request to end with `cancelled`; unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        ...

    def probe(self, namespace: tuple[str, ...], token_ids: Sequence[int]) -> int | None:
        """Tokens of this prefix that are in KV right now; advisory. None where the engine cannot tell."""
        ...

    def flush(self, namespace: tuple[str, ...] | None = None) -> int:
        """Drop idle cached blocks, all or those of a namespace; returns how many blocks became free."""
        ...

    async def start(self) -> None:
        """Load and warm up; returns when requests can be served."""
        ...

    async def close(self) -> None:
        """End every request with `cancelled` and stop."""
        ...

"""One request inside the engine: its tokens, its lease of KV blocks, its text, and the meter that makes its usage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.detokenize import TextStream
from engine.lease import Lease
from engine.prefix import Node
from engine.request import EngineRequest, Phase, Usage
from engine.teams import Team


@dataclass(slots=True)
class Meter:
    """Instants and counts that the steps leave behind. Instants are `time.monotonic()` seconds."""

    arrived: float
    scheduled: float | None = None
    """When the first prefill chunk was scheduled."""
    first_token: float | None = None
    last_token: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    predicted_ttft_s: float | None = None
    num_cached: int = 0
    num_computed: int = 0
    """Prompt tokens computed, each counted once."""
    num_recomputed: int = 0
    """Tokens of prompt or output computed again after a preemption."""
    num_chunks: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    sum_batch: int = 0
    pool_used_ratio: float = 0.0
    """The highest share of the pool in use at any step of this sequence."""
    num_blocks_peak: int = 0
    num_blocks_shared: int = 0
    kv_block_s: float = 0.0
    """Block-seconds, each divided by the block's holders."""

    def token(self, now: float) -> None:
        """A token was drawn."""
        if self.last_token is None:
            self.first_token = now
        else:
            self.gaps_s.append(now - self.last_token)
        self.last_token = now

    def step(self, batch_size: int, pool_used_ratio: float) -> None:
        """The sequence took part in a step."""
        self.num_steps += 1
        self.sum_batch += batch_size
        self.pool_used_ratio = max(self.pool_used_ratio, pool_used_ratio)

    def gave_back(self, lease: Lease, num_blocks: int) -> None:
        """A lease, of `num_blocks` in the end, was released."""
        self.num_blocks_peak = max(self.num_blocks_peak, num_blocks)
        self.num_blocks_shared = max(self.num_blocks_shared, lease.num_shared)
        self.kv_block_s += lease.share_s


@dataclass(slots=True, eq=False)
class SequenceState:
    """A live request. `tokens` is the prompt and the output so far; the first `num_computed` are in KV."""

    request: EngineRequest
    seq_id: int
    tokens: list[int]
    num_prompt: int
    text: TextStream
    stop_ids: frozenset[int]
    meter: Meter
    team: Team
    num_blocks: int
    """KV blocks that it can need at most."""
    lease: Lease | None = None
    """Set while it runs."""
    num_computed: int = 0
    num_known: int = 0
    """The most of `tokens` that ever was in KV; what is computed below is computed again."""
    deadline: float = math.inf
    """The earliest instant that would end it in its present phase."""
    found: list[Node] = field(default_factory=list)
    """While it waits: what was cached of its tokens when they were last looked up."""
    num_uncached: int = 0
    """While it waits: the tokens that were not."""
    order: float = 0.0
    """While it waits: its place in its team's queue, in seconds; the lowest is first."""
    ordered_by: int = 0
    """`num_uncached` when `order` was set."""
    tag: float | None = None
    """Its finish tag when it was first admitted."""
    charged: float = 0.0
    """Service tokens that its team was charged for it."""
    blocked_at: int = -1
    """`KVCache.num_releases` when it last did not fit."""

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Known tokens that are not in KV yet; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def decoding(self) -> bool:
        """Whether only the last drawn token is to compute."""
        return self.num_computed >= self.num_prompt and len(self.tokens) == self.num_computed + 1

    @property
    def interactive(self) -> bool:
        """Whether somebody waits for each token, not for the whole."""
        return self.request.objective == "interactive"

    @property
    def start_tag(self) -> float:
        """While it waits: its team's counter, by which the next is picked; who was preempted comes before all."""
        return self.team.committed if self.tag is None else -math.inf

    @property
    def finish_tag(self) -> float:
        """Its team's counter with it; prefills that run are computed in this order (Demers et al., 1989)."""
        return self.team.committed + self.cost / self.request.weight if self.tag is None else self.tag

    @property
    def cost(self) -> float:
        """While it waits: the service tokens that it will probably take."""
        return self.team.cost(self.num_uncached, self.request.max_tokens)

    @property
    def expected_output_left(self) -> float:
        """Tokens that are probably still to come, at least one."""
        return max(1.0, self.team.expected_output(self.request.max_tokens) - self.num_output)

    def proceed(self, num_tokens: int, cached: bool) -> int:
        """The next `num_tokens` are in KV, found there or computed; returns how many tokens of the prompt are new."""
        end = self.num_computed + num_tokens
        if self.num_prompt <= self.num_computed == self.num_known:  # a decode, nearly always
            self.num_computed = self.num_known = end
            return 0
        new = max(0, end - max(self.num_computed, self.num_known))
        meter, new_prompt = self.meter, min(new, max(0, self.num_prompt - (end - new)))
        if cached:
            meter.num_cached += new_prompt
        else:
            meter.num_computed += new_prompt
            meter.num_recomputed += num_tokens - new
        self.num_computed = end
        self.num_known = max(self.num_known, end)
        return new_prompt

    def open_phases(self) -> list[tuple[float, Phase]]:
        """Deadlines that can still pass, with their phases."""
        limits = self.request.deadlines
        phases: list[tuple[float | None, Phase]] = [(limits.total, "total")]
        if self.meter.first_token is None:
            phases.insert(0, (limits.first_token, "first_token"))
        if self.meter.scheduled is None:
            phases.insert(0, (limits.queue, "queue"))
        return [(instant, phase) for instant, phase in phases if instant is not None]

    def next_phase(self) -> None:
        """Recompute `deadline` after a phase has passed."""
        self.deadline = min((instant for instant, _ in self.open_phases()), default=math.inf)


def usage(seq: SequenceState, block_bytes: int, now: float) -> Usage:
    """What a sequence that ends `now` took; its lease is released already."""
    meter = seq.meter
    gaps = sorted(meter.gaps_s)
    return Usage(
        prompt_tokens=seq.num_prompt,
        cached_tokens=meter.num_cached,
        computed_tokens=meter.num_computed,
        recomputed_tokens=meter.num_recomputed,
        output_tokens=seq.num_output,
        queue_ms=_ms(meter.arrived, now if meter.scheduled is None else meter.scheduled),
        prefill_ms=_ms(meter.scheduled, meter.first_token),
        ttft_ms=_ms(meter.arrived, meter.first_token),
        decode_ms=_ms(meter.first_token, now),
        inter_token_p50_ms=_quantile_ms(gaps, 0.5),
        inter_token_p95_ms=_quantile_ms(gaps, 0.95),
        kv_blocks_peak=meter.num_blocks_peak,
        kv_blocks_shared=meter.num_blocks_shared,
        kv_bytes_peak=meter.num_blocks_peak * block_bytes,
        kv_byte_seconds=meter.kv_block_s * block_bytes,
        kv_pool_used_ratio=meter.pool_used_ratio,
        prefill_chunks=meter.num_chunks,
        preemptions=meter.num_preemptions,
        batch_size_mean=meter.sum_batch / meter.num_steps if meter.num_steps else None,
        predicted_ttft_ms=_ms(0.0, meter.predicted_ttft_s),
    )


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000


def _quantile_ms(ordered_s: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile: the smallest value that at least `share` of all do not exceed."""
    return ordered_s[math.ceil(share * len(ordered_s)) - 1] * 1000 if ordered_s else None

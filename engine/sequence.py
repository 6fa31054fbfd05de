"""One request inside the engine: its tokens, its lease of KV blocks, its text, and the meter that makes its usage."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.detokenize import TextStream
from engine.lease import Lease
from engine.request import EngineRequest, Phase, Usage


@dataclass(slots=True)
class Meter:
    """Instants and counts that the steps leave behind. Instants are `time.monotonic()` seconds."""

    arrived: float
    scheduled: float | None = None
    """When the first prefill chunk was scheduled."""
    first_token: float | None = None
    last_token: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    num_cached: int = 0
    num_computed: int = 0
    """Prompt tokens computed."""
    num_recomputed: int = 0
    num_chunks: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    sum_batch: int = 0
    pool_used_ratio: float = 0.0
    """The highest share of the pool in use at any step of this sequence."""

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
    lease: Lease | None = None
    """Set while it runs."""
    num_computed: int = 0
    deadline: float = math.inf
    """The earliest instant that would end it in its present phase."""
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


def usage(seq: SequenceState, lease: Lease | None, num_blocks: int, block_bytes: int, now: float) -> Usage:
    """What a sequence that ends `now` took. `lease` is released already; `num_blocks` were in its table."""
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
        kv_blocks_peak=num_blocks,
        kv_blocks_shared=lease.num_shared if lease else 0,
        kv_bytes_peak=num_blocks * block_bytes,
        kv_byte_seconds=lease.share_s * block_bytes if lease else 0.0,
        kv_pool_used_ratio=meter.pool_used_ratio,
        prefill_chunks=meter.num_chunks,
        preemptions=meter.num_preemptions,
        batch_size_mean=meter.sum_batch / meter.num_steps if meter.num_steps else None,
    )


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000


def _quantile_ms(ordered_s: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile: the smallest value that at least `share` of all do not exceed."""
    return ordered_s[math.ceil(share * len(ordered_s)) - 1] * 1000 if ordered_s else None

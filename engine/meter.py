"""What the steps leave behind of a request, and the usage that it makes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.lease import Lease
from engine.request import Usage


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


def usage(meter: Meter, num_prompt: int, num_output: int, block_bytes: int, now: float) -> Usage:
    """What a request that ends `now` took; its lease is released already."""
    gaps = sorted(meter.gaps_s)
    return Usage(
        prompt_tokens=num_prompt,
        cached_tokens=meter.num_cached,
        computed_tokens=meter.num_computed,
        recomputed_tokens=meter.num_recomputed,
        output_tokens=num_output,
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

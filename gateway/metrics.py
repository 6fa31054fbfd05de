"""The gateway's Prometheus metrics, in a registry of their own.

Labels come from the policy and the model names, never from what a client may choose, so they stay few.
"""

import asyncio
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

UNKNOWN = "unknown"
"""The label of what was refused before it was known whose it is."""
LAG_EVERY_S = 0.25
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SHORT = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)
STORE_STATES = ("ok", "local_share", "open", "closed")


class Metrics:
    """All counters, histograms and gauges of one gateway."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        ended = ("team", "model", "outcome", "status")
        self.requests = Counter("tidegate_requests", "Requests by how they ended", ended, registry=own)
        self.in_flight = Gauge("tidegate_requests_in_flight", "From arrival to report", registry=own)
        self.tokens = Counter("tidegate_tokens", "Tokens by kind", ("team", "model", "kind"), registry=own)
        self.cost = Counter("tidegate_cost", "Cost in units of account", ("team", "model"), registry=own)
        self.plan = Histogram("tidegate_plan_seconds", "Planning", ("model",), buckets=SECONDS, registry=own)
        self.queue = Histogram("tidegate_queue_seconds", "In the queue", ("model",), buckets=SECONDS, registry=own)
        self.ttft = Histogram(
            "tidegate_ttft_seconds", "Arrival to first token", ("model",), buckets=SECONDS, registry=own
        )
        self.inter_token = Histogram(
            "tidegate_inter_token_seconds", "Median gap of an answer", ("model",), buckets=SECONDS, registry=own
        )
        self.admission = Histogram(
            "tidegate_admission_seconds", "One step of the ledger", ("step",), buckets=SHORT, registry=own
        )
        self.fallbacks = Counter(
            "tidegate_ranking_fallbacks", "Plans ranked by less than was asked", ("method",), registry=own
        )
        self.lag = Gauge("tidegate_event_loop_lag_seconds", "How late the loop woke up last", registry=own)
        self.lag_max = Gauge("tidegate_event_loop_lag_max_seconds", "The worst since the start", registry=own)
        self.store = Gauge("tidegate_store_state", "1 for the ledger's state", ("state",), registry=own)
        self.policy = Gauge("tidegate_policy_info", "1 for the serving revision", ("revision",), registry=own)
        self.reload_failed = Gauge("tidegate_policy_reload_failed", "1 while a refused set waits", registry=own)
        self.set_store_state("ok")

    def set_store_state(self, state: str) -> None:
        """Show which of `STORE_STATES` the ledger is in."""
        for name in STORE_STATES:
            self.store.labels(name).set(name == state)

    def set_policy(self, revision: str, *, reload_failed: bool) -> None:
        """Show the serving revision, and whether a newer set was refused."""
        self.policy.clear()
        self.policy.labels(revision).set(1)
        self.reload_failed.set(reload_failed)

    async def watch_event_loop(self) -> None:
        """Measure, for ever, how late a short sleep ends: whatever holds the loop delays every stream by that."""
        worst = 0.0
        while True:
            due = time.monotonic() + LAG_EVERY_S
            await asyncio.sleep(LAG_EVERY_S)
            lag = max(0.0, time.monotonic() - due)
            worst = max(worst, lag)
            self.lag.set(lag)
            self.lag_max.set(worst)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

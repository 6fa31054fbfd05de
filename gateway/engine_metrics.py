"""The engines' own numbers as Prometheus families, read from `stats()` at the moment of the scrape."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.request import EngineStats

STEP_BUCKETS = (0, 1, 2, 4, 8, 16, 32)
GAUGES: Mapping[str, tuple[str, Callable[[EngineStats], float]]] = {
    "ready": ("1 once requests can be served", lambda s: s.ready),
    "healthy": ("1 while the engine loop works", lambda s: s.healthy),
    "running_requests": ("Sequences in the batch", lambda s: s.num_running),
    "waiting_requests": ("Requests in the queue", lambda s: s.num_waiting),
    "waiting_tokens": ("Prompt tokens in the queue", lambda s: s.waiting_tokens),
    "kv_blocks_total": ("KV blocks in the pool", lambda s: s.blocks_total),
    "kv_blocks_in_use": ("KV blocks that running requests reference", lambda s: s.blocks_in_use),
    "kv_blocks_idle": ("KV blocks that are cached and unreferenced", lambda s: s.blocks_idle),
    "kv_blocks_free": ("KV blocks that hold nothing", lambda s: s.blocks_free),
    "step_milliseconds_mean": ("Mean time of a step", lambda s: s.step_ms_mean or 0.0),
}
COUNTERS: Mapping[str, tuple[str, Callable[[EngineStats], float]]] = {
    "prompt_tokens": ("Prompt tokens of admitted requests", lambda s: s.prompt_tokens_total),
    "cached_tokens": ("Prompt tokens taken from the prefix cache", lambda s: s.cached_tokens_total),
    "output_tokens": ("Tokens generated", lambda s: s.output_tokens_total),
    "steps": ("Engine steps", lambda s: s.steps_total),
    "preemptions": ("Requests put back into the queue for want of KV blocks", lambda s: s.preemptions_total),
}


class EngineCollector(Collector):
    """Asks for the stats of all loaded models, by model name, whenever Prometheus reads."""

    def __init__(self, read: Callable[[], Mapping[str, EngineStats]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every family, one sample a model."""
        by_model = self._read()
        for name, (text, value) in GAUGES.items():
            gauge = GaugeMetricFamily(f"tidegate_engine_{name}", text, labels=["model"])
            for model, stats in by_model.items():
                gauge.add_metric([model], float(value(stats)))
            yield gauge
        for name, (text, value) in COUNTERS.items():
            counter = CounterMetricFamily(f"tidegate_engine_{name}", text, labels=["model"])
            for model, stats in by_model.items():
                counter.add_metric([model], float(value(stats)))
            yield counter
        yield _finished(by_model)
        yield _steps_to_free(by_model)


def _finished(by_model: Mapping[str, EngineStats]) -> Metric:
    family = CounterMetricFamily("tidegate_engine_finished", "Requests by finish reason", labels=["model", "reason"])
    for model, stats in by_model.items():
        for reason, count in sorted(stats.finished_total.items()):
            family.add_metric([model, reason], count)
    return family


def _steps_to_free(by_model: Mapping[str, EngineStats]) -> Metric:
    family = HistogramMetricFamily(
        "tidegate_engine_steps_to_free",
        "Engine steps from a cancel or a passed deadline to its KV blocks being free",
        labels=["model"],
    )
    for model, stats in by_model.items():
        steps = stats.cancel_to_free_steps
        buckets = [(str(float(le)), sum(n for step, n in steps.items() if step <= le)) for le in STEP_BUCKETS]
        buckets.append(("+Inf", sum(steps.values())))
        family.add_metric([model], buckets, sum(step * n for step, n in steps.items()))
    return family

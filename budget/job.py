"""What the stages of one planning job share: the request, its bounds, the ports, and a stopwatch."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from budget.assemble import Layout, Measured, Placed, lay_out, measure
from budget.bounds import Bounds
from budget.conversation import Conversation
from budget.passages import render
from budget.ports import Ports
from budget.tokens import SegmentEncoder
from budget.types import PlanRequest, Segment


@dataclass(frozen=True)
class Job:
    """One planning job; `labels` are those of all documents, by index."""

    request: PlanRequest
    ports: Ports
    conversation: Conversation
    bounds: Bounds
    labels: dict[int, str]
    timings_ms: dict[str, float] = field(default_factory=dict)

    def everything(self) -> Layout:
        """All messages, and all passages as they came: what an unplanned request would send."""
        template = self.request.context.render.document
        documents = [
            Placed(d.index, render(template, self.labels[d.index], (d.title or "").strip(), d.text.strip()))
            for d in self.request.documents
        ]
        off = self.request.context.planning == "off"
        return Layout(frozenset(range(len(self.request.messages))), (), documents, as_sent=off)

    def measure(self, layout: Layout) -> Measured:
        """Renders and counts a layout."""
        laid = lay_out(self.request, self.conversation, layout, self.ports)
        return measure(laid, self.request, self.ports, self._encoder)

    def ids(self, segments: Sequence[Segment]) -> tuple[int, ...]:
        """The token ids of segments, end to end."""
        return tuple(chain.from_iterable(map(self._encoder.encode, segments)))

    @cached_property
    def _encoder(self) -> SegmentEncoder:
        return SegmentEncoder(self.ports.counter)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Adds the time spent within to the stage's."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = (time.perf_counter() - start) * 1000
            self.timings_ms[stage] = self.timings_ms.get(stage, 0.0) + spent

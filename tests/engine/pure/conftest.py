"""A bench for the engine without threads: core, fake runner and a clock that only the test moves."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.batch import SequenceWork
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.fake import FakeRunner
from engine.prefix import tokens_themselves
from engine.request import Deadlines, Delta, EngineRequest, Event, Finish, SamplingParams

GREEDY = SamplingParams(temperature=0)


class Bench:
    """Drives a core over a fake runner; checks its integrity after everything that it does."""

    def __init__(self, *, key: Callable[..., Any] = tokens_themselves, step_s: float = 0.0, **options: Any) -> None:
        names = {"num_blocks", "block_size", "scripts", "eos_probability", "raise_at_step", "raise_at_token"}
        self.runner = FakeRunner(
            **{"num_blocks": 32, "block_size": 4, **{k: options.pop(k) for k in names & set(options)}}
        )
        self.now = 0.0
        self.step_s = step_s
        self.batches: list[list[tuple[int, int]]] = []
        """(seq_id, tokens) of every step."""
        self.before_run: Callable[[Sequence[SequenceWork]], None] = lambda batch: None
        self.core = EngineCore(
            EngineConfig(model="fake", **options),
            self,
            self.runner.vocabulary.token_bytes,
            clock=lambda: self.now,
            key=key,
        )
        self.events: dict[str, list[Event]] = {}
        self.requests: dict[str, EngineRequest] = {}

    @property
    def model(self) -> Any:
        return self.runner.model

    @property
    def block_size(self) -> int:
        return self.runner.block_size

    @property
    def num_blocks(self) -> int:
        return self.runner.num_blocks

    def run(self, batch: Sequence[SequenceWork]) -> list[int | None]:
        """Stand between core and runner: record, and let time pass."""
        self.batches.append([(work.seq_id, len(work.token_ids)) for work in batch])
        self.before_run(batch)
        self.now += self.step_s
        return self.runner.run(batch)

    def add(self, request_id: str, prompt: Sequence[int] | bytes, max_tokens: int = 4, **fields: Any) -> None:
        """Submit now; `queue`, `first_token`, `total` are absolute deadlines."""
        limits = Deadlines(**{name: fields.pop(name, None) for name in ("queue", "first_token", "total")})
        fields.setdefault("sampling", GREEDY)
        request = EngineRequest(request_id, tuple(prompt), max_tokens, deadlines=limits, **fields)
        self.requests[request_id] = request
        self.events[request_id] = []
        self._take(self.core.add(request, self.now))

    def cancel(self, request_id: str, asked_at_step: int | None = None) -> None:
        self._take(self.core.cancel(request_id, asked_at_step))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._take(self.core.step())

    def finish_all(self) -> None:
        """Step until nothing is live."""
        for _ in range(10_000):
            if not len(self.core):
                return
            self.step()
        raise AssertionError(f"{len(self.core)} requests never finish")

    def tokens(self, request_id: str) -> list[int]:
        return [t for event in self.events[request_id] if isinstance(event, Delta) for t in event.token_ids]

    def text(self, request_id: str) -> str:
        return "".join(event.text for event in self.events[request_id] if isinstance(event, Delta))

    def finish(self, request_id: str) -> Finish:
        """The request's one finish, which is its last event."""
        finishes = [event for event in self.events[request_id] if isinstance(event, Finish)]
        assert len(finishes) == 1
        assert self.events[request_id][-1] is finishes[0]
        return finishes[0]

    def solo(self, request_id: str) -> list[int]:
        """What this request must generate, whatever runs beside it."""
        request = self.requests[request_id]
        return self.runner.solo(request.prompt_token_ids, request.max_tokens, request.sampling)

    def table(self, request_id: str) -> list[int]:
        """The running request's block table."""
        seq = self.core._table.get(request_id)
        return list(seq.lease.table) if seq and seq.lease else []

    def _take(self, emitted: Sequence[tuple[str, Event]]) -> None:
        for request_id, event in emitted:
            self.events[request_id].append(event)
        self.core.check_integrity()


@pytest.fixture
def bench() -> type[Bench]:
    """The bench's class."""
    return Bench

"""A bench for the engine without threads: core, fake runner and a clock that only the test moves."""

import math
import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count, pairwise
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
    """Drives a core over a fake runner; checks its integrity after everything that it does, unless `check` is off."""

    def __init__(
        self,
        *,
        key: Callable[..., Any] = tokens_themselves,
        step_s: float = 0.0,
        cost: Callable[[Sequence[SequenceWork]], float] | None = None,
        check: bool = True,
        **options: Any,
    ) -> None:
        names = {"num_blocks", "block_size", "scripts", "eos_probability", "raise_at_step", "raise_at_token"}
        self.runner = FakeRunner(
            **{"num_blocks": 32, "block_size": 4, **{k: options.pop(k) for k in names & set(options)}}
        )
        self.now = 0.0
        self.cost = cost or (lambda batch: step_s)
        """Seconds that a step takes."""
        self.check = check
        self.step_s: list[float] = []
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
        self.times: dict[str, list[float]] = {}
        """When each of a request's tokens came."""
        self.requests: dict[str, EngineRequest] = {}
        self.arrived: dict[str, float] = {}
        self.then: dict[str, Callable[[Finish], None]] = {}
        """What happens at a request's end."""
        self._ids = count()
        self.rng = random.Random(7)
        self._arrivals: list[tuple[float, int, Callable[[], None]]] = []

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
        self.step_s.append(self.cost(batch))
        self.now += self.step_s[-1]
        return self.runner.run(batch)

    def add(self, request_id: str, prompt: Sequence[int] | bytes, max_tokens: int = 4, **fields: Any) -> None:
        """Submit now; `queue`, `first_token`, `total` are absolute deadlines."""
        limits = Deadlines(**{name: fields.pop(name, None) for name in ("queue", "first_token", "total")})
        arrived = fields.pop("arrived", self.now)
        fields.setdefault("sampling", GREEDY)
        request = EngineRequest(request_id, tuple(prompt), max_tokens, deadlines=limits, **fields)
        self.requests[request_id] = request
        self.events[request_id], self.times[request_id] = [], []
        self.arrived[request_id] = arrived
        self._take(self.core.add(request, self.arrived[request_id]))

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

    def at(self, instant: float, request_id: str, prompt: Sequence[int], max_tokens: int = 4, **fields: Any) -> None:
        """Submit when `play` comes to `instant`, or right after the step in which that passes."""
        submit = lambda: self.add(request_id, prompt, max_tokens, arrived=instant, **fields)  # noqa: E731
        heappush(self._arrivals, (instant, next(self._ids), submit))

    def play(self, until: float = math.inf) -> None:
        """Step, with requests coming in at their time, until `until` or until nothing is left."""
        while self.now < until and (len(self.core) or self._arrivals):
            if not len(self.core):
                self.now = max(self.now, self._arrivals[0][0])
            while self._arrivals and self._arrivals[0][0] <= self.now:
                heappop(self._arrivals)[2]()
            self.step()

    def feed(self, team: str, num_clients: int, shape: Callable[[], tuple[int, int]], **fields: Any) -> None:
        """So many clients of a team, each sending its next request (prompt and output tokens) after the last."""

        def send(last: Finish | None) -> None:
            num_prompt, max_tokens = shape()
            request_id = f"{team}{next(self._ids)}"
            self.then[request_id] = send
            instant = self.now + (last.retry_after_s or 0.0 if last else 0.0)
            self.at(instant, request_id, self.random_prompt(num_prompt), max_tokens, team=team, **fields)

        for _ in range(num_clients):
            send(None)

    def random_prompt(self, num_tokens: int, prefix: Sequence[int] = ()) -> list[int]:
        """A prompt that nobody had before, after `prefix`."""
        return [*prefix, *(self.rng.randrange(4096) for _ in range(num_tokens - len(prefix)))]

    def ttft(self, request_id: str) -> float:
        return self.times[request_id][0] - self.arrived[request_id]

    def gaps(self, request_id: str, after: float = 0.0) -> list[float]:
        """Times between a request's tokens."""
        return [second - first for first, second in pairwise(self.times[request_id]) if first >= after]

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
            if isinstance(event, Delta) and event.token_ids:
                self.times[request_id].append(self.now)
        if self.check:
            self.core.check_integrity()
        for request_id, event in emitted:
            if isinstance(event, Finish) and request_id in self.then:
                self.then.pop(request_id)(event)


def cpu_cost(batch: Sequence[SequenceWork]) -> float:
    """Seconds of a step as on a small CPU: a 135M model in bfloat16 on two cores."""
    ms = 10.0
    for work in batch:
        n = len(work.token_ids)
        if n == 1 and work.output_index:
            ms += 0.6 + 0.0011 * work.start
        else:
            ms += 0.12 * n + 0.00005 * n * (work.start + n / 2)
    return ms / 1000


class Simulation(Bench):
    """A bench whose steps take as long as a small CPU's, over a pool of some 90,000 tokens."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cost": cpu_cost, "check": False, "num_blocks": 5800, "block_size": 16, **options})

    def warm(self) -> None:
        """Let the engine measure its steps: some requests alone and together, until they have ended."""
        for n in range(6):
            self.add(f"warm{n}", self.random_prompt(900), 8)
            self.step(2)
        self.finish_all()


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest-rank quantile."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@pytest.fixture
def simulation() -> type[Simulation]:
    """The simulation's class."""
    return Simulation


@pytest.fixture
def p95() -> Callable[[Sequence[float]], float]:
    """The 95th percentile."""
    return lambda values: quantile(values, 0.95)


@pytest.fixture
def bench() -> type[Bench]:
    """The bench's class."""
    return Bench

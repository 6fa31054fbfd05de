"""The engine thread and its asyncio front."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import EngineClosed, EngineError, ModelLoadError
from engine.fake import FakeRunner
from engine.loop import EmbeddedEngine
from engine.request import Deadlines, Delta, Engine, EngineRequest, Finish


@asynccontextmanager
async def running(runner: FakeRunner | None = None, **options: Any) -> AsyncIterator[EmbeddedEngine]:
    """A started engine, closed at the end."""
    runner = runner or FakeRunner(64, 4)
    engine = EmbeddedEngine(EngineConfig(model="fake", **options), lambda: (runner, runner.vocabulary.token_bytes))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def ask(engine: Engine, request_id: str, prompt: bytes = b"hello", max_tokens: int = 4, **fields: Any) -> Any:
    """(tokens, finish) of one request."""
    tokens: list[int] = []
    async for event in engine.submit(EngineRequest(request_id, tuple(prompt), max_tokens, **fields)):
        if isinstance(event, Finish):
            return tokens, event
        tokens += event.token_ids
    raise AssertionError("no finish")


async def until(condition: Callable[[], bool]) -> None:
    """Wait, for at most five seconds, until something has happened on the other side."""
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within 5 s")


async def test_many_requests_at_once_equal_their_solo_runs() -> None:
    """Forty concurrent requests over a small pool each get their own answer."""
    runner = FakeRunner(64, 4)
    async with running(runner, max_running=8, step_tokens=32) as engine:
        prompts = [bytes(range(n % 7, n % 7 + 20)) + bytes([n]) for n in range(40)]
        answers = await asyncio.gather(*(ask(engine, f"r{n}", p, 12) for n, p in enumerate(prompts)))
        assert [tokens for tokens, _ in answers] == [runner.solo(p, 12) for p in prompts]
        assert engine.model.id == "fake"
        assert engine.stats().blocks_in_use == 0


async def test_load_errors_come_out_of_start() -> None:
    """Whatever load or warm-up raises is raised by start, and the engine then takes nothing."""

    def load() -> Any:
        raise ModelLoadError("no such file")

    engine = EmbeddedEngine(EngineConfig(model="fake"), load)
    with pytest.raises(EngineClosed, match="not been started"):
        _ = engine.model
    with pytest.raises(ModelLoadError, match="no such file"):
        await engine.start()
    assert not engine.stats().healthy
    assert "no such file" in (engine.stats().detail or "")
    with pytest.raises(EngineClosed, match="no such file"):
        await ask(engine, "a")
    await engine.close()


async def test_bad_bounds_come_out_of_start_and_close_the_runner() -> None:
    """A runner that was loaded is given back when the engine cannot be built."""
    runner = FakeRunner(8, 4)
    engine = EmbeddedEngine(EngineConfig(model="fake", max_running=0), lambda: (runner, runner.vocabulary.token_bytes))
    with pytest.raises(ValueError, match="max_running is 0"):
        await engine.start()
    await engine.close()
    assert runner.closed


async def test_loading_does_not_block_the_event_loop() -> None:
    """Other tasks run while the model loads; start returns when it is ready."""
    release, runner = threading.Event(), FakeRunner(8, 4)

    def load() -> Any:
        assert release.wait(5)
        return runner, runner.vocabulary.token_bytes

    engine = EmbeddedEngine(EngineConfig(model="fake"), load)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.02)
    assert not starting.done()
    assert not engine.stats().ready
    with pytest.raises(EngineClosed, match="not started"):
        await ask(engine, "early")
    release.set()
    await starting
    assert engine.stats().ready
    with pytest.raises(EngineError, match="starts once"):
        await engine.start()
    await engine.close()


async def test_start_that_is_cancelled_gives_the_runner_back() -> None:
    """A start that nobody waits for any more ends the thread after loading."""
    release, runner = threading.Event(), FakeRunner(8, 4)

    def load() -> Any:
        assert release.wait(5)
        return runner, runner.vocabulary.token_bytes

    engine = EmbeddedEngine(EngineConfig(model="fake"), load)
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0.02)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    release.set()
    await engine.close()
    assert runner.closed


async def test_closing_the_iterator_cancels() -> None:
    """A caller that goes away frees its blocks within one step, and leaves no entry behind."""
    async with running(FakeRunner(64, 4, step_delay_s=0.002)) as engine:
        async with aclosing(engine.submit(EngineRequest("a", (1, 2, 3), 200))) as events:
            async for _ in events:
                break
        await until(lambda: engine.stats().finished_total == {"cancelled": 1})
        stats = engine.stats()
        assert stats.blocks_in_use == 0
        assert max(stats.cancel_to_free_steps) <= 1
        await until(lambda: not engine._streams)
        assert (await ask(engine, "a"))[1].reason == "length"


async def test_cancelled_task_cancels_its_request() -> None:
    """Cancelling the awaiting task ends the request too, queued or running."""
    async with running(FakeRunner(64, 4, step_delay_s=0.002), max_running=1) as engine:
        tasks = [asyncio.create_task(ask(engine, f"r{n}", max_tokens=200)) for n in range(3)]
        await until(lambda: engine.stats().num_waiting == 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: not engine._streams)
        assert engine.stats().finished_total == {"cancelled": 3}


async def test_cancel_by_id() -> None:
    """cancel() ends a live request and ignores unknown ids."""
    async with running(FakeRunner(64, 4, step_delay_s=0.002)) as engine:
        engine.cancel("nobody")
        task = asyncio.create_task(ask(engine, "a", max_tokens=200))
        await until(lambda: engine.stats().num_running == 1)
        engine.cancel("a")
        assert (await task)[1].reason == "cancelled"


async def test_deadlines_are_kept_by_the_thread() -> None:
    """queue, first_token and total each end with their phase while other work runs."""
    async with running(FakeRunner(64, 4, step_delay_s=0.005), max_running=2, step_tokens=8) as engine:
        now = time.monotonic()
        busy = [asyncio.create_task(ask(engine, "busy", max_tokens=100))]
        slow = ask(engine, "slow", bytes(200), deadlines=Deadlines(first_token=now + 0.05))
        total = ask(engine, "total", max_tokens=100, deadlines=Deadlines(total=now + 0.4))
        finishes = [finish for _, finish in await asyncio.gather(slow, total)]
        assert [(f.reason, f.phase) for f in finishes] == [("timeout", "first_token"), ("timeout", "total")]
        more = asyncio.create_task(ask(engine, "more", max_tokens=100))
        await until(lambda: engine.stats().num_running == 2)
        late = await ask(engine, "late", deadlines=Deadlines(queue=time.monotonic() + 0.02))
        assert (late[1].reason, late[1].phase) == ("timeout", "queue")
        for task in (*busy, more):
            task.cancel()
        await asyncio.gather(*busy, more, return_exceptions=True)


async def test_live_ids_are_unique() -> None:
    """Submitting an id again while it lives is an error and leaves the first alone."""
    async with running(FakeRunner(64, 4, step_delay_s=0.002)) as engine:
        first = asyncio.create_task(ask(engine, "a", max_tokens=20))
        await until(lambda: engine.stats().num_running == 1)
        with pytest.raises(EngineError, match="still live"):
            await ask(engine, "a")
        assert (await first)[1].reason == "length"


async def test_close_ends_everything_and_joins() -> None:
    """Running and waiting requests end with `cancelled`; afterwards nothing is accepted and the thread is gone."""
    runner = FakeRunner(64, 4, step_delay_s=0.002)
    async with running(runner, max_running=1) as engine:
        tasks = [asyncio.create_task(ask(engine, f"r{n}", max_tokens=200)) for n in range(3)]
        await until(lambda: engine.stats().num_waiting == 2)
        await engine.close()
        assert [finish.reason for _, finish in await asyncio.gather(*tasks)] == ["cancelled"] * 3
        assert runner.closed
        assert "tidegate-engine" not in [thread.name for thread in threading.enumerate()]
        with pytest.raises(EngineClosed, match="is closed"):
            await ask(engine, "late")
        assert not engine.stats().ready
        with pytest.raises(EngineError):
            await engine.start()


async def test_close_before_start() -> None:
    """Closing what never started is harmless."""
    engine = EmbeddedEngine(EngineConfig(model="fake"), lambda: (FakeRunner(), FakeRunner().vocabulary.token_bytes))
    await engine.close()
    assert engine.probe((), [1]) is None
    assert engine.flush() == 0


async def test_failing_step_fails_its_requests_and_the_engine_goes_on() -> None:
    """A runner that raises at token 3 fails that request, with the message, and serves the next."""
    runner = FakeRunner(64, 4, raise_at_token=3)
    async with running(runner) as engine:
        tokens, finish = await ask(engine, "a", max_tokens=5)
        assert (len(tokens), finish.reason) == (2, "failed")
        assert "fake runner was told to raise at token 3" in finish.message
        assert (await ask(engine, "b", max_tokens=2))[1].reason == "length"
        assert engine.stats().healthy


async def test_repeated_failures_stop_the_engine() -> None:
    """After five failing steps in a row everybody has `failed`, and the engine says why it is not healthy."""
    async with running(FakeRunner(64, 4, raise_at_token=1), max_running=1) as engine:
        answers = await asyncio.gather(*(ask(engine, f"r{n}") for n in range(8)))
        assert {finish.reason for _, finish in answers} == {"failed"}
        await until(lambda: not engine.stats().healthy)
        assert "5 steps in a row failed" in (engine.stats().detail or "")
        with pytest.raises(EngineClosed, match="5 steps"):
            await ask(engine, "late")


async def test_dying_thread_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even an error in the engine's own code ends every request with `failed` and shows in stats."""
    async with running(FakeRunner(64, 4, step_delay_s=0.002), max_running=1) as engine:
        tasks = [asyncio.create_task(ask(engine, f"r{n}", max_tokens=200)) for n in range(3)]
        await until(lambda: engine.stats().num_waiting == 2)

        def broken(*args: object) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(engine._core, "_schedule", broken)
        finishes = [finish for _, finish in await asyncio.gather(*tasks)]
        assert {(f.reason, f.retryable) for f in finishes} == {("failed", True)}
        assert "a bug" in finishes[0].message
        assert not engine.stats().healthy
        assert not engine._streams


async def test_500_short_and_200_refused_leave_nothing() -> None:
    """No table keeps a finished or refused request; every gauge returns to zero."""
    async with running(FakeRunner(64, 4), max_queue_requests=600) as engine:
        short = [ask(engine, f"s{n}", bytes([n % 256]), 2) for n in range(500)]
        refused = [ask(engine, f"x{n}", b"", 2) for n in range(200)]
        answers = await asyncio.gather(*short, *refused)
        assert [finish.reason for _, finish in answers] == ["length"] * 500 + ["rejected"] * 200
        stats = engine.stats()
        assert (len(engine._streams), len(engine._core._table), len(engine._inbox)) == (0, 0, 0)
        assert (stats.num_running, stats.num_waiting, stats.waiting_tokens, stats.blocks_in_use) == (0, 0, 0, 0)
        assert stats.finished_total == {"length": 500, "rejected": 200}


async def test_one_hand_over_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All events of a step reach the event loop in one call."""
    runner = FakeRunner(64, 4, step_delay_s=0.002)
    async with running(runner) as engine:
        calls = []
        call = engine._call
        monkeypatch.setattr(engine, "_call", lambda function, *args: (calls.append(function), call(function, *args)))
        await asyncio.gather(*(ask(engine, f"r{n}", bytes([n]), 10) for n in range(8)))
        assert len(calls) <= runner.num_steps


async def test_probe_and_flush_from_other_threads() -> None:
    """Probes and flushes run beside the engine without error, and answers stay right."""
    runner = FakeRunner(32, 4)
    async with running(runner, max_running=4) as engine:
        stop, errors, seen = threading.Event(), [], set()
        prompts = [bytes(range(n, n + 18)) for n in range(6)]

        def probe() -> None:
            try:
                while not stop.is_set():
                    seen.update(engine.probe((), prompt) for prompt in prompts)
                    engine.stats()
                    engine.flush(("nobody",))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=probe) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for turn in range(5):
                answers = await asyncio.gather(*(ask(engine, f"{turn}{n}", p, 8) for n, p in enumerate(prompts)))
                assert [tokens for tokens, _ in answers] == [runner.solo(p, 8) for p in prompts]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not errors
        assert seen <= {0, 4, 8, 12, 16}
        idle = engine.stats().blocks_idle
        assert engine.flush() == idle > 0
        assert engine.stats().blocks_free == 32


async def test_deltas_stream_as_they_come() -> None:
    """The first delta is there long before the last token is computed."""
    async with running(FakeRunner(64, 4, step_delay_s=0.01)) as engine:
        events = engine.submit(EngineRequest("a", (1, 2), 10))
        arrivals = [time.monotonic() async for event in events if isinstance(event, Delta)]
        assert arrivals[-1] - arrivals[0] > 0.05

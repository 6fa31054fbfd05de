"""The embedded engine: one thread that steps, and an asyncio front that callers await."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event as ThreadEvent
from threading import Thread

from engine.batch import Runner
from engine.config import EngineConfig, ModelInfo
from engine.core import EngineCore
from engine.detokenize import TokenBytes
from engine.errors import EngineClosed, EngineError
from engine.request import EngineRequest, EngineStats, Event, Finish, FinishReason, Usage
from engine.table import Emitted

Load = Callable[[], tuple[Runner, TokenBytes]]
"""Loads a model: its runner, and the bytes of each token id."""
Command = Callable[[EngineCore], list[Emitted]]
NOT_STARTED = EngineStats(
    ready=False,
    healthy=True,
    num_running=0,
    num_waiting=0,
    waiting_tokens=0,
    blocks_total=0,
    blocks_in_use=0,
    blocks_idle=0,
    blocks_free=0,
)


@dataclass(slots=True)
class _Stream:
    """A submitted request on the event loop's side, from `submit` to its finish."""

    request: EngineRequest
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)


class EmbeddedEngine:
    """An `engine.request.Engine` in this process.

    The engine thread alone touches the core. Requests and cancels go to it through an inbox; a step's events come
    back in one `call_soon_threadsafe`.

    Args:
        config: bounds; see `EngineConfig`.
        load: called in the engine thread by `start`, so that loading does not block the event loop.
        clock: monotonic seconds.
    """

    def __init__(self, config: EngineConfig, load: Load, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._load = load
        self._clock = clock
        self._inbox: deque[Command] = deque()
        self._wake = ThreadEvent()
        self._streams: dict[str, _Stream] = {}
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._core: EngineCore | None = None
        self._model: ModelInfo | None = None
        self._closed = False
        self._death: str | None = None

    @property
    def model(self) -> ModelInfo:
        """The loaded model.

        Raises:
            EngineClosed: before `start`.
        """
        if self._model is None:
            raise EngineClosed("the engine has not been started; await start() first")
        return self._model

    async def start(self) -> None:
        """Load and warm up in the engine thread; returns when requests can be served.

        Raises:
            ModelLoadError, OutOfMemoryError, or whatever `load` raises.
            EngineError: it was started before.
        """
        if self._thread is not None or self._closed:
            raise EngineError("an engine starts once; make a new one")
        self._loop = asyncio.get_running_loop()
        started: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._thread = Thread(target=self._main, args=(started,), name="tidegate-engine", daemon=True)
        self._thread.start()
        try:
            error = await started
        except asyncio.CancelledError:
            self._closed = True
            self._wake.set()
            raise
        if error is not None:
            raise error

    async def submit(self, request: EngineRequest) -> AsyncIterator[Event]:
        """Yield `Delta`s, then one `Finish`. Closing the iterator early cancels the request.

        Raises:
            EngineClosed: the engine is not running.
            EngineError: a request with this id is still live.
        """
        stream = self._open(request)
        try:
            while True:
                event = await stream.events.get()
                yield event
                if isinstance(event, Finish):
                    return
        finally:
            if self._streams.get(request.request_id) is stream:
                self.cancel(request.request_id)

    def cancel(self, request_id: str) -> None:
        """Ask for the request to end with `cancelled`; unknown ids are ignored."""
        if request_id in self._streams and self._core is not None:
            self._send(partial(EngineCore.cancel, request_id=request_id, asked_at_step=self._core.counters.num_steps))

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        stats = NOT_STARTED if self._core is None else self._core.stats()
        if self._death is not None:
            return replace(stats, ready=False, healthy=False, detail=self._death)
        return replace(stats, ready=False) if self._closed else stats

    def probe(self, namespace: tuple[str, ...], token_ids: Sequence[int]) -> int | None:
        """Tokens of this prefix that are in KV right now; from any thread, advisory. None before `start`."""
        return None if self._core is None else self._core.probe(namespace, token_ids)

    def flush(self, namespace: tuple[str, ...] | None = None) -> int:
        """Free idle cached blocks, all or those of a namespace; returns how many."""
        return 0 if self._core is None else self._core.flush(namespace)

    async def close(self) -> None:
        """End every request with `cancelled`, stop the thread after its present step, and give memory back."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._end_streams()

    def _open(self, request: EngineRequest) -> _Stream:
        death = self._death or (self._core.broken if self._core else None)
        if self._closed or death is not None or self._core is None:
            raise EngineClosed(death or ("the engine is closed" if self._closed else "the engine is not started"))
        if request.request_id in self._streams:
            raise EngineError(f"request id {request.request_id!r} is still live; give every request its own id")
        stream = self._streams[request.request_id] = _Stream(request)
        self._send(partial(EngineCore.add, request=request, arrived=self._clock()))
        return stream

    def _send(self, command: Command) -> None:
        self._inbox.append(command)
        self._wake.set()

    def _main(self, started: "asyncio.Future[BaseException | None]") -> None:
        """The engine thread: load, serve, and whatever happens tell everyone who waits."""
        runner: Runner | None = None
        try:
            runner, token_bytes = self._load()
            runner.warm_up()
            self._core = EngineCore(self._config, runner, token_bytes, clock=self._clock)
            self._model = runner.model
            self._call(_resolve, started, None)
            self._death = self._serve(self._core)
        except BaseException as error:
            self._death = f"the engine stopped: {type(error).__name__}: {error}"
            self._call(_resolve, started, error)
        finally:
            self._call(self._end_streams)
            if runner is not None:
                self._give_back(runner)

    def _serve(self, core: EngineCore) -> str | None:
        """Step while there is work; returns why it had to stop, None after `close`."""
        while not self._closed and not core.broken:
            if not len(core) and not self._inbox:
                self._wake.wait()
            self._wake.clear()
            events = self._read_inbox(core)
            if not self._closed:
                events += core.step()
            if events:
                self._call(self._deliver, events)
        self._call(self._deliver, core.end_all("failed" if core.broken else "cancelled", core.broken))
        return core.broken

    def _give_back(self, runner: Runner) -> None:
        try:
            runner.close()
        except Exception as error:
            self._death = self._death or f"the runner did not close: {type(error).__name__}: {error}"

    def _read_inbox(self, core: EngineCore) -> list[Emitted]:
        events: list[Emitted] = []
        while self._inbox:
            events += self._inbox.popleft()(core)
        return events

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Run on the event loop; if that is gone, nobody waits any more, and the engine stops."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self._closed = True

    def _deliver(self, events: list[Emitted]) -> None:
        for request_id, event in events:
            self._streams[request_id].events.put_nowait(event)
            if isinstance(event, Finish):
                del self._streams[request_id]

    def _end_streams(self) -> None:
        """Finish what the thread can no longer finish, so that nobody waits for ever."""
        reason: FinishReason = "failed" if self._death else "cancelled"
        for stream in self._streams.values():
            usage = Usage(prompt_tokens=len(stream.request.prompt_token_ids))
            stream.events.put_nowait(Finish(reason, usage, message=self._death, retryable=reason == "failed"))
        self._streams.clear()


def _resolve(started: "asyncio.Future[BaseException | None]", error: BaseException | None) -> None:
    if not started.done():
        started.set_result(error)

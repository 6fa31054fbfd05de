"""What a running gateway is made of. `gateway.wiring` builds it from settings; tests build it from fakes."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.request import EngineStats
from gateway.admission import Admission
from gateway.auth import Caller
from gateway.errors import ModelNotFound
from gateway.metrics import Metrics
from gateway.models import LoadedModel, ModelSlot
from gateway.planner import Planner
from policies.revisions import ActivePolicies


@dataclass(slots=True)
class Services:
    """The parts, and how to start and stop them.

    Attributes:
        models: by the name that clients use; the first one answers where a request names none.
        on_fatal: called when a model cannot be loaded: the process should end.
        clock: seconds since the epoch, for key expiry and time stamps.
    """

    models: Mapping[str, ModelSlot]
    policies: ActivePolicies
    admission: Admission
    planner: Planner
    metrics: Metrics
    on_fatal: Callable[[Exception], None] = lambda error: None
    clock: Callable[[], float] = time.time
    _background: set[asyncio.Task[None]] = field(default_factory=set)

    def choose(self, name: str | None, caller: Caller) -> tuple[str, LoadedModel]:
        """The model that a request names, or the first that its key may use.

        Raises:
            ModelNotFound: there is none of this name.
            NotAllowed: the key may not use it.
            NotReady: it is loading, or its engine is not healthy.
        """
        if name is None:
            name = next((known for known in self.models if caller.may_use(known)), next(iter(self.models)))
        if name not in self.models:
            known = ", ".join(self.models)
            raise ModelNotFound(f"there is no model {name[:100]!r} here; this gateway serves {known}", param="model")
        caller.check_model(name)
        return name, self.models[name].ready()

    def engine_stats(self) -> dict[str, EngineStats]:
        """What the engines say of themselves, by model; models that are not loaded are left out."""
        return {name: slot.loaded.engine.stats() for name, slot in self.models.items() if slot.loaded is not None}

    async def start(self) -> None:
        """Begin to load and return at once, so that the process can say that it is not ready yet."""
        for slot in self.models.values():
            self._spawn(self._load(slot))
        self._spawn(self.metrics.watch_event_loop())

    async def close(self) -> None:
        """Stop everything, in the order in which requests use it."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for slot in self.models.values():
            await slot.close()
        self.planner.close()
        await self.admission.close()

    async def _load(self, slot: ModelSlot) -> None:
        try:
            await slot.start()
        except Exception as error:
            self.on_fatal(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

"""The models that this gateway serves, from the moment they begin to load."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from budget.ports import Ports
from engine.config import ModelInfo
from engine.request import Engine
from gateway.errors import NotReady

LOADING_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """One model that can be asked. The probe of `ports` is unbound: `bound_ports` ties it to a cache namespace."""

    engine: Engine
    info: ModelInfo
    ports: Ports
    kind: Literal["embedded", "remote"] = "embedded"

    def bound_ports(self, namespace: tuple[str, ...]) -> Ports:
        """The ports of one request; their probe sees this namespace only."""

        def probe(token_ids: Sequence[int]) -> int | None:
            return self.engine.probe(namespace, token_ids)

        return replace(self.ports, probe=probe)


class ModelSlot:
    """A model by the name that clients use: loading, serving, or failed.

    Args:
        load: builds and starts the engine; it may take minutes and must not block the event loop.
    """

    def __init__(self, name: str, load: Callable[[], Awaitable[LoadedModel]]) -> None:
        self.name = name
        self.loaded: LoadedModel | None = None
        self.failure: Exception | None = None
        self._load = load

    async def start(self) -> None:
        """Load the model; a failure is kept in `failure` and raised."""
        try:
            self.loaded = await self._load()
        except Exception as error:
            self.failure = error
            raise

    async def close(self) -> None:
        """Stop the engine, if there is one."""
        if self.loaded is not None:
            await self.loaded.engine.close()

    def problem(self) -> str | None:
        """Why it cannot take a request now; None if it can."""
        if self.failure is not None:
            return "the model could not be loaded"
        if self.loaded is None:
            return "the model is still loading"
        stats = self.loaded.engine.stats()
        if not stats.healthy:
            return f"the engine is not healthy: {stats.detail or 'no detail'}"
        return None if stats.ready else "the engine is warming up"

    def ready(self) -> LoadedModel:
        """The model, if it can take a request now.

        Raises:
            NotReady: it cannot; the message says why.
        """
        problem = self.problem()
        if self.loaded is None or problem is not None:
            raise NotReady(f"{self.name}: {problem}; /readyz tells when it is", retry_after_s=LOADING_RETRY_S)
        return self.loaded

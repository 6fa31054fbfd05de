"""`/healthz`, `/readyz` and `/metrics`: for load balancers and Prometheus, without a key."""

import msgspec
from litestar import Response, route
from litestar.enums import HttpMethod
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.error_table import error_headers, kind_of
from gateway.errors import NotReady
from gateway.ids import new_ulid
from gateway.models import LOADING_RETRY_S, ModelSlot
from gateway.routes.access import AnyRequest, services_of
from gateway.schemas import ErrorBody

READ = [HttpMethod.GET, HttpMethod.HEAD]


class ModelState(msgspec.Struct, kw_only=True):
    """One model's part of `/readyz`."""

    ready: bool
    problem: str | None = None
    running: int = 0
    waiting: int = 0
    kv_blocks_in_use: int = 0
    kv_blocks_total: int = 0


class Readiness(msgspec.Struct, kw_only=True):
    """`/readyz`. Trouble with policy or store shows here and leaves it green: one typo must not drain a fleet."""

    status: str
    models: dict[str, ModelState]
    policy_revision: str
    policy_reload_error: str | None
    store: str
    store_error: str | None
    error: ErrorBody | None = None


@route("/healthz", http_method=READ)
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@route("/readyz", http_method=READ)
async def readyz(request: AnyRequest) -> Response[Readiness]:
    """200 once every model can take requests; before that 503 `not_ready`, with the reasons."""
    services = services_of(request)
    reload_error, loss = services.policies.last_error, services.admission.loss
    readiness = Readiness(
        status="ready",
        models={name: _state(slot) for name, slot in services.models.items()},
        policy_revision=services.policies.current().revision,
        policy_reload_error=str(reload_error) if reload_error else None,
        store="lost" if loss else "ok",
        store_error=loss,
    )
    problems = [f"{name}: {state.problem}" for name, state in readiness.models.items() if state.problem]
    return _not_ready(readiness, problems) if problems else Response(readiness)


@route("/metrics", http_method=READ)
async def metrics(request: AnyRequest) -> Response[bytes]:
    """The Prometheus page."""
    services = services_of(request)
    services.metrics.set_policy(
        services.policies.current().revision, reload_failed=services.policies.last_error is not None
    )
    return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _state(slot: ModelSlot) -> ModelState:
    problem = slot.problem()
    if slot.loaded is None:
        return ModelState(ready=False, problem=problem)
    stats = slot.loaded.engine.stats()
    return ModelState(
        ready=problem is None,
        problem=problem,
        running=stats.num_running,
        waiting=stats.num_waiting,
        kv_blocks_in_use=stats.blocks_in_use,
        kv_blocks_total=stats.blocks_total,
    )


def _not_ready(readiness: Readiness, problems: list[str]) -> Response[Readiness]:
    error = NotReady("; ".join(problems), retry_after_s=LOADING_RETRY_S)
    kind, request_id = kind_of(error), f"req_{new_ulid()}"
    readiness.status = kind.code
    readiness.error = ErrorBody(message=str(error), type=kind.type, code=kind.code, request_id=request_id)
    return Response(readiness, status_code=kind.status, headers=error_headers(error) | {"x-request-id": request_id})

"""The HTTP application: routes, the error shape of everything that is not a chat request, start and stop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from litestar import Litestar, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException

from gateway.engine_metrics import EngineCollector
from gateway.error_table import error_body, error_headers, kind_of
from gateway.errors import InvalidRequest, MethodNotAllowed, RequestTooLarge, RouteNotFound
from gateway.ids import new_ulid
from gateway.logs import log
from gateway.routes import admin, chat, documents, health, models
from gateway.routes.access import STATE_KEY, AnyRequest
from gateway.services import Services

MAX_ADMIN_BODY_BYTES = 1024 * 1024
"""For bodies that Litestar reads; chat bodies have the policy's bound."""


def create_app(services: Services) -> Litestar:
    """The application over `services`, which it starts and stops. It answers at once, while models still load."""

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncIterator[None]:
        await services.start()
        try:
            yield
        finally:
            await services.close()

    services.metrics.registry.register(EngineCollector(services.engine_stats))
    return Litestar(
        route_handlers=[
            chat.chat_completions,
            chat.budget_plan,
            models.list_models,
            models.retrieve_model,
            admin.flush_cache,
            documents.budget_report_schema,
            documents.policy_schema,
            health.healthz,
            health.readyz,
            health.metrics,
        ],
        state=State({STATE_KEY: services}),
        lifespan=[lifespan],
        exception_handlers={Exception: _answer_error},
        openapi_config=documents.openapi_config(version("tidegate")),
        request_max_body_size=MAX_ADMIN_BODY_BYTES,
        logging_config=None,
        debug=False,
    )


def _answer_error(request: AnyRequest, error: Exception) -> Response[bytes]:
    """An error of any route but the chat routes, which answer for themselves."""
    error = _ours(request, error) if isinstance(error, HTTPException) else error
    kind, request_id = kind_of(error), f"req_{new_ulid()}"
    if kind.outcome == "failed":
        log.error("error", request_id=request_id, path=request.url.path, exc_info=error)
    headers = error_headers(error) | {"x-request-id": request_id, "x-tidegate-request-id": request_id}
    body = error_body(error, request_id)
    return Response(body, status_code=kind.status, headers=headers, media_type="application/json")


def _ours(request: AnyRequest, error: HTTPException) -> Exception:
    """Litestar's error as one of the table."""
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            return RouteNotFound(f"there is nothing at {where}; /schema/openapi.json lists the routes")
        case 405:
            return MethodNotAllowed(f"{where} is not served; /schema/openapi.json lists the methods of each path")
        case 413:
            return RequestTooLarge(f"the body of {where} has over {MAX_ADMIN_BODY_BYTES:,} bytes")
        case status if 400 <= status < 500:
            return InvalidRequest(error.detail)
    return error

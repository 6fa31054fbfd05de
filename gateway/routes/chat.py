"""`POST /v1/chat/completions` and `POST /v1/budget/plan`."""

from litestar import post
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ASGIApp, Receive, Scope, Send

from gateway.client import Client
from gateway.routes.access import AnyRequest, services_of
from gateway.schemas import ChatCompletion, ErrorResponse, PlanResponse
from gateway.serve import serve
from gateway.services import Services

ERRORS = {
    400: "Wrong body, or the mandatory parts do not fit",
    401: "No such key",
    403: "The key may not use this model",
    404: "No such model",
    408: "Waited too long in the queue",
    413: "Too many bytes, messages or documents",
    429: "A limit of the policy",
    503: "Overloaded, not ready, or the ledger is lost",
    504: "No token, or no complete answer, in time",
}


class Serving:
    """An ASGI response that is the whole exchange: it reads the body, sees the client leave and writes by itself."""

    def __init__(self, services: Services, *, run: bool) -> None:
        self._services = services
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve this one request."""
        with self._services.metrics.in_flight.track_inprogress():
            await serve(self._services, Client(scope, receive, send), run=self._run)


def _responses(success: type) -> dict[int, ResponseSpec]:
    errors = {
        status: ResponseSpec(ErrorResponse, description=text, generate_examples=False)
        for status, text in ERRORS.items()
    }
    return {200: ResponseSpec(success, description="Success", generate_examples=False), **errors}


@post("/v1/chat/completions", status_code=200, responses=_responses(ChatCompletion), operation_id="chat_completions")
async def chat_completions(request: AnyRequest) -> ASGIApp:
    """An answer and its budget report, as one object or as server-sent events (`stream`)."""
    return Serving(services_of(request), run=True)


@post("/v1/budget/plan", status_code=200, responses=_responses(PlanResponse), operation_id="budget_plan")
async def budget_plan(request: AnyRequest) -> ASGIApp:
    """The same body, planned and not run: the messages that would be sent, and what was decided about each part."""
    return Serving(services_of(request), run=False)

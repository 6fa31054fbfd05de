"""The one table from exception to HTTP status, and the error as it is sent."""

import math
from typing import NamedTuple

from msgspec import UNSET, UnsetType
from msgspec.json import Encoder

from budget.errors import ContextLengthExceeded, InvalidConversation, PlanError
from engine.errors import EngineClosed, EngineError, RequestRejected
from gateway.errors import (
    ClientGone,
    ClientStalled,
    ConcurrencyExceeded,
    EngineFailed,
    FirstTokenTimeout,
    InvalidApiKey,
    InvalidRequest,
    LimitRefused,
    MethodNotAllowed,
    ModelNotFound,
    NotAllowed,
    NotReady,
    Overloaded,
    QueueTimeout,
    QuotaExceeded,
    RateLimited,
    RequestTooLarge,
    RouteNotFound,
    Stopping,
    StoreUnavailable,
    TotalTimeout,
)
from gateway.schemas import BudgetReport, ErrorBody, ErrorResponse, Outcome


class ErrorKind(NamedTuple):
    """How one kind of error is sent and counted; `retry`: whether asking again, unchanged, can help."""

    status: int
    type: str
    code: str
    outcome: Outcome
    retry: bool


_INVALID = ErrorKind(400, "invalid_request_error", "invalid_request", "rejected", False)
_TOO_LONG = ErrorKind(400, "invalid_request_error", "context_length_exceeded", "rejected", False)
_NOT_READY = ErrorKind(503, "server_error", "not_ready", "rejected", True)
_FAILED = ErrorKind(500, "server_error", "server_error", "failed", False)

TABLE: dict[type[Exception], ErrorKind] = {
    InvalidRequest: _INVALID,
    InvalidConversation: _INVALID,
    ContextLengthExceeded: _TOO_LONG,
    InvalidApiKey: ErrorKind(401, "authentication_error", "invalid_api_key", "rejected", False),
    NotAllowed: ErrorKind(403, "permission_error", "not_allowed", "rejected", False),
    ModelNotFound: ErrorKind(404, "not_found_error", "model_not_found", "rejected", False),
    RouteNotFound: ErrorKind(404, "not_found_error", "not_found", "rejected", False),
    MethodNotAllowed: ErrorKind(405, "invalid_request_error", "method_not_allowed", "rejected", False),
    QueueTimeout: ErrorKind(408, "server_error", "queue_timeout", "queue_timeout", True),
    RequestTooLarge: ErrorKind(413, "invalid_request_error", "request_too_large", "rejected", False),
    RateLimited: ErrorKind(429, "rate_limit_error", "rate_limited", "rejected", True),
    QuotaExceeded: ErrorKind(429, "insufficient_quota", "quota_exceeded", "rejected", True),
    ConcurrencyExceeded: ErrorKind(429, "rate_limit_error", "concurrency_exceeded", "rejected", True),
    ClientGone: ErrorKind(499, "server_error", "cancelled", "cancelled", False),
    ClientStalled: ErrorKind(499, "server_error", "client_stalled", "client_stalled", False),
    RequestRejected: ErrorKind(503, "server_error", "overloaded", "rejected", True),
    Overloaded: ErrorKind(503, "server_error", "overloaded", "rejected", True),
    EngineClosed: _NOT_READY,
    NotReady: _NOT_READY,
    Stopping: ErrorKind(503, "server_error", "not_ready", "cancelled", True),
    StoreUnavailable: ErrorKind(503, "server_error", "store_unavailable", "rejected", True),
    FirstTokenTimeout: ErrorKind(504, "server_error", "first_token_timeout", "first_token_timeout", True),
    TotalTimeout: ErrorKind(504, "server_error", "total_timeout", "total_timeout", False),
    EngineFailed: _FAILED,
    EngineError: _FAILED,
    PlanError: _FAILED,
    Exception: _FAILED,
}
# An `insufficient_quota` renews at midnight: clients that sleep at most a minute and try again only add load.
LONGEST_USEFUL_WAIT_S = 60.0

_encoder = Encoder()


def kind_of(error: Exception) -> ErrorKind:
    """The table's row for this error: the nearest class that has one."""
    if isinstance(error, RequestRejected) and error.retry_after_s is None:
        return _TOO_LONG  # it can never run here, however often it is asked
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def message_of(error: Exception) -> str:
    """What the client reads. An unexpected error says nothing of our insides; the log has the rest."""
    kind = kind_of(error)
    if kind is _FAILED and not isinstance(error, EngineFailed):
        return "The gateway failed while serving this request; its log names the request id."
    return str(error)


def error_headers(error: Exception) -> dict[str, str]:
    """`retry-after` where a retry may succeed, `x-should-retry: false` where none can, and what the error brings."""
    kind = kind_of(error)
    headers = dict(getattr(error, "headers", {}))
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(wait_s)))
    never = isinstance(error, LimitRefused) and wait_s is None
    too_far = wait_s is not None and wait_s > LONGEST_USEFUL_WAIT_S
    retried = kind.status in (408, 409, 429) or kind.status >= 500  # by OpenAI's clients, of their own accord
    if retried and (not kind.retry or never or too_far):
        headers["x-should-retry"] = "false"
    return headers


def error_body(error: Exception, request_id: str, report: BudgetReport | UnsetType = UNSET) -> bytes:
    """The JSON of an error, OpenAI's shape, with the report beside it where there is one."""
    kind = kind_of(error)
    body = ErrorBody(
        message=message_of(error),
        type=kind.type,
        code=kind.code,
        param=getattr(error, "param", None),
        request_id=request_id,
    )
    return _encoder.encode(ErrorResponse(error=body, budget_report=report))

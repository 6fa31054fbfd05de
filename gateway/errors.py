"""Every way in which a request can end badly. `gateway.error_table` says how each is sent.

GatewayError
├── InvalidRequest        the body, a header or a combination of fields
├── RequestTooLarge       bytes, messages or documents over the policy's limit
├── InvalidApiKey         no key, an unknown key, an expired key
├── NotAllowed            the key may not do this
├── ModelNotFound         no model of this name is served
├── RouteNotFound         no such path or resource
├── MethodNotAllowed      the path exists, for another method
├── LimitRefused          a limit of the policy
│   ├── RateLimited           requests or tokens a minute
│   ├── QuotaExceeded         tokens a day, cost a month
│   └── ConcurrencyExceeded   requests at once
├── Overloaded            the engine's queue is full
├── NotReady              the model is loading, or its engine is not healthy
├── Stopping              the process stops and ends what still runs
├── StoreUnavailable      the ledger is lost and the policy says `closed`
├── QueueTimeout          the deadline passed before prefill began
├── FirstTokenTimeout     before the first token
├── TotalTimeout          before the last token; planning that took too long counts here
├── EngineFailed          the engine gave up on this request
├── ClientGone            the client hung up (logged only)
└── ClientStalled         the client stopped reading (logged only)
"""

from collections.abc import Mapping

RESTART_S = 5.0


class GatewayError(Exception):
    """Base of the gateway's own errors.

    Attributes:
        param: the request field that is meant, as a path such as `messages[0].role`.
        retry_after_s: seconds after which a retry may succeed; None: no such promise.
        headers: more response headers, such as `x-ratelimit-*`.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s
        self.headers = dict(headers or {})


class InvalidRequest(GatewayError):
    """The request is wrong as it stands; `param` names the field."""


class RequestTooLarge(GatewayError):
    """More bytes, messages or documents than the policy lets one request have."""


class InvalidApiKey(GatewayError):
    """The key is missing, unknown or expired."""

    def __init__(self, message: str) -> None:
        super().__init__(message, headers={"www-authenticate": "Bearer"})


class NotAllowed(GatewayError):
    """The key is good, but not for this."""


class ModelNotFound(GatewayError):
    """No model of this name is served here."""


class RouteNotFound(GatewayError):
    """No such path."""


class MethodNotAllowed(GatewayError):
    """The path is served for other methods."""


class LimitRefused(GatewayError):
    """A limit of the policy. No `retry_after_s`: the request can never fit."""


class RateLimited(LimitRefused):
    """Requests or tokens a minute."""


class QuotaExceeded(LimitRefused):
    """Tokens a day or cost a month."""


class ConcurrencyExceeded(LimitRefused):
    """Requests at once."""


class Overloaded(GatewayError):
    """The engine's queue is full, in tokens or requests."""


class NotReady(GatewayError):
    """The model is not loaded yet, or its engine is not healthy."""


class StoreUnavailable(GatewayError):
    """The ledger cannot be reached and the policy refuses to go on without it."""


class QueueTimeout(GatewayError):
    """The queue deadline passed before prefill began."""


class FirstTokenTimeout(GatewayError):
    """The first-token deadline passed."""


class TotalTimeout(GatewayError):
    """The total deadline passed, or planning took longer than it may."""


class EngineFailed(GatewayError):
    """The engine could not go on with this request."""


class Stopping(GatewayError):
    """The process stops, and ends what still runs."""

    def __init__(self) -> None:
        super().__init__("the gateway is stopping", retry_after_s=RESTART_S)


class ClientGone(GatewayError):
    """The client closed the connection."""


class ClientStalled(GatewayError):
    """The client kept the connection and stopped reading or sending."""

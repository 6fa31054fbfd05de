"""The error table: complete, in OpenAI's shape, honest about retries, silent about our insides."""

import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import budget.errors
import engine.errors
import gateway.errors
from budget.plan import plan
from engine.errors import RequestRejected
from gateway.error_table import TABLE, error_headers, kind_of
from gateway.errors import GatewayError, LimitRefused, QuotaExceeded, RateLimited
from gateway.schemas import Outcome

TYPES = {
    "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "rate_limit_error",
    "insufficient_quota", "server_error",
}  # fmt: skip
ABSTRACT = {GatewayError, LimitRefused}


def own_errors() -> list[type[Exception]]:
    """Every exception class that gateway, planner and engine define."""
    modules = (gateway.errors, budget.errors, engine.errors)
    found = [cls for module in modules for _, cls in inspect.getmembers(module, inspect.isclass)]
    return [cls for cls in dict.fromkeys(found) if issubclass(cls, Exception) and cls not in ABSTRACT]


@pytest.mark.parametrize("cls", own_errors(), ids=lambda cls: cls.__name__)
def test_every_error_has_a_row(cls: type[Exception]) -> None:
    """Each class, or its own base, has a row; only engine loading errors fall to their base's."""
    assert cls in TABLE or any(base in TABLE for base in cls.__mro__[1:-3]) or cls.__module__ == "engine.errors"


def test_rows_are_sound() -> None:
    """Types are OpenAI's, outcomes the report's, and each code has one status."""
    outcomes = Outcome.__args__  # type: ignore[attr-defined]
    assert {kind.type for kind in TABLE.values()} == TYPES
    assert all(kind.outcome in outcomes for kind in TABLE.values())
    statuses: dict[str, set[int]] = {}
    for kind in TABLE.values():
        statuses.setdefault(kind.code, set()).add(kind.status)
    assert all(len(found) == 1 for found in statuses.values())


@pytest.mark.parametrize(
    ("error", "retry_after", "should_retry"),
    [
        (RateLimited("", retry_after_s=3.2), "4", None),
        (RateLimited("", retry_after_s=0.001), "1", None),
        (RateLimited(""), None, "false"),
        (QuotaExceeded("", retry_after_s=7200.0), "7200", "false"),
        (RequestRejected("", 2.0), "2", None),
        (gateway.errors.TotalTimeout(""), None, "false"),
        (gateway.errors.QueueTimeout(""), None, None),
        (gateway.errors.InvalidRequest(""), None, None),
        (ValueError("secret"), None, "false"),
    ],
)
def test_retry_headers(error: Exception, retry_after: str | None, should_retry: str | None) -> None:
    """`Retry-After` in whole seconds where a retry may succeed, `x-should-retry: false` where none can."""
    headers = error_headers(error)
    assert (headers.get("retry-after"), headers.get("x-should-retry")) == (retry_after, should_retry)


def test_rejected_for_ever_is_a_400() -> None:
    """What the engine can never run is the client's to change; what it cannot run now is a 503."""
    assert kind_of(RequestRejected("too big")).code == "context_length_exceeded"
    assert kind_of(RequestRejected("busy", 1.0)).code == "overloaded"


def test_unexpected_error(start: Any, ask: Callable[..., Any], logs: Callable[[], Any]) -> None:
    """A bug is a 500 with a request id; the log has one line with the trace, no text, no key; the next one works."""
    calls: list[int] = []

    def broken(request: Any, ports: Any) -> Any:
        calls.append(1)
        raise ZeroDivisionError(request.messages[0].content)

    with start(plan=broken) as gateway:
        response = gateway.post(ask("my secret text"))
        assert response.status_code == 500
        assert "secret" not in response.text
        assert "Zero" not in response.text
    (line,) = [entry for entry in logs() if entry["event"] == "request"]
    assert line["request_id"] == response.json()["error"]["request_id"]
    assert line["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert "locals" not in str(line["exception"])
    assert "tg-dev-key" not in str(logs())


@pytest.mark.parametrize("stream", [False, True])
def test_report_that_cannot_be_made(start: Any, ask: Callable[..., Any], stream: bool) -> None:
    """Even where the report itself breaks the client is answered, and nothing stays open."""

    def odd(request: Any, ports: Any) -> Any:
        return replace(plan(request, ports), timings_ms={"trim": "soon"})

    with start(plan=odd) as gateway:
        response = gateway.post(ask(stream=stream))
        assert response.status_code == (200 if stream else 500)
        assert '"code":"server_error"' in response.text.splitlines()[-2 if stream else -1]
        assert gateway.metric("tidegate_requests_in_flight") == 0
        assert gateway.metric('tidegate_requests_total{model="chat",outcome="failed"') == 1
        assert gateway.metric("tidegate_engine_kv_blocks_in_use") == 0


def test_unknown_paths_and_methods(gateway: Any) -> None:
    """What Litestar refuses by itself has our shape too."""
    with gateway.http() as client:
        for method, path, status, code in (
            ("GET", "/nothing/here", 404, "not_found"),
            ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
            ("POST", "/v1/models", 405, "method_not_allowed"),
            ("GET", "/v1/models/gpt-x", 404, "model_not_found"),
        ):
            response = client.request(method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
            assert response.json()["error"]["request_id"] == response.headers["x-request-id"]


def test_keys(gateway: Any, ask: Callable[..., Any]) -> None:
    """No key, another scheme, an unknown and an expired key are a 401 that says which."""
    for header in ({}, {"authorization": "Basic abc"}, {"authorization": "Bearer"}, {"authorization": "Bearer nope"}):
        response = gateway.client.post("/v1/chat/completions", json=ask(), headers=header)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert "2020-01-31" in gateway.post(ask(), key="expired").json()["error"]["message"]
    assert (
        gateway.client.post(
            "/v1/chat/completions", json=ask(), headers={"authorization": "bearer  tg-dev-key"}
        ).status_code
        == 200
    )


def test_expiry_is_the_end_of_the_day(start: Any, ask: Callable[..., Any]) -> None:
    """A key works on its last day, to midnight UTC, and not after."""
    now = [1580515199.0]  # 2020-01-31T23:59:59Z
    with start(clock=lambda: now[0]) as gateway:
        assert gateway.post(ask(), key="expired").status_code == 200
        now[0] += 1
        assert gateway.post(ask(), key="expired").status_code == 401


def test_not_ready(start: Any, ask: Callable[..., Any]) -> None:
    """While the model loads: alive, not ready with the reason, and a 503 with Retry-After for requests."""
    gate = threading.Event()
    with start(load_gate=gate, wait=False) as gateway:
        assert gateway.get("/healthz").status_code == 200
        ready = gateway.get("/readyz")
        assert (ready.status_code, ready.json()["error"]["code"]) == (503, "not_ready")
        assert "loading" in ready.json()["models"]["chat"]["problem"]
        response = gateway.post(ask())
        assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
        assert int(response.headers["retry-after"]) >= 1
        gate.set()
        gateway.wait_until(lambda: gateway.get("/readyz").status_code == 200, "ready")
        assert gateway.post(ask()).status_code == 200


def test_model_that_cannot_load(start: Any, ask: Callable[..., Any]) -> None:
    """A failed load is told to whoever runs the process, and `/readyz` says so meanwhile."""
    failures: list[Exception] = []
    with start(wait=False, fail_load=OSError("no such file"), on_fatal=failures.append) as gateway:
        gateway.wait_until(lambda: bool(failures), "told")
        assert "could not be loaded" in gateway.get("/readyz").text
        assert gateway.post(ask()).status_code == 503


def test_unhealthy_engine(start: Any, ask: Callable[..., Any]) -> None:
    """An engine whose steps keep failing turns `/readyz` red and requests into 503."""
    with start(raise_at_token=1) as gateway:
        statuses = [gateway.post(ask()).status_code for _ in range(8)]
        assert statuses[0] == 500
        assert statuses[-1] == 503
        ready = gateway.get("/readyz")
        assert ready.status_code == 503
        assert "not healthy" in ready.json()["models"]["chat"]["problem"]


def test_overloaded(start: Any, ask: Callable[..., Any]) -> None:
    """A full queue is a 503 `overloaded` with Retry-After."""
    with start(config={"max_running": 1, "max_queue_requests": 1}, step_delay_s=0.01) as gateway:
        threads = [threading.Thread(target=gateway.post, args=(ask(f"n {n}", max_tokens=60),)) for n in range(2)]
        for n, thread in enumerate(threads):
            thread.start()
            gateway.wait_until(lambda n=n: gateway.metric("tidegate_requests_in_flight") == n + 1, "there")
        gateway.wait_until(lambda: gateway.metric("tidegate_engine_waiting_requests") == 1, "one waits")
        response = gateway.post(ask("one too many"))
        assert (response.status_code, response.json()["error"]["code"]) == (503, "overloaded")
        assert "retry-after" in response.headers
        assert response.json()["budget_report"]["outcome"] == "rejected"
        for thread in threads:
            thread.join()


def test_can_never_run(start: Any, ask: Callable[..., Any]) -> None:
    """A request that needs more KV blocks than there are is a 400 with the numbers, not a retry loop."""
    with start(num_blocks=8) as gateway:
        response = gateway.post(ask("x" * 500))
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "retry-after" not in response.headers
        assert "8" in response.json()["error"]["message"]

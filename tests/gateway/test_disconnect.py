"""Clients that hang up or stop reading, at every stage: their KV blocks come free, and the log has one calm line."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

LONG = {"max_tokens": 2000, "ignore_eos": True}
SLOW = {"step_delay_s": 0.005}


def send_raw(gateway: Any, body: dict[str, Any], receive_buffer: int | None = None) -> socket.socket:
    """A request on a bare socket, so that the test decides when the connection ends."""
    host, port = gateway.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tg-dev-key\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def reset(connection: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def blocks_in_use(gateway: Any) -> float:
    """The KV-in-use gauge, as an operator sees it."""
    return float(gateway.metric("tidegate_engine_kv_blocks_in_use"))


def ended(gateway: Any, outcome: str) -> float:
    """How many requests ended in this way."""
    return float(gateway.metric(f'tidegate_requests_total{{model="chat",outcome="{outcome}"'))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", [socket.socket.close, reset])
def test_hang_up_while_decoding(
    start: Any, ask: Callable[..., Any], logs: Callable[[], Any], stream: bool, how: Callable[..., None]
) -> None:
    """The request is cancelled within one engine step, counted and logged once, without a stack trace."""
    with start(**SLOW) as gateway:
        connection = send_raw(gateway, ask(stream=stream, **LONG))
        gateway.wait_until(lambda: blocks_in_use(gateway) > 0, "running")
        if stream:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        how(connection)
        gateway.wait_until(lambda: ended(gateway, "cancelled") == 1, "cancelled")
        assert blocks_in_use(gateway) == 0
        assert gateway.metric("tidegate_requests_in_flight") == 0
        assert gateway.metric('tidegate_engine_steps_to_free_bucket{le="1.0"') == 1
        assert gateway.runner.num_steps < 2000
    (line,) = [entry for entry in logs() if entry["event"] == "request"]
    assert (line["outcome"], line["status"], line["level"]) == ("cancelled", 499, "info")
    assert 0 < line["output_tokens"] < 2000
    assert not [entry for entry in logs() if entry["level"] == "error" or "exception" in entry]


def test_hang_up_in_the_queue(start: Any, ask: Callable[..., Any]) -> None:
    """A request that waits for a place is taken out of the queue."""
    with start(config={"max_running": 1}, **SLOW) as gateway:
        first = send_raw(gateway, ask(**LONG))
        gateway.wait_until(lambda: gateway.metric("tidegate_engine_running_requests") == 1, "running")
        second = send_raw(gateway, ask("Say bye", **LONG))
        gateway.wait_until(lambda: gateway.metric("tidegate_engine_waiting_requests") == 1, "waiting")
        second.close()
        gateway.wait_until(lambda: gateway.metric("tidegate_engine_waiting_requests") == 0, "not waiting")
        assert gateway.metric("tidegate_engine_running_requests") == 1
        first.close()
        gateway.wait_until(lambda: blocks_in_use(gateway) == 0, "free")
        gateway.wait_until(lambda: ended(gateway, "cancelled") == 2, "both cancelled")


def test_hang_up_while_planning(start: Any, ask: Callable[..., Any]) -> None:
    """A client that leaves during a slow plan is gone at once, and the engine never hears of it."""
    planning, release = threading.Event(), threading.Event()

    def slow_plan(request: Any, ports: Any) -> Any:
        planning.set()
        release.wait(10)
        raise AssertionError("its result is not wanted")

    with start(plan=slow_plan) as gateway:
        connection = send_raw(gateway, ask())
        assert planning.wait(5)
        connection.close()
        gateway.wait_until(lambda: ended(gateway, "cancelled") == 1, "cancelled")
        release.set()
        assert gateway.runner.num_steps == 0


def test_hang_up_while_sending_the_body(start: Any, logs: Callable[[], Any]) -> None:
    """A body that never comes to its end is no error of ours."""
    with start() as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tg-dev-key\r\n"
                b'content-length: 1000\r\n\r\n{"messages": ['
            )
            gateway.wait_until(lambda: gateway.metric("tidegate_requests_in_flight") == 1, "reading")
        gateway.wait_until(lambda: gateway.metric("tidegate_requests_in_flight") == 0, "gone")
    assert [e["outcome"] for e in logs() if e["event"] == "request"] == ["cancelled"]
    assert not [entry for entry in logs() if entry["level"] == "error"]


def test_stalled_upload(start: Any) -> None:
    """A body that stops arriving is a 400 that says so."""
    edit = lambda policy: policy.replace("defaults:", "defaults:\n  timeouts: {stream_idle: 200ms}")  # noqa: E731
    with start(policy_edit=edit) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tg-dev-key\r\n"
                b'content-length: 1000\r\n\r\n{"messages": ['
            )
            assert b"400 Bad Request" in connection.recv(4096)


def test_stalled_reader(start: Any, ask: Callable[..., Any], logs: Callable[[], Any]) -> None:
    """A client that keeps the connection and does not read is cancelled after `stream_idle`."""
    edit = lambda policy: policy.replace("defaults:", "defaults:\n  timeouts: {stream_idle: 300ms}")  # noqa: E731
    with start(policy_edit=edit, step_delay_s=0.0002) as gateway:
        connection = send_raw(gateway, ask(stream=True, **LONG), receive_buffer=4096)
        gateway.wait_until(lambda: ended(gateway, "client_stalled") == 1, "stalled", timeout_s=10)
        assert blocks_in_use(gateway) == 0
        connection.close()
    (line,) = [entry for entry in logs() if entry["event"] == "request"]
    assert (line["outcome"], line["level"]) == ("client_stalled", "info")
    assert not [entry for entry in logs() if entry["level"] == "error"]


def test_twenty_resets_at_once(start: Any, ask: Callable[..., Any], logs: Callable[[], Any]) -> None:
    """Twenty streams reset after the first chunk: the server lives, and logs each once (mlx-lm#677)."""
    with start(num_blocks=4096, **SLOW) as gateway:
        connections = [send_raw(gateway, ask(f"Number {n}", stream=True, **LONG)) for n in range(20)]
        for connection in connections:
            connection.recv(64)
        for connection in connections:
            reset(connection)
        gateway.wait_until(lambda: ended(gateway, "cancelled") == 20, "all cancelled")
        assert gateway.get("/healthz").status_code == 200
        assert blocks_in_use(gateway) == 0
    assert [e["outcome"] for e in logs() if e["event"] == "request"] == ["cancelled"] * 20
    assert not [entry for entry in logs() if entry["level"] in ("error", "warning")]


def test_tables_are_empty_after_many_requests(start: Any, ask: Callable[..., Any]) -> None:
    """Hundreds of finished and refused requests leave nothing behind (ATOM#1441)."""
    with start() as gateway, gateway.http() as client:
        for n in range(100):
            assert client.post("/v1/chat/completions", json=ask(f"n {n}", max_tokens=1)).status_code == 200
            assert client.post("/v1/chat/completions", json=ask("x" * 9000)).status_code == 400
        assert gateway.services.models["chat"].loaded.engine._streams == {}
        assert blocks_in_use(gateway) == 0
        assert gateway.metric("tidegate_engine_waiting_requests") == 0
        assert gateway.metric("tidegate_requests_in_flight") == 0


def test_shutdown_ends_streams(start: Any, ask: Callable[..., Any]) -> None:
    """A gateway that stops tells the clients that it still serves, with an error event."""
    with (
        start(drain_s=0.2, **SLOW) as gateway,
        gateway.http() as client,
        client.stream("POST", "/v1/chat/completions", json=ask(stream=True, **LONG)) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        gateway.server.should_exit = True
        started = time.monotonic()
        rest = [line for line in lines if line]
    assert time.monotonic() - started < 5
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "not_ready"

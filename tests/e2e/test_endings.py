"""How requests end on the real engine, other than well: each outcome has its sign, and its blocks come free."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.model

LONG = {"messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture
def metric(http: httpx.Client) -> Callable[[str], float]:
    """Reads one sample by the beginning of its line; 0 where there is none yet."""

    def read(start: str) -> float:
        found = re.search(rf"^{re.escape(start)}[^\n]* (\S+)$", http.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    return read


@pytest.fixture(autouse=True)
def blocks_come_free(metric: Callable[[str], float]) -> Iterator[None]:
    """After each test no block is in use, and no cancelled one was held for more than one step."""

    def held() -> float:
        return metric("tidegate_engine_steps_to_free_count") - metric('tidegate_engine_steps_to_free_bucket{le="1.0"')

    before = held()
    yield
    deadline = time.monotonic() + 20
    while metric("tidegate_engine_kv_blocks_in_use") or metric("tidegate_requests_in_flight"):
        assert time.monotonic() < deadline, "blocks are still in use"
        time.sleep(0.05)
    assert held() == before


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up(stream: bool, http: httpx.Client, metric: Callable[[str], float]) -> None:
    """Counted as cancelled, whether it streamed or waited for the whole answer."""
    name = 'tidegate_requests_total{model="chat",outcome="cancelled"'
    before = metric(name)
    if stream:
        with http.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as response:
            next(response.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=LONG, timeout=1.0)
    deadline = time.monotonic() + 20
    while metric(name) == before:
        assert time.monotonic() < deadline, "not cancelled"
        time.sleep(0.05)


def test_first_token_too_late(http: httpx.Client) -> None:
    """504 before anything was sent, streamed or not."""
    for stream in (False, True):
        body = LONG | {"timeouts": {"first_token_ms": 1}, "stream": stream}
        response = http.post("/v1/chat/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "first_token_timeout")


def test_total_time_over(http: httpx.Client) -> None:
    """504 for a whole answer; a stream that has begun ends with an error event and the report."""
    body = LONG | {"timeouts": {"total_ms": 3000}}
    response = http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (504, "total_timeout")
    events = _events(http, body | {"stream": True})
    assert events[-1]["error"]["code"] == "total_timeout"
    assert events[-1]["budget_report"]["outcome"] == "total_timeout"
    assert len(events) > 1


def _events(http: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]

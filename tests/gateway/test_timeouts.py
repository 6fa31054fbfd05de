"""Every phase's limit: its status before the first token, its error event after, and the blocks come free."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.phases import Phases
from gateway.schemas import TimeoutsIn
from policies.schema import Timeouts


def check(response: Any, status: int, code: str) -> dict[str, Any]:
    """An error response of this kind; its report says the same."""
    assert response.status_code == status, response.text
    body: dict[str, Any] = response.json()
    assert body["error"]["code"] == code
    return body


def test_queue_timeout(start: Any, ask: Callable[..., Any]) -> None:
    """Who waits too long for a place gets a 408 with the report; who runs goes on."""
    with start(config={"max_running": 1}, step_delay_s=0.005) as gateway:
        first = threading.Thread(target=gateway.post, args=(ask(max_tokens=200, ignore_eos=True),))
        first.start()
        gateway.wait_until(lambda: gateway.metric("tidegate_engine_running_requests") == 1, "running")
        body = check(gateway.post(ask(timeouts={"queue_ms": 100})), 408, "queue_timeout")
        assert "100 ms" in body["error"]["message"]
        assert body["budget_report"]["outcome"] == "queue_timeout"
        assert body["budget_report"]["resources"]["output_tokens"] == 0
        assert body["budget_report"]["cost"]["total"] == 0
        first.join()
        assert gateway.metric("tidegate_engine_kv_blocks_in_use") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_first_token_timeout(start: Any, ask: Callable[..., Any], stream: bool) -> None:
    """A prefill that takes too long is a 504, streamed or not: a stream's headers wait for the first token."""
    with start(token_delay_s=0.001, config={"step_tokens": 16}) as gateway:
        body = ask("x" * 1000, stream=stream, timeouts={"first_token_ms": 150})
        report = check(gateway.post(body), 504, "first_token_timeout")["budget_report"]
        assert 0 < report["resources"]["computed_tokens"] < report["context"]["tokens_after"]
        assert gateway.metric("tidegate_engine_kv_blocks_in_use") == 0
        assert gateway.metric('tidegate_engine_steps_to_free_bucket{le="1.0"') == 1


def test_total_timeout(start: Any, ask: Callable[..., Any]) -> None:
    """An answer that takes too long is a 504 that no client should repeat."""
    with start(step_delay_s=0.005) as gateway:
        response = gateway.post(ask(max_tokens=2000, ignore_eos=True, timeouts={"total_ms": 200}))
        report = check(response, 504, "total_timeout")["budget_report"]
        assert response.headers["x-should-retry"] == "false"
        assert 0 < report["resources"]["output_tokens"] < 100
        assert report["cost"]["output"] > 0
        assert gateway.metric("tidegate_engine_kv_blocks_in_use") == 0


def test_total_timeout_in_a_stream(start: Any, ask: Callable[..., Any]) -> None:
    """A stream that has begun ends with an error event and the report, without a finish reason or [DONE]."""
    with start(step_delay_s=0.005) as gateway:
        response = gateway.post(ask(stream=True, max_tokens=2000, ignore_eos=True, timeouts={"total_ms": 200}))
        events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n") if line]
        assert response.status_code == 200
        assert events[-1]["error"]["code"] == "total_timeout"
        assert events[-1]["budget_report"]["outcome"] == "total_timeout"
        assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
        assert gateway.metric("tidegate_engine_kv_blocks_in_use") == 0


@pytest.mark.parametrize(
    ("timeouts", "status", "code"),
    [
        ({}, 504, "total_timeout"),
        ({"queue_ms": 100}, 408, "queue_timeout"),
        ({"first_token_ms": 100}, 504, "first_token_timeout"),
        ({"total_ms": 100}, 504, "total_timeout"),
    ],
)
def test_slow_plan(start: Any, ask: Callable[..., Any], timeouts: Any, status: int, code: str) -> None:
    """Planning ends with the first phase that does; other requests are served meanwhile (litellm#3329)."""
    edit = lambda policy: policy.replace("defaults:", "defaults:\n  timeouts: {plan: 300ms}")  # noqa: E731
    release = threading.Event()

    def endless(request: Any, ports: Any) -> Any:
        release.wait(10)
        raise AssertionError("its result is not wanted")

    with start(plan=endless, policy_edit=edit) as gateway:
        started = time.monotonic()
        check(gateway.post(ask(timeouts=timeouts)), status, code)
        assert time.monotonic() - started < 2
        assert gateway.get("/healthz").status_code == 200
        release.set()


def test_slow_plan_does_not_block_others(start: Any, ask: Callable[..., Any]) -> None:
    """While one plan takes its time, another request is planned and answered."""
    from budget.plan import plan

    begun, release = threading.Event(), threading.Event()

    def sometimes_slow(request: Any, ports: Any) -> Any:
        if request.messages[-1].content == "slow":
            begun.set()
            release.wait(10)
        return plan(request, ports)

    with start(plan=sometimes_slow) as gateway:
        answers: list[Any] = []
        slow = threading.Thread(target=lambda: answers.append(gateway.post(ask("slow"))))
        slow.start()
        assert begun.wait(5)
        assert gateway.post(ask("quick")).status_code == 200
        release.set()
        slow.join()
        assert answers[0].status_code == 200


def test_caller_tightens_and_never_loosens() -> None:
    """The shorter of policy and caller holds in each phase; an absent one leaves the other."""
    policy = Timeouts(queue=2.0, first_token=5.0, total=None)
    phases = Phases.tightest(policy, TimeoutsIn(queue_ms=100_000, first_token_ms=1000, total_ms=9000))
    assert (phases.queue, phases.first_token, phases.total) == (2.0, 1.0, 9.0)
    assert Phases.tightest(policy, None).deadlines(100.0).total is None
    assert phases.deadlines(100.0).queue == 102.0


def test_report_shows_the_limits(gateway: Any, ask: Callable[..., Any]) -> None:
    """`limits.timeouts_ms` has what applied."""
    report = gateway.post(ask(timeouts={"total_ms": 7000, "queue_ms": 90_000})).json()["budget_report"]
    assert report["limits"]["timeouts_ms"] == {"queue": 30_000.0, "first_token": 60_000.0, "total": 7000.0}

"""Limits over HTTP: what is refused, with which numbers and headers, and what the accounts say afterwards."""

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gateway.ledger import LedgerLost

CHARS = "x" * 20


def limited(limits: str, app: str = "{}") -> Callable[[str], str]:
    """A policy edit: the team `support` has these limits, its app `helpdesk` those."""
    return lambda policy: policy.replace("apps: {helpdesk: {}}", f"limits: {limits}\n    apps: {{helpdesk: {app}}}")


def at_once(gateway: Any, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """All responses to requests that are sent at the same moment."""
    answers: list[Any] = [None] * len(bodies)
    barrier = threading.Barrier(len(bodies))

    def send(n: int) -> None:
        barrier.wait()
        answers[n] = gateway.post(bodies[n], key="plain")

    threads = [threading.Thread(target=send, args=(n,)) for n in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_five_at_once(start: Any, ask: Callable[..., Any]) -> None:
    """Tokens are reserved at admission: of five requests at one moment one passes, four get a 429 (litellm#18730)."""
    with start(policy_edit=limited("{rate: {tokens_per_minute: 100}}"), step_delay_s=0.005) as gateway:
        answers = at_once(gateway, [ask(CHARS, max_tokens=40)] * 5)
        assert sorted(answer.status_code for answer in answers) == [200, 429, 429, 429, 429]
        for answer in answers:
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "rate_limited"
                assert answer.json()["error"]["type"] == "rate_limit_error"
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert answer.headers["x-ratelimit-limit-tokens"] == "100"
        (passed,) = [answer for answer in answers if answer.status_code == 200]
        used = passed.json()["usage"]["total_tokens"]
        assert passed.json()["budget_report"]["limits"]["remaining"]["tokens_per_minute"] == 100 - used


def test_rough_bound_refuses_nobody(start: Any, ask: Callable[..., Any]) -> None:
    """A request whose upper bound does not fit passes, because its plan does."""
    with start(policy_edit=limited("{rate: {tokens_per_minute: 100}}")) as gateway:
        assert gateway.post(ask(CHARS, max_tokens=40, metadata={"pad": "x" * 2000}), key="plain").status_code == 200


def test_can_never_fit(start: Any, ask: Callable[..., Any]) -> None:
    """More than the whole minute is refused at once, without a retry time, whether at the door or after the plan."""
    with start(policy_edit=limited("{rate: {tokens_per_minute: 100}}")) as gateway:
        for body in (ask("x" * 500, max_tokens=500), ask("x" * 500, max_tokens=5)):
            response = gateway.post(body, key="plain")
            assert response.status_code == 429
            assert "never" in response.json()["error"]["message"]
            assert "retry-after" not in response.headers
            assert response.headers["x-should-retry"] == "false"
            assert response.headers["x-ratelimit-remaining-tokens"] == "100"
        assert gateway.runner.num_steps == 0


def test_requests_a_minute(start: Any, ask: Callable[..., Any]) -> None:
    """The third of two requests a minute waits, and is let in when the told time has passed; refusals cost nothing."""
    now = [1_800_000_000.0]
    edit = limited("{rate: {requests_per_minute: 2}}")
    with start(policy_edit=edit, clock=lambda: now[0]) as gateway:
        first = gateway.post(ask(), key="plain")
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert gateway.post(ask(), key="plain").status_code == 200
        for _ in range(30):
            refused = gateway.post(ask(), key="plain")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        assert "2 of 2 requests a minute of team support" in refused.json()["error"]["message"]
        assert gateway.post(ask(), key="other").status_code == 200
        now[0] += 60
        assert gateway.post(ask(), key="plain").status_code == 200


def test_quota(start: Any, ask: Callable[..., Any]) -> None:
    """A used-up day is `insufficient_quota` until midnight, which no client should wait for in a loop."""
    now = [1_800_000_000.0]  # 08:00 UTC
    with start(policy_edit=limited("{quota: {tokens_per_day: 100}}"), clock=lambda: now[0]) as gateway:
        assert gateway.post(ask(CHARS, max_tokens=50), key="plain").status_code == 200
        refused = gateway.post(ask(CHARS, max_tokens=50), key="plain")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
        assert refused.json()["error"]["type"] == "insufficient_quota"
        assert int(refused.headers["retry-after"]) == 16 * 3600
        assert refused.headers["x-should-retry"] == "false"
        now[0] += 16 * 3600
        assert gateway.post(ask(CHARS, max_tokens=50), key="plain").status_code == 200


def test_cost_a_month(start: Any, ask: Callable[..., Any]) -> None:
    """Cost is counted in the policy's units, prompt and output at their prices."""
    with start(policy_edit=limited("{quota: {cost_per_month: 0.006}}")) as gateway:
        first = gateway.post(ask(CHARS, max_tokens=40), key="plain")
        assert first.json()["budget_report"]["cost"]["total"] == pytest.approx(0.0044, abs=0.0003)
        refused = gateway.post(ask(CHARS, max_tokens=40), key="plain")
        assert refused.json()["error"]["code"] == "quota_exceeded"
        assert gateway.post(ask(CHARS, max_tokens=5), key="plain").status_code == 200


def test_concurrency(start: Any, ask: Callable[..., Any]) -> None:
    """Two at once: the third is told to come back, and places are free again after any end."""
    with start(policy_edit=limited("{concurrency: {requests: 2}}"), step_delay_s=0.01) as gateway:
        answers = at_once(gateway, [ask(f"n {n}", max_tokens=30) for n in range(3)])
        assert sorted(answer.status_code for answer in answers) == [200, 200, 429]
        (refused,) = [answer for answer in answers if answer.status_code == 429]
        assert (refused.json()["error"]["code"], refused.headers["retry-after"]) == ("concurrency_exceeded", "1")
        for body in (ask(timeouts={"total_ms": 20}), ask("x" * 9000), ask(max_tokens=1)):
            gateway.post(body, key="plain")
        assert gateway.post(ask(max_tokens=1), key="plain").status_code == 200


def test_app_within_its_team(start: Any, ask: Callable[..., Any]) -> None:
    """An app's own limit counts beside its team's; a request that the app refuses takes nothing from the team."""
    edit = limited("{rate: {requests_per_minute: 10}}", app="{limits: {rate: {requests_per_minute: 1}}}")
    with start(policy_edit=edit) as gateway:
        assert gateway.post(ask(), key="plain").status_code == 200
        refused = gateway.post(ask(), key="plain")
        assert "app support/helpdesk" in refused.json()["error"]["message"]
        assert gateway.post(ask(), key="expired").status_code == 401
        (balance,) = [b for b in _standing(gateway) if b.bound == 10]
        assert balance.remaining == 9


def _standing(gateway: Any) -> Any:
    """The accounts of the team, read through a request that takes nothing."""
    from gateway.admission import Amounts, Claim, Limit

    async def read() -> Any:
        ledger = gateway.services.admission._ledger
        limit = Limit("team support (production)", "requests_per_minute", 10)
        return await ledger.reserve(Claim("look", [limit], Amounts(requests=0), Amounts(requests=0), 1))

    import asyncio

    return asyncio.run(read())


def test_charged_for_what_was_used(start: Any, ask: Callable[..., Any]) -> None:
    """A request that fails or times out is charged for what it used; one that never ran is charged nothing."""
    with start(policy_edit=limited("{rate: {tokens_per_minute: 10k}}"), step_delay_s=0.01) as gateway:
        whole = gateway.post(ask(max_tokens=1), key="plain")
        used = whole.json()["usage"]["total_tokens"]
        slow = gateway.post(ask(max_tokens=500, timeouts={"total_ms": 100}, ignore_eos=True), key="plain")
        resources = slow.json()["budget_report"]["resources"]
        used += resources["prompt_tokens"] + resources["output_tokens"]
        gateway.post(ask("x" * 9000), key="plain")
        last = gateway.post(ask(max_tokens=1), key="plain")
        used += last.json()["usage"]["total_tokens"]
        assert last.json()["budget_report"]["limits"]["remaining"]["tokens_per_minute"] == 10_000 - used


def test_plan_takes_a_request_and_no_tokens(start: Any, ask: Callable[..., Any]) -> None:
    """Planning counts as a request, but not against tokens."""
    with start(policy_edit=limited("{rate: {requests_per_minute: 2, tokens_per_minute: 100}}")) as gateway:
        planned = gateway.post(ask("x" * 500), key="plain", path="/v1/budget/plan")
        assert planned.status_code == 200
        remaining = planned.json()["budget_report"]["limits"]["remaining"]
        assert (remaining["requests_per_minute"], remaining["tokens_per_minute"]) == (1, 100)


@pytest.mark.parametrize(
    ("mode", "status", "store"), [("closed", 503, None), ("local_share", 200, "local_share"), ("open", 200, "open")]
)
def test_lost_store(start: Any, ask: Callable[..., Any], mode: str, status: int, store: str | None) -> None:
    """Each mode behaves as it is written, shows in report, metrics and `/readyz`, and heals by itself."""
    edit = limited(f"{{rate: {{requests_per_minute: 2}}, on_store_loss: {mode}}}")
    with start(policy_edit=edit) as gateway, gateway.http("plain") as client:
        ledger, admission = gateway.services.admission._ledger, gateway.services.admission

        async def lost(claim: Any) -> Any:
            raise LedgerLost("the disk is full")

        ledger.reserve = lost
        response = gateway.post(ask(), key="plain")
        assert response.status_code == status
        if store is None:
            assert response.json()["error"]["code"] == "store_unavailable"
            assert int(response.headers["retry-after"]) >= 1
        else:
            assert response.json()["budget_report"]["limits"]["store"] == store
        assert gateway.metric(f'tidegate_store_state{{state="{mode}"}}') == 1
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["store"]) == (200, "lost")
        assert "disk is full" in ready.json()["store_error"]
        if mode == "local_share":
            assert [gateway.post(ask(), key="plain").status_code for _ in range(2)] == [200, 429]
        del ledger.reserve
        admission._lost_until = 0.0
        assert gateway.post(ask(), key="plain").json()["budget_report"]["limits"]["store"] == "ok"
        assert client.get("/readyz").json()["store"] == "ok"


def test_no_limits_no_ledger(gateway: Any, ask: Callable[..., Any]) -> None:
    """Where no limit applies the ledger is not asked, but the usage is recorded."""
    import asyncio

    before = gateway.metric("tidegate_admission_seconds_count")
    usage = gateway.post(ask(user="u-77"), key="other").json()["usage"]
    assert gateway.metric("tidegate_admission_seconds_count") == before
    rows = asyncio.run(gateway.services.admission._ledger.usage())
    (row,) = [row for row in rows if row["user"] == "u-77"]
    assert (row["team"], row["model"], row["requests"]) == ("other", "chat", 1)
    assert (row["prompt_tokens"], row["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])


def test_limit_headers_of_a_stream(start: Any, ask: Callable[..., Any]) -> None:
    """A stream's headers have the limits as they stood when it began."""
    with start(policy_edit=limited("{rate: {requests_per_minute: 5, tokens_per_minute: 5000}}")) as gateway:
        headers = gateway.post(ask(stream=True), key="plain").headers
        assert headers["x-ratelimit-remaining-requests"] == "4"
        assert 4900 < int(headers["x-ratelimit-remaining-tokens"]) < 5000
        assert re.fullmatch(r"\d+s", headers["x-ratelimit-reset-requests"])

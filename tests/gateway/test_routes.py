"""Models, readiness, metrics, the admin route, schemas and OpenAPI."""

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from budget.plan import plan
from policies.errors import PolicyError
from policies.load import load_text


def get(gateway: Any, path: str, key: str = "dev") -> httpx.Response:
    """One GET."""
    with gateway.http(key) as client:
        return client.get(path)


def test_plan_runs_nothing(gateway: Any, ask: Callable[..., Any]) -> None:
    """`/v1/budget/plan` gives messages and context, no resources and no cost; the engine takes no step."""
    before = gateway.runner.num_steps
    planned = gateway.post(ask(documents=[{"text": "Hi."}]), path="/v1/budget/plan").json()
    assert planned["object"] == "budget.plan"
    assert planned["messages"][-1]["role"] == "user"
    report = planned["budget_report"]
    assert (report["resources"], report["cost"]) == (None, None)
    assert report["context"]["tokens_after"] > 0
    assert gateway.runner.num_steps == before


def test_plan_is_what_runs(gateway: Any, ask: Callable[..., Any]) -> None:
    """The same body planned and run has the same context, whatever `stream` says."""
    body = ask(documents=[{"text": "One fact. Another fact."}] * 3)
    planned = gateway.post(body | {"stream": True}, path="/v1/budget/plan").json()["budget_report"]
    assert planned["context"] == gateway.post(body).json()["budget_report"]["context"]


def test_plan_never_hides_its_report(gateway: Any, ask: Callable[..., Any]) -> None:
    """`report: none` leaves the report of a plan whole; `summary` is heeded."""
    for detail, documents in (("none", 1), ("summary", 0)):
        body = ask(documents=[{"text": "Hi."}], budget={"report": detail})
        report = gateway.post(body, path="/v1/budget/plan").json()["budget_report"]
        assert len(report["context"]["documents"]) == documents


def test_caller_tightens_the_budget(start: Any, ask: Callable[..., Any]) -> None:
    """Of policy and caller the lower prompt bound holds."""
    edit = lambda policy: policy.replace("defaults:", "defaults:\n  context: {max_prompt_tokens: 2000}")  # noqa: E731
    with start(policy_edit=edit) as gateway:
        for asked, granted in ((500, 500), (5000, 2000), (None, 2000)):
            planned = gateway.post(ask(budget={"max_prompt_tokens": asked}), path="/v1/budget/plan").json()
            assert planned["budget_report"]["context"]["max_prompt_tokens"] == granted


def test_planning_off(gateway: Any, ask: Callable[..., Any]) -> None:
    """A caller may turn planning off; messages pass through and are still counted."""
    report = gateway.post(ask(budget={"planning": "off"})).json()["budget_report"]
    assert report["context"]["tokens_before"] == report["context"]["tokens_after"] > 0


def test_models_need_a_key(gateway: Any) -> None:
    """The list is for key holders."""
    assert gateway.get("/v1/models").status_code == 401
    assert get(gateway, "/v1/models").json()["data"][0]["ready"] is True


def test_readyz(gateway: Any) -> None:
    """Ready with the details, also for HEAD, and without a key."""
    ready = gateway.get("/readyz").json()
    assert (ready["status"], ready["store"], ready["error"]) == ("ready", "ok", None)
    assert ready["models"]["chat"]["kv_blocks_total"] == 512
    assert gateway.client.head("/readyz").status_code == gateway.client.head("/healthz").status_code == 200


def test_broken_reload_keeps_it_green(start: Any, ask: Callable[..., Any], tmp_path: Path) -> None:
    """A refused policy file shows in `/readyz` and the metrics; the old revision goes on serving."""
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nteams: {dev: {limits: {rat: {}}}}\n")
    with start() as gateway:
        revision = gateway.services.policies.current().revision
        with pytest.raises(PolicyError):
            gateway.services.policies.reload(file)
        ready = gateway.get("/readyz")
        assert ready.status_code == 200
        assert "rat" in ready.json()["policy_reload_error"]
        assert gateway.metric("tidegate_policy_reload_failed") == 1
        assert gateway.metric(f'tidegate_policy_info{{revision="{revision}"}}') == 1
        assert gateway.post(ask()).json()["budget_report"]["policy"]["revision"] == revision


def test_reload_swaps_whole(start: Any, ask: Callable[..., Any], policy_text: str) -> None:
    """A request that is running keeps the revision that it began with; the next one has the new one."""
    planning, go_on = threading.Event(), threading.Event()

    def waiting(request: Any, ports: Any) -> Any:
        planning.set()
        go_on.wait(10)
        return plan(request, ports)

    with start(plan=waiting) as gateway:
        before, answers = gateway.services.policies.current(), []
        thread = threading.Thread(target=lambda: answers.append(gateway.post(ask())))
        thread.start()
        assert planning.wait(5)
        gateway.services.policies.swap(load_text(policy_text.replace("max_messages: 40", "max_messages: 41")))
        go_on.set()
        thread.join()
        after = gateway.post(ask())
    assert answers[0].json()["budget_report"]["policy"]["revision"] == before.revision
    assert after.json()["budget_report"]["policy"]["revision"] != before.revision


def test_metrics(start: Any, ask: Callable[..., Any]) -> None:
    """Requests by outcome, tokens by kind, timings, KV gauges, loop lag; labels only from the policy."""
    with start(scripts=itertools.repeat(list(b"ok"))) as gateway:
        usage = gateway.post(ask(), key="plain").json()["usage"]
        gateway.post(ask(model="made-up-" + "x" * 50), key="plain")
        gateway.post(ask(), key="nobody")
        page = gateway.get("/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        count = gateway.metric
        assert count('tidegate_requests_total{model="chat",outcome="ok",status="200",team="support"}') == 1
        assert count('tidegate_requests_total{model="unknown",outcome="rejected",status="404",team="support"}') == 1
        assert count('tidegate_requests_total{model="unknown",outcome="rejected",status="401",team="unknown"}') == 1
        assert count('tidegate_tokens_total{kind="output"') == usage["completion_tokens"]
        assert count('tidegate_tokens_total{kind="prompt_computed"') == usage["prompt_tokens"]
        assert count('tidegate_ttft_seconds_count{model="chat"}') == 1
        assert count('tidegate_plan_seconds_count{model="chat"}') == 1
        assert count("tidegate_engine_kv_blocks_total") == 512
        assert count("tidegate_engine_kv_blocks_in_use") == 0
        assert count("tidegate_engine_kv_blocks_free") + count("tidegate_engine_kv_blocks_idle") == 512
        assert "made-up" not in page.text
        gateway.wait_until(lambda: count("tidegate_event_loop_lag_max_seconds") > 0, "lag is measured")


def test_ranking_fallbacks_are_counted(gateway: Any, ask: Callable[..., Any]) -> None:
    """Without an embedder the report says what was used instead, and a metric counts it (gbrain#4648)."""
    body = ask(documents=[{"text": "one"}, {"text": "two"}])
    before = gateway.metric("tidegate_ranking_fallbacks_total")
    ranking = gateway.post(body).json()["budget_report"]["context"]["ranking"]
    assert ranking["fallback"]
    assert gateway.metric("tidegate_ranking_fallbacks_total") == before + 1


def test_flush(gateway: Any, ask: Callable[..., Any]) -> None:
    """An admin drops idle blocks, of one team or of all; others may not."""
    body = ask("A prompt of several blocks, so that something is cached.")
    for key in ("dev", "other"):
        gateway.post(body, key=key)
    assert gateway.post({}, key="plain", path="/admin/cache/flush").status_code == 403
    assert gateway.post({"namespace": "nobody"}, path="/admin/cache/flush").json()["freed_blocks"] == 0
    assert gateway.post({"namespace": ["team", "other"]}, path="/admin/cache/flush").json()["freed_blocks"] > 0
    assert gateway.post(b"", path="/admin/cache/flush").json()["by_model"]["chat"] > 0
    assert gateway.metric("tidegate_engine_kv_blocks_idle") == 0
    wrong = gateway.post({"namspace": "dev"}, path="/admin/cache/flush")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "namspace")


def test_report_matches_its_schema(gateway: Any, ask: Callable[..., Any]) -> None:
    """`/v1/schemas/budget-report.json` describes what is sent, whole and summed up."""
    schema = get(gateway, "/v1/schemas/budget-report.json").json()
    for detail in ("full", "summary"):
        report = gateway.post(ask(budget={"report": detail}, documents=[{"text": "a"}])).json()["budget_report"]
        jsonschema_rs.validate(schema, report)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"version": "one"})


def test_policy_schema(gateway: Any) -> None:
    """`/v1/schemas/policy.json` is the policy room's own."""
    assert "teams" in json.dumps(get(gateway, "/v1/schemas/policy.json").json())


def test_openapi(gateway: Any) -> None:
    """Every route is there with its bodies, and every reference resolves."""
    document = get(gateway, "/schema/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/ChatRequest")
    assert {"200", "400", "401", "403", "404", "408", "413", "429", "503", "504"} <= set(chat["responses"])
    assert {"/v1/budget/plan", "/v1/models", "/readyz", "/metrics", "/admin/cache/flush"} <= set(document["paths"])
    for reference in _references(document):
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [found for value in node.values() for found in _references(value)]
    return [found for value in node for found in _references(value)] if isinstance(node, list) else []

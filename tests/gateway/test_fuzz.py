"""Any body at all: never a 5xx, always OpenAI's shape, and nothing left behind."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.schemas import ChatRequest, ErrorResponse

FIELDS = [field.name for field in msgspec.structs.fields(ChatRequest)]
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.just(10**400) | st.floats() | st.text(max_size=8)
)
ODD = st.sampled_from(
    ["", " ", "\x00", "<|end|>", "\ud83d", "\ufffd", "user", "text", [], {}, [[]], 0, -1, 1e308, "off"]
)
VALUES = st.recursive(
    SCALARS | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
CALL = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"q": 1}'}}
PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text") | ODD, "text": st.text(max_size=8)}), max_size=2)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["c1", "c2"]), "function": st.fixed_dictionaries({"name": ODD, "arguments": st.text()})}
    ),
    max_size=2,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
        optional={
            "content": st.text(max_size=20) | PARTS | st.none(),
            "tool_calls": CALLS | VALUES,
            "tool_call_id": st.sampled_from(["c1", "c2", "c3"]),
            "pinned": st.booleans(),
        },
    ),
    max_size=6,
)
DOCUMENTS = st.lists(
    st.fixed_dictionaries(
        {"text": st.text(max_size=40)},
        optional={
            "id": st.text(max_size=4),
            "title": st.text(max_size=4),
            "score": st.floats(-1e6, 1e6),
            "metadata": st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=2),
        },
    ),
    max_size=4,
)
TEXT = st.text(max_size=30) | st.sampled_from(["Thanks!", "谢谢", "My order number is 4711.", "<|end|>", "| a | b |"])
CONTENT = TEXT | TEXT.map(lambda text: [{"type": "text", "text": text}])
TURNS = st.sampled_from(["system", "user", "assistant"]).flatmap(
    lambda role: CONTENT.map(lambda content: [{"role": role, "content": content}])
)
TOOL_PAIRS = TEXT.map(
    lambda text: [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": text},
    ]
)
CONVERSATIONS = st.lists(TURNS | TOOL_PAIRS, max_size=6).map(
    lambda turns: [*(message for turn in turns for message in turn), {"role": "user", "content": "And now?"}]
)
OPTIONS = {
    "documents": DOCUMENTS,
    "stream": st.booleans(),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "budget": st.fixed_dictionaries(
        {},
        optional={
            "max_prompt_tokens": st.integers(1, 200),
            "max_document_tokens": st.integers(0, 100),
            "order": st.sampled_from(["relevance", "edges", "cache_aware"]),
            "planning": st.sampled_from(["on", "off"]),
            "report": st.sampled_from(["full", "summary", "none"]),
        },
    ),
}
RIGHT = st.fixed_dictionaries({"messages": CONVERSATIONS, "max_tokens": st.integers(1, 4)}, optional=OPTIONS)
LIKELY = st.fixed_dictionaries({"messages": MESSAGES, "max_tokens": st.integers(1, 4)}, optional=OPTIONS)
ANYTHING = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), VALUES, max_size=5)
MIXED = st.tuples(LIKELY, ANYTHING).map(lambda pair: pair[0] | pair[1])


def check(gateway: Any, raw: bytes, path: str = "/v1/chat/completions") -> None:
    """Send and look at the answer."""
    response = gateway.post(raw, path=path)
    if response.status_code != 200:
        assert response.status_code in (400, 404, 413), (response.status_code, response.text, raw)
        error = msgspec.json.decode(response.content, type=ErrorResponse).error
        assert error.request_id == response.headers["x-request-id"]
        assert error.message
    elif response.headers["content-type"] == "application/json":
        report = response.json().get("budget_report")
        if report is not None and path == "/v1/chat/completions":
            assert report["resources"]["prompt_tokens"] == report["context"]["tokens_after"]


def encoded(body: Any) -> bytes:
    """As JSON, lone surrogates and infinities included."""
    return json.dumps(body).encode("utf-8", "surrogatepass")


FUZZ = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(RIGHT)
def test_right_bodies(gateway: Any, body: Any) -> None:
    """Whatever is in them, right bodies are answered, unless their budget is too small."""
    body = body | {"stream": False, "stop": None}
    response = gateway.post(encoded(body))
    if response.status_code != 200:
        assert response.json()["error"]["code"] == "context_length_exceeded", (response.text, body)
    else:
        answer = response.json()
        assert answer["usage"]["completion_tokens"] <= body["max_tokens"]
        assert answer["usage"]["prompt_tokens"] <= ((body.get("budget") or {}).get("max_prompt_tokens") or 8192)


@FUZZ
@given(LIKELY)
def test_nearly_right_bodies(gateway: Any, body: Any) -> None:
    """Bodies that are mostly right reach planner and engine, and come back with an answer or a 400."""
    check(gateway, encoded(body))


@FUZZ
@given(MIXED | ANYTHING | VALUES)
def test_wrong_bodies(gateway: Any, body: Any) -> None:
    """Any JSON value, and any value in any field."""
    check(gateway, encoded(body))


@settings(FUZZ, max_examples=60)
@given(
    st.binary(max_size=80) | LIKELY.map(encoded).flatmap(lambda raw: st.integers(0, len(raw)).map(lambda n: raw[:n]))
)
def test_bytes(gateway: Any, raw: bytes) -> None:
    """Any bytes, and JSON that breaks off anywhere; planning takes them as well."""
    check(gateway, raw)
    check(gateway, raw, path="/v1/budget/plan")


def test_nothing_is_left_behind(gateway: Any, ask: Callable[..., Any]) -> None:
    """After all that the gateway works, and holds nothing."""
    assert gateway.post(ask()).status_code == 200
    assert gateway.metric("tidegate_requests_in_flight") == 0
    assert gateway.metric("tidegate_engine_kv_blocks_in_use") == 0

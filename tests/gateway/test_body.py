"""What a body may be: every wrong one is a 400 or 413 in OpenAI's shape that names the field."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.body import UNSUPPORTED, decode_chat
from gateway.errors import InvalidRequest
from policies.schema import RequestLimits

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"q":"opening hours"}'}}


def refusal(gateway: Any, body: Any, **options: Any) -> dict[str, Any]:
    """The error object of a request that must be a 400."""
    response = gateway.post(body, **options)
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["request_id"] == response.headers["x-request-id"]
    assert "x-should-retry" not in response.headers
    return error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [USER, {"role": "robot", "content": "hi"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]},
            "messages[0].content[1].type",
        ),
        ({"messages": [USER, {"role": "tool", "content": "42"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": 1}]}, USER]}, "messages[0].tool_calls[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}, USER]},
            "messages[0].tool_calls[0].function",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"timeouts": {"total_ms": 10**400}}, "timeouts.total_ms"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stream": "yes"}, "stream"),
        ({"user": "u" * 513}, "user"),
        ({"budget": {"max_promt_tokens": 5}}, "budget.max_promt_tokens"),
        ({"budget": {"max_prompt_tokens": 0}}, "budget.max_prompt_tokens"),
        ({"budget": {"report": "all"}}, "budget.report"),
        ({"timeouts": {"total_s": 5}}, "timeouts.total_s"),
        ({"timeouts": {"total_ms": -5}}, "timeouts.total_ms"),
        ({"documents": [{"text": "a"}, {"text": "b", "sorce": "c"}]}, "documents[1].sorce"),
        ({"documents": [{"id": "a"}]}, "documents[0].text"),
        ({"documents": [{"text": "a", "id": 7}]}, "documents[0].id"),
        ({"model": 5}, "model"),
    ],
)
def test_field_is_named(gateway: Any, ask: Callable[..., Any], fields: dict[str, Any], param: str) -> None:
    """A wrong field is a 400 whose `param` is its path, and whose message says it too or what to do."""
    error = refusal(gateway, ask() | fields)
    assert (error["code"], error["param"]) == ("invalid_request", param)
    assert len(error["message"]) > 10


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("response_format", {"type": "json_object"}),
        ("n", 2),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -0.5),
        ("logit_bias", {"50256": -100}),
        ("guided_json", {}),
    ],
)
def test_unsupported_is_said(gateway: Any, ask: Callable[..., Any], field: str, value: Any) -> None:
    """What is not there yet is refused by name, never left out silently."""
    error = refusal(gateway, ask(**{field: value}))
    assert error["param"] == field
    assert "not supported" in error["message"]


def test_defaults_that_ask_for_nothing(gateway: Any, ask: Callable[..., Any]) -> None:
    """The defaults that client libraries spell out are no request for the feature, nor is a null."""
    spelled = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "n": 1, "logprobs": False}
    spelled |= {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "top_logprobs": 0}
    assert gateway.post(ask(**spelled)).status_code == 200
    assert gateway.post(ask(**dict.fromkeys(UNSUPPORTED))).status_code == 200


def test_null_equals_absent(gateway: Any, ask: Callable[..., Any]) -> None:
    """An explicit null of any optional field, nested ones too, is as if it were not there (vllm#45491)."""
    optional = [
        "model", "documents", "budget", "timeouts", "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos",
        "user", "n", "logprobs", "tools", "response_format",
    ]  # fmt: skip
    body = ask() | dict.fromkeys(optional)
    assert gateway.post(body | {"max_tokens": 2}).status_code == 200
    response = gateway.post(body | {"budget": {"max_prompt_tokens": None}, "timeouts": {"total_ms": None}})
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 2000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"[]",
        b"null",
        b'"hi"',
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud83d and more"}]}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "hi"}], "temperature": Infinity}',
        b'{"messages": [{"role": "user", "content": "hi"}], "documents": [{"text": "a", "score": 1e999}]}',
        b'{"messages": [{"role": "user", "content": "hi"}]} {}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "hi"}], "x": ' + b"[" * 90_000 + b"]" * 90_000 + b"}",
    ],
    ids=lambda body: repr(body[:60]),
)
def test_not_json(gateway: Any, body: bytes) -> None:
    """What is no JSON object in UTF-8 is a 400: truncated, lone surrogates (mastra#23788), NaN, endless nesting."""
    assert refusal(gateway, body)["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"content-type": "application/x-www-form-urlencoded"}, "content-type"),
        ({"content-type": "text/plain"}, "content-type"),
        ({"content-encoding": "gzip"}, "content-encoding"),
    ],
)
def test_wrong_headers(gateway: Any, ask: Callable[..., Any], headers: dict[str, str], param: str) -> None:
    """A body that says that it is no plain JSON is refused with the header's name."""
    assert refusal(gateway, ask(), headers=headers)["param"] == param


def test_lenient_where_harmless(gateway: Any, ask: Callable[..., Any]) -> None:
    """A byte order mark, a charset, a repeated key and unknown top-level fields do not fail a request."""
    body = ask(metadata={"run": "7"}, store=True, parallel_tool_calls=True)
    raw = b"\xef\xbb\xbf" + json.dumps(body).encode()[:-1] + b', "max_tokens": 3}'
    response = gateway.post(raw, headers={"content-type": "application/json; charset=utf-8"})
    assert response.json()["usage"]["completion_tokens"] == 3


def test_too_large(gateway: Any, ask: Callable[..., Any]) -> None:
    """Bytes, messages and documents over the policy's limit are a 413 with both numbers, however they arrive."""
    big = ask("x" * 300_000)
    declared = gateway.post(big)
    with gateway.http() as client:
        chunks = itertools.repeat(b" " * 65536, 20)
        chunked = client.post("/v1/chat/completions", content=chunks, headers={"content-type": "application/json"})
    many = gateway.post(ask(documents=[{"text": "a"}] * 21))
    long = gateway.post(ask() | {"messages": [USER] * 41})
    for response, numbers in ((declared, "204,800"), (chunked, "204,800"), (many, "20"), (long, "40")):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
        assert numbers in response.json()["error"]["message"]


def test_text_parts_are_joined(gateway: Any, ask: Callable[..., Any]) -> None:
    """Parts count and run like the joined text, in every role (langchainjs#8336, CommandCode#820)."""
    texts = {"system": "You joke.", "user": "why is water wet", "assistant": "The code word is HERON."}
    plain = [{"role": role, "content": text} for role, text in texts.items()] + [USER]
    parts = [
        {"role": role, "content": [{"type": "text", "text": text[:5]}, {"type": "text", "text": text[5:]}]}
        for role, text in texts.items()
    ] + [USER]
    joined, split = (gateway.post(ask(temperature=0) | {"messages": m}).json() for m in (plain, parts))
    assert split["usage"]["prompt_tokens"] == joined["usage"]["prompt_tokens"]
    assert split["choices"] == joined["choices"]
    shown = gateway.post(ask() | {"messages": parts}, path="/v1/budget/plan").json()["messages"]
    assert "HERON" in json.dumps(shown)


def test_tool_history(gateway: Any, ask: Callable[..., Any]) -> None:
    """Absent, null and empty content next to tool calls are alike; the call is counted (lmstudio#261)."""
    counts = []
    for content in ({}, {"content": None}, {"content": ""}):
        call = {"role": "assistant", "tool_calls": [CALL], **content}
        messages = [USER, call, {"role": "tool", "tool_call_id": "c1", "content": "42"}, USER]
        response = gateway.post(ask() | {"messages": messages})
        assert response.status_code == 200, response.text
        counts.append(response.json()["usage"]["prompt_tokens"])
    assert len(set(counts)) == 1
    assert counts[0] > len(CALL["function"]["arguments"])  # type: ignore[index]


def test_only_the_call_itself_is_kept(gateway: Any, ask: Callable[..., Any]) -> None:
    """What a client adds to a tool call never reaches the prompt, whatever it is."""
    odd = CALL | {"index": 10**30, "extra": ["<|end|>"]}
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [odd]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
    ]
    planned = gateway.post(ask() | {"messages": messages}, path="/v1/budget/plan")
    assert planned.status_code == 200
    assert planned.json()["messages"][1]["tool_calls"] == [CALL]


def test_count_never_shrinks(gateway: Any, ask: Callable[..., Any]) -> None:
    """With planning off, one more message never makes the count smaller (litellm#10409)."""
    history = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "user", "content": [{"type": "text", "text": "thanks"}]},
        {"role": "assistant", "content": "bye"},
    ]
    counts = []
    for end in (2, 4, 5, 6):
        body = ask(budget={"planning": "off"}) | {"messages": history[:end]}
        report = gateway.post(body, path="/v1/budget/plan").json()["budget_report"]
        counts.append(report["context"]["tokens_after"])
    assert counts == sorted(counts)


def test_system_messages_anywhere(gateway: Any, ask: Callable[..., Any]) -> None:
    """Every system text reaches the prompt in order; `developer` is one too (conversations#197)."""
    roles = ["system", "developer", "user", "system", "user"]
    messages = [{"role": role, "content": f"Rule {n}."} for n, role in enumerate(roles)]
    shown = gateway.post(ask() | {"messages": messages}, path="/v1/budget/plan").json()["messages"]
    text = "".join(message["content"] for message in shown)
    assert [text.index(f"Rule {n}.") for n in (0, 1, 3)] == sorted(text.index(f"Rule {n}.") for n in (0, 1, 3))


def test_extra_message_keys(gateway: Any, ask: Callable[..., Any]) -> None:
    """Client ids and trace data inside a message fail nothing and never reach the prompt (opencode#43089)."""
    extra = USER | {"name": "Kim", "id": "m-1", "traceId": "abc", "tool_calls": [{"odd": 1}]}
    with_extra, without = (gateway.post(ask() | {"messages": [m]}).json() for m in (extra, USER))
    assert with_extra["usage"]["prompt_tokens"] == without["usage"]["prompt_tokens"]


def test_decoding_errors_name_the_field() -> None:
    """The decoder's own complaint stands in the message, after the path."""
    with pytest.raises(InvalidRequest, match=r"^max_tokens: expected `int \| null`, got `str`") as caught:
        decode_chat(b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": "8"}', RequestLimits())
    assert caught.value.param == "max_tokens"

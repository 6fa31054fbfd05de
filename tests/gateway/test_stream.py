"""Server-sent events byte by byte: order, placement of usage and report, characters, errors under way."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest

from gateway.report import STREAM_LIMIT_BYTES
from gateway.schemas import BudgetReport, ChatCompletionChunk

USAGE = {"stream": True, "stream_options": {"include_usage": True}}


def events(response: httpx.Response) -> list[Any]:
    """The decoded events; `[DONE]` stays a string. Every line is an event or empty."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n")
    assert all(line == "" or line.startswith("data: ") for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def text_of(chunks: list[Any]) -> str:
    """All deltas joined."""
    return "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c != "[DONE]" and c["choices"])


def test_order_and_types(gateway: Any, ask: Callable[..., Any]) -> None:
    """Role, text, finish, usage without choices, [DONE]; each event is a valid chunk (ATOM#1711)."""
    got = events(gateway.post(ask(max_tokens=4, **USAGE)))
    assert got[-1] == "[DONE]"
    chunks = msgspec.convert(got[:-1], list[ChatCompletionChunk])
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [len(c.choices) for c in chunks] == [1] * (len(chunks) - 1) + [0]
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert [e["usage"] is None for e in got[:-1]] == [True] * (len(chunks) - 1) + [False]
    assert len({(c.id, c.created, c.model) for c in chunks}) == 1
    assert isinstance(chunks[-1].budget_report, BudgetReport)
    assert ["budget_report" in e for e in got[:-1]] == [False] * (len(chunks) - 1) + [True]


def test_without_usage(gateway: Any, ask: Callable[..., Any]) -> None:
    """Where usage was not asked for no chunk has the field, and the report rides on the finish chunk."""
    got = events(gateway.post(ask(stream=True)))
    assert all("usage" not in event for event in got[:-1])
    assert got[-2]["choices"][0]["finish_reason"] == "length"
    assert got[-2]["budget_report"]["outcome"] == "length"


def test_same_as_json(gateway: Any, ask: Callable[..., Any]) -> None:
    """Text, finish reason, usage and the report's counts are those of the JSON answer."""
    gateway.post({}, path="/admin/cache/flush")
    whole = gateway.post(ask(temperature=0)).json()
    gateway.post({}, path="/admin/cache/flush")
    got = events(gateway.post(ask(temperature=0, **USAGE)))
    assert text_of(got) == whole["choices"][0]["message"]["content"]
    assert got[-2]["usage"] == whole["usage"]
    assert got[-2]["budget_report"]["context"] == whole["budget_report"]["context"]
    assert got[-2]["budget_report"].keys() == whole["budget_report"].keys()


def test_headers(gateway: Any, ask: Callable[..., Any]) -> None:
    """Request id, policy with its revision, prompt tokens and kept passages are in the headers, streamed or not."""
    documents = [{"text": "Hi is a greeting."}, {"text": "Bye ends a talk."}]
    for stream in (False, True):
        headers = gateway.post(ask(documents=documents, stream=stream)).headers
        revision = gateway.services.policies.current().revision
        assert headers["x-request-id"] == headers["x-tidegate-request-id"]
        assert headers["x-tidegate-policy"] == f"dev/default@{revision}"
        assert int(headers["x-tidegate-prompt-tokens"]) > 10
        assert headers["x-tidegate-documents-kept"] == "2"


def test_text_survives_encoding(start: Any, ask: Callable[..., Any]) -> None:
    """Quotes, line breaks, NUL and Chinese come through as they are, streamed or not."""
    text = 'a"b\\c\n\td\x00e 你好，世界 🙂 \x85\u2028\u2029\x0b'
    with start(scripts=itertools.repeat(list(text.encode()))) as gateway:
        streamed = gateway.post(ask(max_tokens=100, stream=True))
        got = events(streamed)
        whole = gateway.post(ask(max_tokens=100)).json()
    assert text_of(got) == whole["choices"][0]["message"]["content"] == text
    assert "\ufffd" not in text_of(got)
    assert len(streamed.text.splitlines()) == len(streamed.text.split("\n")) - 1


def test_unfinished_character(start: Any, ask: Callable[..., Any]) -> None:
    """A character cut off by max_tokens is treated alike with and without streaming, and counted (TGI#131)."""
    with start() as gateway:
        pieces = [gateway.runner.vocabulary.piece(b) for b in (b"H", b"i", b" ", b"\xf0\x9f\x98")]
        gateway.runner._scripts = itertools.repeat(pieces)
        got = events(gateway.post(ask(max_tokens=4, **USAGE)))
        whole = gateway.post(ask(max_tokens=4)).json()
    assert text_of(got) == whole["choices"][0]["message"]["content"]
    assert text_of(got) in ("Hi ", "Hi \ufffd")
    assert got[-2]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 4
    assert whole["choices"][0]["finish_reason"] == "length"


def test_stop_that_begins_in_sent_text(start: Any, ask: Callable[..., Any]) -> None:
    """A stop string over two pieces ends the text before it; nothing is repeated or taken back (Camelid#731)."""
    with start() as gateway:
        pieces = [gateway.runner.vocabulary.piece(b) for b in (b"ab<", b"><cd")]
        gateway.runner._scripts = itertools.repeat(pieces)
        got = events(gateway.post(ask(max_tokens=50, stop=["><"], stream=True)))
    assert text_of(got) == "ab<"
    assert got[-2]["choices"][0]["finish_reason"] == "stop"


def test_empty_answer(start: Any, ask: Callable[..., Any]) -> None:
    """An answer that ends at once is still a whole stream: role, finish, usage, [DONE]."""
    with start(scripts=itertools.repeat([])) as gateway:
        got = events(gateway.post(ask(**USAGE)))
        whole = gateway.post(ask()).json()
    assert text_of(got) == whole["choices"][0]["message"]["content"] == ""
    assert got[0]["choices"][0]["delta"]["role"] == "assistant"
    assert got[-3]["choices"][0]["finish_reason"] == "stop"
    assert got[-1] == "[DONE]"


def test_error_under_way(start: Any, ask: Callable[..., Any], logs: Callable[[], Any]) -> None:
    """An engine that fails at token 5: an error event with the report, then the end; counted (llama.cpp#16109)."""
    with start(raise_at_token=5) as gateway:
        response = gateway.post(ask(**USAGE))
        assert response.status_code == 200
        got = events(response)
        assert gateway.metric('tidegate_requests_total{model="chat",outcome="failed"') == 1
    assert len(text_of(got[:-1])) == 4
    assert all(e["choices"][0]["finish_reason"] is None for e in got[:-1])
    assert got[-1]["error"]["code"] == "server_error"
    assert got[-1]["error"]["request_id"] == response.headers["x-request-id"]
    assert "RuntimeError" not in response.text
    assert got[-1]["budget_report"]["outcome"] == "failed"
    (line,) = [entry for entry in logs() if entry["event"] == "request"]
    assert (line["outcome"], line["level"]) == ("failed", "error")


def test_error_before_the_first_token(start: Any, ask: Callable[..., Any]) -> None:
    """The same failure at the first token is an HTTP status, streamed or not."""
    with start(raise_at_token=1) as gateway:
        for stream in (False, True):
            response = gateway.post(ask(stream=stream))
            assert response.status_code == 500
            assert response.headers["x-should-retry"] == "false"
            assert response.json()["budget_report"]["outcome"] == "failed"


@pytest.mark.parametrize("detail", ["full", "summary", "none"])
def test_report_detail(gateway: Any, ask: Callable[..., Any], detail: str) -> None:
    """Streams and JSON carry the report that was asked for: whole, as counts, or not at all."""
    body = ask(documents=[{"text": "Hi is a greeting."}], budget={"report": detail})
    streamed = events(gateway.post(body | USAGE))[-2]
    for answer in (streamed, gateway.post(body).json()):
        assert ("budget_report" in answer) == (detail != "none")
        if detail != "none":
            context = answer["budget_report"]["context"]
            assert (len(context["documents"]), context["counts"] is None) == ((1, True), (0, False))[
                detail == "summary"
            ]


def test_large_report_is_cut_to_its_summary(start: Any, ask: Callable[..., Any]) -> None:
    """A report over 32 KiB goes into a stream as counts, marked; as JSON it is whole."""
    edit = lambda policy: policy.replace("max_documents: 20", "max_documents: 500")  # noqa: E731
    documents = [{"id": f"doc-{n}", "text": f"w{n} " * 3} for n in range(300)]
    with start(policy_edit=edit) as gateway:
        report = events(gateway.post(ask(documents=documents, **USAGE)))[-2]["budget_report"]
        whole = gateway.post(ask(documents=documents)).json()["budget_report"]
    assert len(json.dumps(whole)) > STREAM_LIMIT_BYTES > len(json.dumps(report))
    assert (report["truncated"], whole["truncated"]) == (True, False)
    assert sum(report["context"]["counts"]["documents"].values()) == len(whole["context"]["documents"]) == 300
    assert report["cost"]["currency"] == "unit"

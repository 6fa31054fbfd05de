"""The official `openai` client, unchanged, against the real HTTP surface."""

import itertools
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

HELLO = [{"role": "user", "content": "Say hi"}]


def greedy(gateway: Any, **fields: Any) -> Any:
    """One completion at temperature 0."""
    with gateway.openai() as client:
        return client.chat.completions.create(model="chat", messages=HELLO, temperature=0, **fields)


def test_chat(gateway: Any) -> None:
    """A completion has text, a finish reason, a usage that adds up, and the report as an extra field."""
    answer = greedy(gateway, max_tokens=8)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert len(answer.choices[0].message.content) == 8
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.budget_report["outcome"] == "length"
    assert answer._request_id == answer.budget_report["request_id"]


def test_stream(gateway: Any) -> None:
    """Deltas join to the text of the same request without streaming; the role comes first, the reason last."""
    whole = greedy(gateway, max_tokens=8).choices[0].message.content
    with gateway.openai() as client:
        stream = client.chat.completions.create(model="chat", messages=HELLO, temperature=0, max_tokens=8, stream=True)
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert chunks[-1].budget_report["resources"]["output_tokens"] == 8
    assert all(c.usage is None for c in chunks)


def test_include_usage(gateway: Any) -> None:
    """Exactly one chunk without choices, after the finish chunk, has the usage; it equals the one without streaming."""
    usage = greedy(gateway, max_tokens=4).usage
    with gateway.openai() as client:
        chunks = list(
            client.chat.completions.create(
                model="chat", messages=HELLO, max_tokens=4, stream=True, stream_options={"include_usage": True}
            )
        )
    assert [bool(c.choices) for c in chunks] == [True] * (len(chunks) - 1) + [False]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert all(c.usage is None for c in chunks[:-1])
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (usage.prompt_tokens, 4)
    assert chunks[-1].budget_report["outcome"] == "length"


async def test_async_client(gateway: Any) -> None:
    """The asynchronous client gets the same, streamed or not."""
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="tg-dev-key", max_retries=0) as client:
        fields: Any = {"model": "chat", "messages": HELLO, "temperature": 0, "max_tokens": 5}
        whole = await client.chat.completions.create(**fields)
        stream = await client.chat.completions.create(**fields, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_stop(start: Any, stream: bool) -> None:
    """Text ends before the stop string, with reason `stop`; the stop string over two tokens is seen too."""
    with start(scripts=itertools.repeat(list(b"one two three"))) as gateway, gateway.openai() as client:
        answer = client.chat.completions.create(model="chat", messages=HELLO, stop=[" three", "o t"], stream=stream)
        text, reason = (
            _text_and_reason(answer)
            if stream
            else (
                answer.choices[0].message.content,
                answer.choices[0].finish_reason,
            )
        )
    assert (text, reason) == ("one tw", "stop")


def _text_and_reason(stream: Any) -> tuple[str, str]:
    chunks = [c for c in stream if c.choices]
    return "".join(c.choices[0].delta.content or "" for c in chunks), chunks[-1].choices[0].finish_reason


def test_seed(gateway: Any) -> None:
    """The same seed draws the same text, another seed another."""
    with gateway.openai() as client:
        texts = [
            client.chat.completions.create(model="chat", messages=HELLO, seed=seed, max_tokens=16)
            .choices[0]
            .message.content
            for seed in (7, 7, 8, -1)
        ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_max_tokens(gateway: Any) -> None:
    """`max_tokens` and its successor bound the answer; the smaller of both wins, and what is granted is told."""
    assert greedy(gateway, max_completion_tokens=3).usage.completion_tokens == 3
    assert greedy(gateway, max_completion_tokens=3, max_tokens=2).usage.completion_tokens == 2
    answer = greedy(gateway, max_tokens=10**9)
    assert answer.usage.completion_tokens == 2000
    context = answer.budget_report["context"]
    assert (context["requested_output_tokens"], context["granted_output_tokens"]) == (10**9, 2000)


def test_models(gateway: Any) -> None:
    """Listing and retrieving models; the bounds are extra fields."""
    with gateway.openai() as client:
        (model,) = client.models.list().data
        assert client.models.retrieve("chat") == model
    assert (model.id, model.max_context_tokens, model.max_output_tokens) == ("chat", 8192, 2000)


def test_extra_body(gateway: Any) -> None:
    """Documents, budget and the sampling extras go through `extra_body`."""
    answer = greedy(
        gateway,
        max_tokens=2,
        extra_body={"documents": [{"text": "Hi is a greeting."}], "top_k": -1, "ignore_eos": True},
    )
    (document,) = answer.budget_report["context"]["documents"]
    assert document["index"] == 0


@pytest.mark.parametrize(
    ("fields", "key", "error", "code", "param"),
    [
        ({"messages": []}, "dev", openai.BadRequestError, "invalid_request", "messages"),
        ({"max_tokens": 0}, "dev", openai.BadRequestError, "invalid_request", "max_tokens"),
        (
            {"messages": [{"role": "user", "content": "x" * 9000}]},
            "dev",
            openai.BadRequestError,
            "context_length_exceeded",
            "messages",
        ),
        ({}, "nobody", openai.AuthenticationError, "invalid_api_key", None),
        ({}, "expired", openai.AuthenticationError, "invalid_api_key", None),
        ({"model": "gpt-x"}, "dev", openai.NotFoundError, "model_not_found", "model"),
    ],
)
def test_exception_classes(gateway: Any, fields: Any, key: str, error: type, code: str, param: str | None) -> None:
    """Every error arrives as the client's own class, with code, param and request id."""
    body: Any = {"model": "chat", "messages": HELLO} | fields
    with gateway.openai(key) as client, pytest.raises(error) as caught:
        client.chat.completions.create(**body)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.request_id == caught.value.body["request_id"]


def test_permission_error(start: Any) -> None:
    """A key that is for other models is told so."""
    with (
        start(
            policy_edit=lambda text: text.replace("models: [chat]", "models: [big]").replace(
                "models:\n  chat:", "models:\n  big: {id: other}\n  chat:"
            )
        ) as gateway,
        gateway.openai("chatless") as client,
    ):
        with pytest.raises(openai.PermissionDeniedError) as caught:
            client.chat.completions.create(model="chat", messages=HELLO)  # type: ignore[arg-type]
        assert client.models.list().data == []
    assert caught.value.code == "not_allowed"
    assert "big" in str(caught.value)


def test_broken_stream_raises(start: Any) -> None:
    """An error after the first token is raised by the client's iterator, never shown as an end."""
    with start(raise_at_token=3) as gateway, gateway.openai() as client:
        stream = client.chat.completions.create(model="chat", messages=HELLO, stream=True)  # type: ignore[call-overload]
        seen = [next(stream) for _ in range(3)]
        with pytest.raises(openai.APIError) as caught:
            next(stream)
    assert caught.value.code == "server_error"
    assert all(chunk.choices[0].finish_reason is None for chunk in seen)

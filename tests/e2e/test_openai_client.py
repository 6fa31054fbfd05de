"""The official openai client, unchanged, against the real model."""

import openai
import pytest
from openai import OpenAI

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]


def test_chat_answers_with_usage_and_report(client: OpenAI) -> None:
    """One completion: text, finish reason, usage, and the report as an extra field, agreeing on the numbers."""
    answer = client.chat.completions.create(model="chat", messages=QUESTION, max_tokens=12, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    report = answer.budget_report
    assert report["resources"]["prompt_tokens"] == answer.usage.prompt_tokens
    assert report["resources"]["output_tokens"] == answer.usage.completion_tokens
    assert 0 < report["resources"]["ttft_ms"] <= report["resources"]["total_ms"]


def test_stream_equals_the_whole_answer(client: OpenAI) -> None:
    """Greedy: the deltas join to the text of the JSON answer; the usage chunk is the last and has no choices."""
    whole = client.chat.completions.create(model="chat", messages=QUESTION, max_tokens=24, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model="chat",
            messages=QUESTION,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].budget_report["resources"]["prompt_tokens"] == whole.usage.prompt_tokens


def test_stop_string_ends_the_answer_and_is_not_in_it(client: OpenAI) -> None:
    """What the greedy answer goes on with is cut at the stop string."""
    whole = client.chat.completions.create(model="chat", messages=QUESTION, max_tokens=24, temperature=0)
    text = whole.choices[0].message.content or ""
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    answer = client.chat.completions.create(model="chat", messages=QUESTION, max_tokens=24, temperature=0, stop=stop)
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_seed_repeats_a_draw(client: OpenAI) -> None:
    """The same seed gives the same text; of six other seeds, at least one differs."""

    def draw(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model="chat", messages=QUESTION, max_tokens=12, temperature=1.0, top_p=0.95, seed=seed
        )
        return answer.choices[0].message.content

    first = draw(7)
    assert draw(7) == first
    assert any(draw(seed) != first for seed in range(100, 106))


def test_max_tokens_bounds_the_answer(client: OpenAI) -> None:
    """Exactly as many as granted, finish reason `length`; both spellings of the parameter."""
    for name in ("max_tokens", "max_completion_tokens"):
        answer = client.chat.completions.create(
            model="chat", messages=QUESTION, temperature=0, extra_body={"ignore_eos": True}, **{name: 5}
        )
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5
        assert answer.choices[0].finish_reason == "length"


def test_the_second_same_request_finds_its_prefix_in_kv(client: OpenAI) -> None:
    """All full blocks but the last token's come from the cache."""
    messages = [{"role": "user", "content": "Count the words of this sentence, slowly. " * 8}]
    first, second = (
        client.chat.completions.create(model="chat", messages=messages, max_tokens=2, temperature=0) for _ in range(2)
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert second.usage.prompt_tokens - 17 <= cached < second.usage.prompt_tokens
    assert second.choices[0].message.content == first.choices[0].message.content


def test_models_lists_the_model_with_its_bounds(client: OpenAI) -> None:
    """The default model is called `chat` and holds 8,192 tokens."""
    models = client.models.list().data
    assert [model.id for model in models] == ["chat"]
    assert 8192 in models[0].model_dump().values()


@pytest.mark.parametrize(
    ("kwargs", "error", "code"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found"),
        ({"messages": []}, openai.BadRequestError, "invalid_request"),
        ({"extra_body": {"budget": {"max_prompt_tokens": 8}}}, openai.BadRequestError, "context_length_exceeded"),
        ({"extra_body": {"budget": {"max_tokens": 8}}}, openai.BadRequestError, "invalid_request"),
        ({"n": 2}, openai.BadRequestError, "invalid_request"),
    ],
)
def test_errors_are_the_clients_exception_classes(
    client: OpenAI, kwargs: dict[str, object], error: type[openai.APIStatusError], code: str
) -> None:
    """Status and code as OpenAI's client expects them; the message says something."""
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": "chat", "messages": QUESTION, **kwargs})  # type: ignore[call-overload]
    assert caught.value.code == code
    assert len(caught.value.message) > 20


def test_a_wrong_key_is_an_authentication_error(client: OpenAI) -> None:
    """401 as the client's own exception."""
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(model="chat", messages=QUESTION)

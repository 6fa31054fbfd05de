"""The reported faults that come as a request body: each is sent as it stands, and answered."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

CASES = Path(os.environ.get("TIDEGATE_CASES", Path(__file__).parents[3] / "shared" / "cases")) / "reported_faults.jsonl"


def expand(value: Any) -> Any:
    """The file's shorthand for long texts, written out."""
    if isinstance(value, list):
        return [expand(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$repeat" in value:
        text, times = value["$repeat"]
        return text * times
    if "$concat" in value:
        return "".join(expand(part) for part in value["$concat"])
    return {key: expand(item) for key, item in value.items()}


def cases() -> list[Any]:
    """Every fault whose input is a chat request."""
    if not CASES.is_file():
        return [pytest.param(None, marks=pytest.mark.skip(f"{CASES} is not there: set TIDEGATE_CASES to its folder"))]
    faults = [json.loads(line) for line in CASES.read_text("utf-8").splitlines()]
    found = [fault for fault in faults if fault["input"]["type"] == "chat_request"]
    return [pytest.param(fault, id=f"{fault['n']}-{fault['source']}") for fault in found]


def passages(given: Any) -> list[dict[str, Any]]:
    """The passages of a case; where it only says how many and how long, made up."""
    if isinstance(given, list):
        return given
    return (
        [{"text": f"Passage {n} speaks of returns. " + "Refunds take time. " * 15} for n in range(20)] if given else []
    )


@pytest.mark.parametrize("fault", cases())
@pytest.mark.parametrize("stream", [False, True])
def test_is_answered(gateway: Any, fault: Any, stream: bool) -> None:
    """A 200 whose counts agree, with every message's text in the prompt where it was not dropped by the budget."""
    body = {"max_tokens": 4} | expand(fault["input"]["body"]) | {"stream": stream}
    body["documents"] = passages(fault["input"].get("passages"))
    if bound := fault["input"].get("budget_tokens"):
        body["budget"] = {"max_prompt_tokens": bound}
    response = gateway.post(body)
    assert response.status_code == 200, response.text
    planned = gateway.post(body, path="/v1/budget/plan").json()
    context = planned["budget_report"]["context"]
    assert response.headers["x-tidegate-prompt-tokens"] == str(context["tokens_after"])
    assert context["tokens_after"] <= (bound or 8192)
    assert [turn["index"] for turn in context["turns"]] == list(range(len(body["messages"])))
    kept = [turn["index"] for turn in context["turns"] if turn["fate"] == "kept"]
    sent = "".join(message["content"] for message in planned["messages"])
    for index in kept:
        content = body["messages"][index].get("content") or ""
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        assert text in sent

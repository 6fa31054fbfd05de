"""Faults that other projects reported about counting and cutting text, as they would show here."""

import json
import os
from pathlib import Path

import pytest

CASES = Path(os.environ.get("TIDEGATE_CASES", Path(__file__).parents[4] / "shared" / "cases")) / "reported_faults.jsonl"


def fault(number):
    """The input of a reported fault."""
    if not CASES.exists():
        pytest.skip(f"no reported faults at {CASES}; set TIDEGATE_CASES")
    cases = {case["n"]: case for case in map(json.loads, CASES.read_text(encoding="utf-8").splitlines())}
    return cases[number]["input"]


def text(value):
    """A string as the cases spell it: as it is, repeated, concatenated, or as text parts."""
    if isinstance(value, dict) and "$repeat" in value:
        return text(value["$repeat"][0]) * value["$repeat"][1]
    if isinstance(value, dict) and "$concat" in value:
        return "".join(map(text, value["$concat"]))
    if isinstance(value, list):
        return "".join(part["text"] for part in value)
    return value or ""


@pytest.fixture(params=["gpt2", "qwen", "llama2", "unigram"])
def tokenizer(request, make_tokenizer):
    """A tokenizer of each shape."""
    return make_tokenizer(request.param)


def count(tokenizer, messages):
    """Tokens of the prompt for `messages`."""
    segments = tokenizer.render(messages)
    return sum(len(tokenizer.encode_control(s.text) if s.control else tokenizer.encode(s.text)) for s in segments)


def test_17_control_tokens_mentioned_in_text(tokenizer, say):
    """They are counted and encoded as text, in question and passage, and never become control tokens."""
    case = fault(17)
    texts = [message["content"] for message in case["body"]["messages"]] + [p["text"] for p in case["passages"]]
    plain = count(tokenizer, [say("user", "x")]) - tokenizer.count("x")
    assert count(tokenizer, [say("user", *texts)]) == plain + sum(map(tokenizer.count, texts))
    unknown = set(tokenizer.encode_control("<unk>"))
    assert all((tokenizer.control_ids - unknown).isdisjoint(tokenizer.encode(one)) for one in texts)


@pytest.mark.parametrize("template", ["chatml", "qwen", "llama", "mistral", "gemma", "deepseek", None])
def test_19_a_longer_conversation_never_counts_less(make_tokenizer, say, template):
    """Whatever the shape of the message that is added."""
    tokenizer = make_tokenizer("qwen", template)
    messages = [
        say(m["role"], text(m["content"]), calls=m.get("tool_calls", ()), answers=m.get("tool_call_id"))
        for m in fault(19)["messages"]
    ]
    counts = [count(tokenizer, messages[:k]) for k in range(1, len(messages) + 1)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("number", [5, 21, 23, 39])
def test_a_cut_by_offsets_is_a_strict_prefix(tokenizer, number):
    """The text up to the last token that a budget allows encodes to UTF-8, is a prefix, and is cut at a character."""
    case = fault(number)
    whole = text(case["text"] if "text" in case else case["messages"][0]["content"])
    ends = [end for _, end in tokenizer.offsets(whole)]
    for budget in case.get("budgets", [case.get("budget_tokens")]):
        cut = whole[: ends[budget - 1]] if budget <= len(ends) else whole
        assert whole.startswith(cut)
        assert cut.encode().decode() == cut
        assert tokenizer.count(cut) <= len(ends)


def test_49_a_call_without_content(make_tokenizer, say):
    """Absent and empty content are one thing; the call is in the prompt."""
    [_, asked, result, _] = fault(49)["body"]["messages"]
    for template in ("chatml", "qwen", "llama", "mistral", "deepseek", "gemma", None):
        tokenizer = make_tokenizer("qwen", template)
        ends = [say("tool", result["content"], answers=result["tool_call_id"])]
        prompts = [
            "".join(
                s.text
                for s in tokenizer.render([say("user", "secret?"), say("assistant", *content, calls=calls), *ends])
            )
            for content in ([], [""])
            for calls in [asked["tool_calls"]]
        ]
        assert prompts[0] == prompts[1]
        assert "get_secret" in prompts[0]
        assert "opening hours" in prompts[0]


def test_53_system_messages_in_any_place(make_tokenizer, say):
    """All of them are in the prompt, in order."""
    body = fault(53)["body"]["messages"]
    for template in ("chatml", "qwen", "llama", "mistral", "deepseek", "gemma", None):
        whole = "".join(
            s.text for s in make_tokenizer("qwen", template).render([say(m["role"], m["content"]) for m in body])
        )
        places = [whole.index(rule) for rule in ("Rule one.", "Rule two.", "Rule three.")]
        assert places == sorted(places)

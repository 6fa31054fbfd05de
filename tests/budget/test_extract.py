"""Passages that an app pasted into a message: found, taken out, governed like documents."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budget.extract import extract_documents
from budget.patterns import find_pasted
from budget.plan import plan
from policies.schema import ContextPolicy

RETURNS = "Returns are accepted within thirty days. Books are excluded."
TOWER = "The town hall was built in 1820. It has a tower. The tower holds a clock."
RETURNS_ZH = "博物馆商店接受退货。退款期为三十天。"
TOWER_ZH = "市政厅建于一八二〇年。它有一座塔。"
CUSTOM = r"(?s)@@(?P<id>\w+)\|(?P<title>[^|]*)\|(?P<text>.*?)@end"

PASTED = [
    ("numbered", f"Use these:\n[1] {RETURNS}\n[2] {TOWER}\n\nHow long?", "Use these:\n\nHow long?", ("1", "2")),
    ("numbered", f"1. {RETURNS}\n2. {TOWER}\nHow long?", "How long?", ("1", "2")),
    ("numbered", f"1、{RETURNS_ZH}\n2、{TOWER_ZH}\n问题：退款期多久？", "问题：退款期多久？", ("1", "2")),
    ("numbered", f"多久？\n【1】{RETURNS_ZH}\n【2】{TOWER_ZH}", "多久？", ("1", "2")),
    ("numbered", f"文档0：{RETURNS_ZH}\n\n文档1：{TOWER_ZH}\n\n多久？", "多久？", ("0", "1")),
    ("numbered", f"①{RETURNS_ZH}\n②{TOWER_ZH}\n多久？", "多久？", ("1", "2")),
    ("tags", f'<doc id="a">{RETURNS}</doc>\n<doc id=b title="T">{TOWER}</doc>\nHow long?', "How long?", ("a", "b")),
    ("tags", f"<docs>\n<文档>{RETURNS_ZH}</文档>\n<文档>{TOWER_ZH}</文档>\n</docs>多久？", "多久？", (None, None)),
    ("fenced", f"```\n{RETURNS}\n```\n```text Town\n{TOWER}\n```\nHow long?", "How long?", (None, None)),
    ("fenced", f'"""\n{RETURNS_ZH}\n"""\n"""\n{TOWER_ZH}\n"""\n多久？', "多久？", (None, None)),
    (CUSTOM, f"How long? @@a|T|{RETURNS}@end @@b||{TOWER}@end", "How long?", ("a", "b")),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "content", "rest", "ids"), PASTED)
@pytest.mark.parametrize("given_documents", [[], ["The river is long."]])
def test_pasted_passages_are_governed_like_documents(
    ask, ports, invariants, shows, pattern, content, rest, ids, given_documents
):
    """Each once, behind the request's own; the message keeps the rest."""
    context = ContextPolicy(extract_documents=pattern)
    request = ask([("system", "Be brief."), ("user", content)], given_documents, context=context)
    found = plan(request, ports)
    extracted = extract_documents(request)
    invariants(extracted, found, ports)
    assert [d.index for d in found.report.documents] == list(range(len(given_documents) + 2))
    assert tuple(d.id for d in found.report.documents[len(given_documents) :]) == ids
    assert extracted.messages[1].content == rest
    texts = (RETURNS, TOWER) if RETURNS in content else (RETURNS_ZH, TOWER_ZH)
    assert all(shows(found).count(text) == 1 for text in texts)
    tight = plan(ask(request.messages[:0] or [("user", content)], context=context, max_document_tokens=1), ports)
    assert {d.fate for d in tight.report.documents} == {"dropped"}
    assert not any(text in shows(tight) for text in texts)


@pytest.mark.parametrize(
    ("pattern", "content"),
    [
        ("numbered", f"[1] {RETURNS}\nHow long?"),
        ("numbered", f"[2] {RETURNS}\n[3] {TOWER}\nHow long?"),
        ("numbered", "It grew by\n1.5 percent and\n2.5 percent."),
        ("numbered", f"[1] {RETURNS}\n[2] {TOWER}"),
        ("tags", f"<doc>{RETURNS}</doc> How long?"),
        ("tags", f"<doc>{RETURNS}<doc>{TOWER} How long?"),
        ("fenced", "```python\nx = 1\n```\n```js\ny = 2\n```\nWhat do they do?"),
        (CUSTOM, f"@@a||{RETURNS}@end How long?"),
    ],
)
def test_what_is_no_list_of_passages_stays(ask, ports, pattern, content):
    """Fewer than two passages, code, or nothing left to ask."""
    report = plan(ask([("user", content)], context=ContextPolicy(extract_documents=pattern)), ports).report
    assert report.documents == []
    assert report.tokens_before == report.tokens_after


def test_system_texts_too_but_not_their_plain_lists(ask):
    """Numbered rules are instructions; bracketed passages are not."""
    rules = "Rules:\n1. Be brief.\n2. Never mention prices."
    context = ContextPolicy(extract_documents="numbered")
    chat = [("system", rules), ("system", f"Sources:\n[1] {RETURNS}\n[2] {TOWER}"), ("user", "How long?")]
    request = extract_documents(ask(chat, context=context))
    assert [m.content for m in request.messages] == [rules, "Sources:", "How long?"]
    assert [d.text for d in request.documents] == [RETURNS, TOWER]


def test_other_messages_stay(ask):
    """Earlier turns are history, pinned ones are mandatory, and with planning off nothing moves."""
    text = f"[1] {RETURNS}\n[2] {TOWER}\nHow long?"
    context = ContextPolicy(extract_documents="numbered")
    old = ask([("user", text), ("assistant", text), ("user", "And on Sunday?")], context=context)
    pinned = ask([{"role": "user", "content": text, "pinned": True}], context=context)
    off = ask([("user", text)], context=ContextPolicy(extract_documents="numbered", planning="off"))
    for request in (old, pinned, off, ask([("user", text)])):
        assert extract_documents(request) == request


def test_a_nested_list_belongs_to_its_passage():
    """Only markers of one style count."""
    text = "[1] Steps:\n1. Open it.\n2. Close it.\n[2] Other.\n\nWhich?"
    assert [p.text for p in find_pasted(text, "numbered", is_system=False)] == [
        "Steps:\n1. Open it.\n2. Close it.",
        "Other.",
    ]


@pytest.mark.parametrize("pattern", ["numbered", "tags", "fenced"])
@pytest.mark.parametrize(
    "unit",
    ["[1] a\n", "1. a\n2. b\n", "<doc>", "<doc ", "<doc>a</doc>", "<doc><title>", "```\n", "```", " ", "[", "passage "],
)
def test_shipped_patterns_are_linear(pattern, unit):
    """Half a megabyte of anything ends soon."""
    started = time.thread_time()
    find_pasted(unit * (500_000 // len(unit)), pattern, is_system=False)
    assert time.thread_time() - started < 5


@pytest.mark.parametrize("content", ["x" * 4000 + "!", "(" * 300_000])
def test_a_policys_expression_cannot_hang(content):
    """A text on which it backtracks without end, or that is too long, stays as it is."""
    assert find_pasted(content, r"(?P<text>(?:x+x+)+y)", is_system=False) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_invariants_hold_with_pasted_passages(ask, ports, invariants, texts, data):
    """Sums, bounds and fates, whatever was pasted; every character of a passage is in exactly one place."""
    bodies = data.draw(st.lists(texts, min_size=0, max_size=5))
    pattern = data.draw(st.sampled_from(["numbered", "tags", "fenced", CUSTOM]))
    wrap = {
        "numbered": lambda n, text: f"[{n}] {text}",
        "tags": lambda n, text: f"<doc id='{n}'>{text}</doc>",
        "fenced": lambda n, text: f"```\n{text}\n```",
        CUSTOM: lambda n, text: f"@@{n}||{text}@end",
    }[pattern]
    content = "\n".join([*(wrap(n + 1, text) for n, text in enumerate(bodies)), "", "What is it?"])
    bound = data.draw(st.one_of(st.none(), st.integers(0, 200)))
    context = ContextPolicy(extract_documents=pattern)
    request = ask([("user", content)], ["A river."], context=context, max_document_tokens=bound)
    found = plan(request, ports)
    invariants(extract_documents(request), found, ports)
    assert found == plan(request, ports) or found.report == plan(request, ports).report
    assert "What is it?" in found.messages[-1].content

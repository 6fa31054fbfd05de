"""Which turns stay, and what is kept of those that do not."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget.errors import ContextLengthExceeded
from budget.history import chunk_size, classify
from budget.plan import plan
from budget.types import Message
from policies.schema import ContextPolicy, HistorySection, SectionLimit, Sections


def with_history(**changes):
    """The default policy but for its history section."""
    return ContextPolicy(sections=Sections(history=HistorySection(**changes)))


def kept(report):
    """Indices of the turns that stay."""
    return [turn.index for turn in report.turns if turn.fate == "kept"]


def fates(report):
    """Fate and reason of every turn."""
    return [(turn.fate, turn.reason) for turn in report.turns]


def fitted(request, ports):
    """The request and its plan; None where what must stay does not fit."""
    try:
        return request, plan(request, ports)
    except ContextLengthExceeded:
        return None


@pytest.mark.parametrize("number", [3, 9, 13, 19, 49])
def test_calls_and_results_stay_together_at_any_budget(ask, case, ports, invariants, number):
    """Reported faults: no result without its call, no call without its results, the last message always there."""
    messages = case(number).get("messages") or case(number)["body"]["messages"]
    whole = plan(ask(messages), ports).report.tokens_before
    limits = range(5, whole + 2, max(whole // 60, 1))
    fits = [found for limit in limits if (found := fitted(ask(messages, limit=limit), ports))]
    for request, found in fits:
        invariants(request, found, ports)
        assert found.report.turns[-1].fate == "kept"
    assert fits


def test_system_text_is_first_and_only_turns_go(ask, case, ports, shows):
    """Reported fault 7: the system message is no ordinary oldest message."""
    messages = case(7)["messages"]
    found = plan(ask(messages, limit=70), ports)
    assert found.messages[0].role == "system"
    assert found.messages[0].content == "Answer only in French."
    assert found.report.turns[-1].fate == "kept"
    assert any(turn.fate == "dropped" for turn in found.report.turns)
    assert "last question" in shows(found)


def test_late_system_texts_are_kept_in_order(ask, case, ports):
    """Reported fault 53: all of them, first, at any budget that holds them."""
    messages = case(53)["body"]["messages"]
    plans = [one[1] for limit in range(30, 80) if (one := fitted(ask(messages, limit=limit), ports))]
    for found in plans:
        system = [m.content for m in found.messages if m.role == "system"]
        assert system == ["Rule one.", "Rule two.", "Rule three."]
        assert [m.role for m in found.messages[:3]] == ["system"] * 3
    assert plans


def test_text_that_cannot_be_shortened_ends_in_an_error(ask, case, ports):
    """Reported fault 5: no endless loop for zero-width text and emoji."""
    with pytest.raises(ContextLengthExceeded, match="needs"):
        plan(ask(case(5)["messages"], limit=1), ports)


def test_one_more_message_never_counts_less(ask, case, ports):
    """Reported fault 19: tool calls, null content and parts are all counted."""
    messages = case(19)["messages"]
    counts = [plan(ask(messages[:end]), ports).report.tokens_before for end in (1, 2, 4, 5, 6)]
    assert counts == sorted(counts)
    assert len(set(counts)) == len(counts)


CHAT = [
    ("user", "Hello!"), ("assistant", "Hello, how can I help you?"),
    ("user", "Tell me about the museum in Paris and the river."), ("assistant", "It stands at the river. " * 4),
    ("user", "Thanks a lot!"), ("assistant", "You're welcome."),
    ("user", "And the opening hours of the old town hall?"), ("assistant", "From nine to five, every day. " * 4),
    ("user", "谢谢你！"), ("assistant", "不客气。"),
    ("user", "What does a ticket cost?"), ("assistant", "Six euros."),
    ("user", "And for children?"),
]  # fmt: skip


def test_all_is_kept_where_all_fits(ask, ports):
    """Small talk too: a prefix that is in KV is worth more than a few tokens."""
    report = plan(ask(CHAT), ports).report
    assert {fate for fate, _ in fates(report)} == {"kept"}
    assert report.tokens_after == report.tokens_before


def test_small_talk_goes_first(ask, ports):
    """One token too few takes the thanks and greetings, in both languages, and nothing else."""
    whole = plan(ask(CHAT), ports).report.tokens_before
    report = plan(ask(CHAT, limit=whole - 1), ports).report
    assert [turn.index for turn in report.turns if turn.reason == "small_talk"] == [0, 1, 4, 5, 8, 9]
    assert kept(report) == [2, 3, 6, 7, 10, 11, 12]


def test_small_talk_is_old_talk_where_the_policy_says_so(ask, ports):
    """Without the switch, the oldest turns go."""
    whole = plan(ask(CHAT), ports).report.tokens_before
    report = plan(ask(CHAT, limit=whole - 1, context=with_history(drop_small_talk=False)), ports).report
    assert report.turns[0].reason == "over_budget"
    assert report.turns[4].fate == "kept"


def test_recent_turns_outlast_older_ones(ask, ports):
    """The last turns before the question go last, and say so."""
    plans = [one[1] for limit in range(20, 250, 3) if (one := fitted(ask(CHAT, limit=limit), ports))]
    with_older = [found.report for found in plans if any(i < 10 for i in kept(found.report))]
    assert 0 < len(with_older) < len(plans)
    for report in with_older:
        assert fates(report)[10:12] == [("kept", "recent")] * 2


def test_the_number_of_recent_turns_is_the_policys(ask, ports):
    """Counted in messages, widened to whole exchanges."""
    reasons = {}
    for count in (0, 1, 4):
        report = plan(ask(CHAT, context=with_history(keep_last_turns=count)), ports).report
        reasons[count] = [turn.index for turn in report.turns if turn.reason == "recent"]
    assert reasons == {0: [], 1: [10, 11], 4: [8, 9, 10, 11]}


def test_history_stays_within_its_share(ask, ports):
    """A bound of the section, though the prompt has room."""
    for section in ({"max_tokens": 60}, {"max_share": 0.06}):
        report = plan(ask(CHAT, limit=1000, context=with_history(**section)), ports).report
        history = next(s for s in report.sections if s.name == "history")
        assert 0 < history.tokens_after <= history.limit_tokens == 60


def test_what_is_dropped_changes_rarely(ask, ports):
    """Hysteresis: as a conversation grows, the oldest kept turn moves in steps, so that prefixes stay in KV."""
    numbers = [(("user", f"What is number {n} in the list?"), ("assistant", f"It is {n * 7}.")) for n in range(40)]
    turns = [*itertools.chain(*numbers)]
    firsts = []
    for end in range(21, 80, 2):
        report = plan(ask([*turns[:end][: end - 1], ("user", "And the next?")], limit=300), ports).report
        firsts.append(kept(report)[0])
    assert firsts == sorted(firsts)
    assert len(set(firsts)) <= len(firsts) / 2


def test_chunks_only_grow():
    """A power of two, about a third of the conversation."""
    sizes = [chunk_size(n) for n in range(200)]
    assert sizes == sorted(sizes)
    assert (sizes[3], sizes[6], sizes[12], sizes[100]) == (1, 2, 4, 32)


def test_pinned_turns_stay_with_their_question(ask, ports):
    """An answer is pinned: it and the turn it answers outlast everything."""
    chat = [{"role": role, "content": text, "pinned": n == 3} for n, (role, text) in enumerate(CHAT)]
    report = plan(ask(chat, limit=120), ports).report
    assert fates(report)[2:4] == [("kept", "pinned")] * 2
    assert report.turns[3].class_ == "pinned"
    with pytest.raises(ContextLengthExceeded, match="history"):
        plan(ask(chat, limit=110), ports)


def test_facts_of_dropped_turns_are_kept_verbatim(ask, ports, shows):
    """A constraint, an order number and a preference; a question and an answer are no facts."""
    facts = ["Never mention prices.", "My order number is A-4821.", "我对花生过敏。"]
    filler = [("assistant", "The museum stands at the river, and it opens at nine. " * 5)]
    said = itertools.chain(*([("user", fact), *filler] for fact in facts))
    chat = [("system", "Help."), *said, ("user", "Where is it?")]
    found = plan(ask(chat, limit=110, context=with_history(keep_last_turns=0)), ports)
    assert [t.fate for t in found.report.turns] == ["kept", *["extracted", "dropped"] * 3, "kept"]
    for fact, turn in zip(facts, found.report.turns[1::2], strict=False):
        assert fact in found.messages[-1].content
        assert turn.tokens_after > 0
    assert shows(found).index("A-4821") < shows(found).index("Where is it?")


def test_a_corrected_fact_is_kept_in_its_newest_form(ask, ports, shows):
    """The older ones go as superseded."""
    chat = [
        ("user", "My order number is A-4821."), ("assistant", "Noted. " * 20),
        ("user", "Actually, my order number is A-4831."), ("assistant", "Noted. " * 20), ("user", "Where is it?"),
    ]  # fmt: skip
    found = plan(ask(chat, limit=70, context=with_history(keep_last_turns=0)), ports)
    assert "A-4831" in shows(found)
    assert "A-4821" not in shows(found)
    assert fates(found.report)[0] == ("dropped", "superseded")


def test_binding_facts_outlast_others_within_the_sections_bound(ask, ports, shows):
    """Room for one fact: the constraint stays, though it is older."""
    chat = [
        ("user", "Never mention prices."), ("assistant", "Fine. " * 30),
        ("user", "I live in Paris."), ("assistant", "Nice. " * 30), ("user", "Where to?"),
    ]  # fmt: skip
    sections = Sections(history=HistorySection(keep_last_turns=0), facts=SectionLimit(max_tokens=25))
    found = plan(ask(chat, limit=60, context=ContextPolicy(sections=sections)), ports)
    assert "Never mention prices." in shows(found)
    assert "I live in Paris." not in shows(found)


@pytest.mark.parametrize(
    ("text", "before", "expected"),
    [
        ("Thank you so much!", None, "small_talk"),
        ("好的，谢谢！", None, "small_talk"),
        ("Good morning", None, "small_talk"),
        ("你好", None, "small_talk"),
        ("No, that's all. Bye!", "Is there anything else I can help you with?", "small_talk"),
        ("Yes, thanks.", "Shall I book the table for two?", "context"),
        ("Thanks, the order number is 4821.", None, "fact"),
        ("谢谢，订单号是4821。", None, "fact"),
        ("Thanks, but never mention prices.", None, "fact"),
        ("I need help now, thanks.", None, "fact"),
        ("What's the address?", None, "context"),
        ("地址在哪里？", None, "context"),
        ("I prefer window seats.", None, "fact"),
        ("请不要提价格。", None, "fact"),
    ],
)
def test_classes(text, before, expected):
    """Small talk says nothing else; facts and answers are never small talk."""
    previous = None if before is None else Message("assistant", before)
    found = classify(Message("user", text), previous)
    assert found == expected or (expected == "context" and found == "fact")


def test_labelled_dialogues_are_classed_as_people_would(records):
    """User turns of real dialogues: small talk is found, and hardly ever a fact taken for it."""
    for lang in ("en", "zh"):
        found = []
        for dialogue in records("history_labels", 100):
            turns = [Message(turn["role"], turn["content"]) for turn in dialogue["turns"]]
            kinds = [classify(turn, turns[n - 1] if n else None) for n, turn in enumerate(turns)]
            labels = [turn["label"] for turn in dialogue["turns"]]
            said = zip(turns, labels, kinds, strict=True)
            found += [(label, kind) for turn, label, kind in said if turn.role == "user" and dialogue["lang"] == lang]
        small = [label for label, kind in found if kind == "small_talk"]
        facts = [kind for label, kind in found if label == "fact"]
        assert small.count("smalltalk") >= 0.9 * len(small)
        assert small.count("smalltalk") >= 0.75 * sum(label == "smalltalk" for label, _ in found)
        assert facts.count("small_talk") <= 0.01 * len(facts)
        assert facts.count("fact") >= 0.94 * len(facts)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), limit=st.integers(20, 400))
def test_more_room_never_keeps_fewer_turns(ask, ports, conversations, data, limit):
    """Turns go in one fixed order."""
    messages = data.draw(conversations)
    if one := fitted(ask(messages, limit=limit), ports):
        more = plan(ask(messages, limit=limit + data.draw(st.integers(1, 60))), ports).report
        assert set(kept(one[1].report)) <= set(kept(more))

"""The planner as a whole: bounds, sections, fates, reasons."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budget.errors import ContextLengthExceeded, InvalidConversation
from budget.plan import plan
from budget.ports import Ports
from budget.types import Segment
from policies.schema import (
    ContextPolicy,
    Dedupe,
    DocumentsSection,
    HistorySection,
    Rank,
    Render,
    SectionLimit,
    Sections,
    Trim,
)

QUESTION = [("system", "Be brief."), ("user", "What is the refund period of the museum shop?")]
PASSAGES = [
    "The museum shop takes goods back. The refund period is thirty days. Books are excluded.",
    "The town hall was built in 1820. It has a tower. The tower holds a clock.",
    "Trains leave every hour. The line was opened in 1900. It crosses two rivers.",
    "博物馆商店接受退货。退款期为三十天。书籍除外。",
]


def section(report, name):
    """One section of a report."""
    return next(s for s in report.sections if s.name == name)


def fates(report):
    """Fate and reason of every passage."""
    return [(d.fate, d.reason) for d in report.documents]


def test_all_of_it_fits(ask, ports, invariants, shows):
    """Nothing is changed where nothing must be."""
    request = ask(QUESTION, PASSAGES)
    found = plan(request, ports)
    invariants(request, found, ports)
    assert set(fates(found.report)) == {("kept", None)}
    assert all(text in shows(found) for text in PASSAGES)
    assert [t.reason for t in found.report.turns] == ["pinned", None]
    assert found.report.turns[0].class_ == "pinned"
    assert found.report.documents[0].kept_spans == [(0, len(PASSAGES[0]))]


def test_passages_are_trimmed_to_the_sentences_that_answer(ask, ports, invariants, shows):
    """In document order, with exact counts."""
    request = ask(QUESTION, PASSAGES, limit=110)
    found = plan(request, ports)
    invariants(request, found, ports)
    assert "The refund period is thirty days." in shows(found)
    assert "tower" not in shows(found)
    assert found.report.tokens_before > 110 >= found.report.tokens_after


def test_sections_have_every_name_once(ask, ports):
    """Zero is zero."""
    report = plan(ask(QUESTION), ports).report
    names = ["system", "tools", "facts", "summary", "history", "documents", "question", "template"]
    assert [s.name for s in report.sections] == names
    assert section(report, "summary").tokens_after == 0


def test_passages_give_way_before_the_request_fails(ask, case, ports, invariants):
    """Reported fault 11: only what must stay can be too long."""
    given_case = case(11)
    messages = given_case["body"]["messages"]
    passages = [" ".join(f"Passage {n} sentence {k} tells of things." for k in range(30)) for n in range(20)]
    request = ask(messages, passages, limit=given_case["budget_tokens"])
    found = plan(request, ports)
    invariants(request, found, ports)
    assert ("kept", None) not in fates(found.report)
    with pytest.raises(ContextLengthExceeded, match=r"needs \d+ tokens .*system \d+.* but 60 are allowed") as error:
        plan(ask(messages, passages, limit=60), ports)
    assert error.value.needed_tokens > error.value.allowed_tokens == 60


def test_the_answers_reserve_bounds_the_prompt(ask, ports):
    """The model's window less the reserve; the error names both."""
    request = ask(QUESTION, limit=1000, max_context_tokens=60, reserve_output_tokens=30)
    with pytest.raises(ContextLengthExceeded, match=r"context of 60 tokens less 30 reserved"):
        plan(request, ports)
    with pytest.raises(ContextLengthExceeded, match="but 0 are allowed"):
        plan(ask(QUESTION, max_context_tokens=60, reserve_output_tokens=90), ports)


@pytest.mark.parametrize(
    ("requested", "most", "granted"),
    [(None, None, 100), (40, None, 40), (400, 50, 50), (None, 70, 70), (400, None, 100)],
)
def test_granted_output(ask, ports, requested, most, granted):
    """What was asked, what is allowed, what the window holds."""
    tokens = plan(ask(QUESTION), ports).report.tokens_after
    request = ask(QUESTION, max_context_tokens=tokens + 100, requested_output_tokens=requested, max_output_tokens=most)
    assert plan(request, ports).report.granted_output_tokens == granted


def test_documents_have_a_bound_of_their_own(ask, ports, invariants):
    """Theirs, the policy's share, and none at all."""
    for bound in (0, 1, 20, 40, 80):
        request = ask(QUESTION, PASSAGES, max_document_tokens=bound)
        found = plan(request, ports)
        invariants(request, found, ports)
        assert section(found.report, "documents").limit_tokens == bound
    shared = ContextPolicy(sections=Sections(documents=DocumentsSection(max_share=0.1)))
    report = plan(ask(QUESTION, PASSAGES, limit=500, context=shared), ports).report
    assert 0 < section(report, "documents").tokens_after <= section(report, "documents").limit_tokens == 50


def test_a_system_text_over_its_limit_is_refused(ask, ports):
    """With the limit's name; it is never cut."""
    context = ContextPolicy(sections=Sections(system=SectionLimit(max_tokens=2)))
    with pytest.raises(ContextLengthExceeded, match=r"system section .* limit is 2") as error:
        plan(ask(QUESTION, context=context), ports)
    assert error.value.allowed_tokens == 2


def test_overflow_reject_trims_nothing(ask, ports):
    """All of it or an error."""
    context = ContextPolicy(overflow="reject")
    whole = plan(ask(QUESTION, PASSAGES, context=context), ports).report.tokens_before
    assert plan(ask(QUESTION, PASSAGES, context=context, limit=whole), ports).report.tokens_after == whole
    with pytest.raises(ContextLengthExceeded, match="overflow: reject") as error:
        plan(ask(QUESTION, PASSAGES, context=context, limit=whole - 1), ports)
    assert error.value.needed_tokens == whole


def test_planning_off_passes_through(ask, ports, invariants, shows):
    """Copies, blank passages and late system texts as they came; counted, reported, bounded."""
    context = ContextPolicy(planning="off")
    chat = [("user", "Hi"), ("system", "Late."), ("assistant", "Hello"), *QUESTION[1:]]
    request = ask(chat, [PASSAGES[0], PASSAGES[0], PASSAGES[1]], context=context)
    found = plan(request, ports)
    assert [m.role for m in found.messages] == ["user", "system", "assistant", "user"]
    assert shows(found).count(PASSAGES[0]) == 2
    assert {fate for fate, _ in fates(found.report)} == {"kept"}
    assert found.report.tokens_before == found.report.tokens_after == len(found.prompt_token_ids)
    assert found.report.ranking.method == "none"
    with pytest.raises(ContextLengthExceeded, match="planning is off"):
        plan(ask(chat, PASSAGES, context=context, limit=50), ports)


def test_pinned_passages_stay_whole(ask, ports, invariants, shows):
    """However little they say; what cannot fit is an error that names the bound."""
    documents = [{"text": text, "id": f"d{n}", "pinned": n == 2} for n, text in enumerate(PASSAGES)]
    request = ask(QUESTION, documents, limit=110)
    found = plan(request, ports)
    invariants(request, found, ports)
    assert fates(found.report)[2] == ("kept", None)
    assert PASSAGES[2] in shows(found)
    with pytest.raises(ContextLengthExceeded, match=r"documents section .* limit is 10") as error:
        plan(ask(QUESTION, documents, max_document_tokens=10), ports)
    assert error.value.param == "documents"
    with pytest.raises(ContextLengthExceeded, match="documents"):
        plan(ask(QUESTION, documents, limit=60), ports)


def test_a_cap_cuts_each_passage(ask, ports, invariants, counter):
    """Every passage within it, by sentences; the reason is the cap, not the budget."""
    context = ContextPolicy(trim=Trim(max_tokens_per_document=30))
    request = ask(QUESTION, PASSAGES, context=context)
    found = plan(request, ports)
    invariants(request, found, ports)
    assert all(d.tokens_after <= 30 for d in found.report.documents)
    assert set(fates(found.report)) <= {("trimmed", "token_cap"), ("dropped", "over_budget"), ("kept", None)}
    assert ("trimmed", "token_cap") in fates(found.report)


def test_a_cap_below_a_sentence_cuts_the_sentence(ask, ports, invariants, shows):
    """At a comma where there is one; never half a character."""
    long = "该合同由甲乙两方于去年秋季在深圳签署，有效期三年，期满之前双方未曾提出书面异议的便自动延长一年"
    context = ContextPolicy(trim=Trim(max_tokens_per_document=80))
    request = ask([("user", "协议有效期多久？")], [long], context=context)
    found = plan(request, ports)
    invariants(request, found, ports)
    (report,) = found.report.documents
    assert (report.fate, report.reason) == ("trimmed", "token_cap")
    ((start, end),) = report.kept_spans
    assert start == 0
    assert long[end - 1] == "，"
    assert 0 < report.tokens_after <= 80


def test_unit_none_keeps_passages_whole(ask, ports, invariants):
    """Or drops them."""
    context = ContextPolicy(trim=Trim(unit="none"))
    request = ask(QUESTION, PASSAGES, context=context, limit=120)
    found = plan(request, ports)
    invariants(request, found, ports)
    assert set(fates(found.report)) == {("kept", None), ("dropped", "over_budget")}


def test_an_ellipsis_is_the_policys_choice(ask, ports, shows):
    """Off by default."""
    plain = plan(ask(QUESTION, PASSAGES[:1], limit=75), ports)
    marked = plan(ask(QUESTION, PASSAGES[:1], limit=75, context=ContextPolicy(trim=Trim(ellipsis=True))), ports)
    assert fates(plain.report) == fates(marked.report) == [("trimmed", "sentence_trim")]
    assert "…" not in shows(plain)
    assert "…" in shows(marked)


def test_passages_below_the_least_score_are_dropped(ask, ports):
    """With that reason, though they would fit."""
    context = ContextPolicy(rank=Rank(min_score=0.3))
    report = plan(ask(QUESTION, PASSAGES[:3], context=context), ports).report
    assert [f for f in fates(report)[1:] if f != ("dropped", "below_min_score")] == []
    assert fates(report)[0] == ("kept", None)
    assert all(d.score < 0.3 for d in report.documents[1:])


def test_copies_count_once(ask, case, ports):
    """Reported fault 25: before scoring; each copy names what it copies."""
    given_case = case(25)
    report = plan(ask([("user", given_case["question"])], given_case["passages"]), ports).report
    assert report.documents[0].rank == 1
    assert fates(report)[2:] == [("dropped", "exact_duplicate")] * 4
    assert {d.of for d in report.documents[2:]} == {1}


def test_a_repeated_id_is_no_copy(ask, case, ports, shows):
    """Reported fault 27: texts decide; labels stay apart."""
    given_case = case(27)
    found = plan(ask([("user", given_case["question"])], given_case["passages"]), ports)
    assert fates(found.report) == [("kept", None)] * 2
    assert "5 kg" in shows(found)
    assert "3 m/s" in shows(found)
    labels = {part.text.split(">")[0].strip() for part in found.messages[-1].parts if part.section == "documents"}
    assert len(labels) == 2


def test_blank_passages_are_dropped_as_empty(ask, case, ports):
    """Reported fault 29: the others are ranked as usual."""
    given_case = case(29)
    report = plan(ask([("user", given_case["question"])], given_case["passages"]), ports).report
    assert fates(report) == [("dropped", "empty"), ("dropped", "empty"), ("kept", None)]
    assert report.documents[2].rank == 1


def test_ties_go_by_input_order(ask, case, ports):
    """Reported fault 31: the same bytes every time."""
    given_case = case(31)
    request = ask([("user", given_case["question"])], given_case["passages"], limit=given_case["budget_tokens"])
    found = {plan(request, ports).prompt_token_ids for _ in range(5)}
    assert len(found) == 1
    kept = [d.index for d in plan(request, ports).report.documents if d.fate != "dropped"]
    assert kept == list(range(len(kept)))
    assert kept


def test_content_parts_count_as_their_text(ask, case, ports):
    """Reported fault 15: parts are joined before they come here."""
    report = plan(ask(case(15)["messages"]), ports).report
    assert section(report, "question").tokens_after > 0
    assert report.tokens_after <= 200


def test_the_ranking_that_was_used_is_reported(ask, ports):
    """And why it is not the one asked for."""
    report = plan(ask(QUESTION, PASSAGES), ports).report
    assert report.ranking.method == "bm25"
    assert report.ranking.fallback


def test_passages_already_in_a_kept_turn_are_not_sent_twice(ask, ports, shows):
    """They are in the prompt as it is."""
    long = " ".join(PASSAGES[:1] * 1) + " The shop opens at nine and closes at five on every day but Monday."
    chat = [("user", f"I read this: {long}"), ("assistant", "Fine."), *QUESTION[1:]]
    found = plan(ask(chat, [long, PASSAGES[1]]), ports)
    assert fates(found.report)[0] == ("dropped", "already_in_history")
    assert shows(found).count("refund period is thirty") == 1


def test_history_and_passages_share_the_room(ask, ports, invariants):
    """Each is sure of about half; the section of higher priority goes first."""
    turns = [
        turn for n in range(12) for turn in (("user", f"Say {n} about the old river port?"), ("assistant", "Yes. " * 9))
    ]
    passages = [
        f"Passage {n}. " + " ".join(f"Thing {n} {k} is at the refund desk." for k in range(9)) for n in range(9)
    ]
    tokens = {}
    for name, history, documents in (("even", 0, 0), ("history", 1, 0), ("documents", 0, 1)):
        sections = Sections(history=HistorySection(priority=history), documents=DocumentsSection(priority=documents))
        request = ask([*turns, *QUESTION[1:]], passages, limit=500, context=ContextPolicy(sections=sections))
        found = plan(request, ports)
        invariants(request, found, ports)
        tokens[name] = [section(found.report, s).tokens_after for s in ("history", "documents")]
    assert tokens["history"][0] > tokens["even"][0] > tokens["documents"][0]
    assert tokens["history"][1] < tokens["even"][1] < tokens["documents"][1]
    assert min(tokens["even"]) > 100


def test_room_that_history_leaves_goes_to_passages(ask, ports):
    """Nothing is kept free for turns that are not there."""
    report = plan(
        ask(QUESTION, PASSAGES * 1 + [f"Other {n} thing. It is." for n in range(30)], limit=300), ports
    ).report
    assert report.tokens_after > 285


def test_minimum_of_a_section_is_kept_for_it(ask, ports):
    """History of higher priority leaves the passages their minimum."""
    turns = [
        turn for n in range(12) for turn in (("user", f"Say {n} about the old river port?"), ("assistant", "Yes. " * 9))
    ]
    sections = Sections(history=HistorySection(priority=1), documents=DocumentsSection(min_tokens=100))
    request = ask([*turns, *QUESTION[1:]], PASSAGES, limit=400, context=ContextPolicy(sections=sections))
    assert section(plan(request, ports).report, "documents").tokens_after > 60


def test_refused_conversations_name_the_place(ask, ports):
    """Nothing is planned for them, planning on or off."""
    for planning in ("on", "off"):
        context = ContextPolicy(planning=planning)
        with pytest.raises(InvalidConversation):
            plan(ask([], context=context), ports)
        chat = [("user", "q"), {"role": "tool", "tool_call_id": "x", "content": "r"}, ("user", "q")]
        with pytest.raises(InvalidConversation, match=r"messages\[1\]"):
            plan(ask(chat, context=context), ports)


def test_lone_surrogates_count_as_replacement_characters(ask, ports, invariants):
    """Where no tokenizer could take them."""
    request = ask([("user", "a\ud83d b")], [{"text": "x\udc00 y.", "id": "\ud800", "title": "\ud800"}])
    found = plan(request, ports)
    assert "a\ufffd b" in found.messages[-1].content
    assert "".join(s.text for s in found.segments).encode().decode()


def test_a_megabyte_of_one_sentence_is_dropped_in_time(ask, ports):
    """No loop over it."""
    report = plan(ask(QUESTION, ["长句" * 170_000, PASSAGES[0]], limit=200), ports).report
    assert fates(report)[0] == ("dropped", "over_budget")
    assert fates(report)[1][0] == "kept"


def test_timings_name_the_stages(ask, ports):
    """Each in milliseconds."""
    timings = plan(ask(QUESTION, PASSAGES, limit=110), ports).timings_ms
    assert set(timings) == {"dedupe", "rank", "history", "trim", "assemble"}
    assert all(value >= 0 for value in timings.values())


class Uneven:
    """A renderer whose template costs depend on what stands beside: sums of parts are wrong for it."""

    def __init__(self, renderer):
        self.renderer = renderer

    def render(self, messages, tools=()):
        """More template text for each passage, and for a short conversation."""
        found = []
        for segment in self.renderer.render(messages, tools):
            notes = "(a passage follows) " * (segment.section == "documents") + "(few) " * (len(messages) < 4)
            found += [Segment(notes, True, "template")] if notes and not segment.control else []
            found.append(segment)
        return found


@pytest.mark.parametrize("limit", range(90, 400, 31))
def test_a_template_of_uneven_cost_stays_within_bounds(ask, counter, renderer, invariants, limit):
    """Measured, and drafted again with less room."""
    ports = Ports(counter, Uneven(renderer))
    chat = [turn for n in range(4) for turn in (("user", f"Say {n} about the port?"), ("assistant", "Yes, it is old."))]
    request = ask([*chat, *QUESTION[1:]], PASSAGES, limit=limit)
    found = plan(request, ports)
    invariants(request, found, ports)
    assert found.report.tokens_after > 0.5 * limit


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_every_plan_holds_its_invariants(
    ask, counter, trailing_counter, renderer, invariants, conversations, documents, data
):
    """For any conversation, passages, policy and bounds; and the same plan again for the same request."""
    ports = Ports(data.draw(st.sampled_from([counter, trailing_counter])), renderer)
    context = ContextPolicy(
        sections=Sections(
            history=HistorySection(
                keep_last_turns=data.draw(st.integers(0, 3)), max_share=data.draw(st.sampled_from([None, 0.2]))
            ),
            documents=DocumentsSection(
                placement=data.draw(st.sampled_from(["last_user", "system"])),
                max_share=data.draw(st.sampled_from([None, 0.5])),
            ),
        ),
        trim=Trim(
            unit=data.draw(st.sampled_from(["sentence", "none"])),
            max_tokens_per_document=data.draw(st.sampled_from([None, 5, 25])),
            ellipsis=data.draw(st.booleans()),
        ),
        render=Render(separator=data.draw(st.sampled_from(["\n\n", "\n---\n", ""]))),
        dedupe=Dedupe(merge_overlaps=data.draw(st.booleans())),
    )
    request = ask(
        data.draw(conversations),
        data.draw(documents),
        limit=data.draw(st.integers(10, 500)),
        context=context,
        max_document_tokens=data.draw(st.sampled_from([None, None, 0, 30])),
        order=data.draw(st.sampled_from(["relevance", "edges"])),
    )
    try:
        found = plan(request, ports)
    except ContextLengthExceeded as error:
        assert error.needed_tokens > error.allowed_tokens  # noqa: PT017 (both ends are right)
        return
    invariants(request, found, ports)
    again = plan(request, ports)
    assert (again.prompt_token_ids, again.report) == (found.prompt_token_ids, found.report)


@pytest.mark.parametrize("name", ["rag_en", "rag_zh", "multiturn_en", "multiturn_zh_composed"])
def test_real_requests_hold_the_invariants(ask, ports, invariants, records, name):
    """Real questions, passages and conversations, at three budgets."""
    for record in records(name, 4):
        chat = [
            ("system", "Help."),
            *((m["role"], m["content"]) for m in record.get("history", [])),
            ("user", record["question"]),
        ]
        before = None
        for limit in (500, 1500, 10**6):
            request = ask(chat, record["passages"], limit=limit)
            found = plan(request, ports)
            invariants(request, found, ports)
            before = before or found.report.tokens_before
            assert found.report.tokens_before == before
            assert found.report.tokens_after > 0.8 * min(limit, before)

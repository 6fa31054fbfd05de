"""Requests that come again: the same plan for less work, and nothing remembered that could be otherwise."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budget.errors import ContextLengthExceeded
from budget.plan import plan
from budget.ports import Ports, ScorerUnavailable
from policies.schema import ContextPolicy, Dedupe, Rank, Trim

QUESTION = [("user", "What is the refund period of the museum shop?")]
PASSAGES = [
    "The museum shop takes goods back. The refund period is thirty days. Books are excluded.",
    "The town hall was built in 1820. It has a tower. The tower holds a clock.",
    "博物馆商店接受退货。退款期为三十天。书籍除外。",
]


def same(a, b):
    """Whether two plans are one but for their timings."""
    return (a.report, a.segments, a.prompt_token_ids) == (b.report, b.segments, b.prompt_token_ids)


def outcome(request, ports):
    """The plan but for its timings, or why there is none: pinned passages may need more than a small bound."""
    try:
        made = plan(request, ports)
    except ContextLengthExceeded as error:
        return str(error)
    return made.report, made.segments, made.prompt_token_ids


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_same_request_has_the_same_plan_after_any_others(ask, ports, documents, data):
    """Also where only the question, the room or the policy differ between."""
    given_documents = data.draw(documents)
    policies = [
        ContextPolicy(),
        ContextPolicy(rank=Rank(diversity=0.9)),
        ContextPolicy(trim=Trim(max_tokens_per_document=12)),
        ContextPolicy(dedupe=Dedupe(exact=False, near=None)),
    ]
    requests = [
        ask([("user", question)], given_documents, context=context, max_document_tokens=bound)
        for question in ("What of the river?", "北京在哪里？")
        for context in policies
        for bound in (20, None)
    ]
    order = data.draw(st.permutations(range(len(requests))))
    first = {n: outcome(requests[n], ports) for n in order}
    assert all(first[n] == outcome(requests[n], ports) for n in reversed(order))


def test_another_model_has_its_own_counts(ask, ports, trailing_counter):
    """What is remembered belongs to the counter that counted it."""
    request = ask(QUESTION, PASSAGES, max_document_tokens=40)
    other = Ports(counter=trailing_counter, renderer=ports.renderer)
    for _ in range(2):
        assert plan(request, ports).messages != plan(request, other).messages


class Moody:
    """An embedder that answers when it likes to."""

    name = "moody"
    works = False

    def embed(self, texts):
        """One direction for all, or a failure."""
        if not self.works:
            raise ScorerUnavailable("moody: not now")
        return np.ones((len(texts), 1), np.float32)


def test_a_failure_of_the_embedder_is_not_remembered(ask, ports):
    """The next request is ranked as the policy says."""
    embedder = Moody()
    own = replace(ports, embedder=embedder)
    request = ask(QUESTION, PASSAGES, max_document_tokens=40)
    assert plan(request, own).report.ranking.fallback == "moody: not now"
    embedder.works = True
    assert plan(request, own).report.ranking.method == "hybrid"


class Counting:
    """A renderer that counts its calls."""

    def __init__(self, renderer):
        self._renderer = renderer
        self.calls = 0

    def render(self, messages, tools=()):
        """As the real one."""
        self.calls += 1
        return self._renderer.render(messages, tools)


def test_a_request_that_comes_again_is_not_rendered_again(ask, ports):
    """Nor is one whose question is new mistaken for it."""
    renderer = Counting(ports.renderer)
    own = replace(ports, renderer=renderer)
    request = ask(QUESTION, PASSAGES, max_document_tokens=40)
    first = plan(request, own)
    calls = renderer.calls
    assert same(first, plan(request, own))
    assert renderer.calls == calls
    plan(ask([("user", "And the tower?")], PASSAGES, max_document_tokens=40), own)
    assert renderer.calls > calls

"""The order of passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budget.order import cache_aware, edges
from budget.plan import plan
from budget.ports import Ports
from policies.schema import ContextPolicy, Rank

PASSAGES = [f"Passage {name} tells of the {name} river and of its long history in the country." for name in "abcde"]
CHAT = [("system", "Be brief."), ("user", "Which river is it?")]


class Tree:
    """A prefix probe over prompts that were run, in full blocks of four tokens."""

    block = 4

    def __init__(self, *prompts):
        self.prompts = [list(prompt) for prompt in prompts]
        self.num_asked = 0

    def __call__(self, ids):
        """Tokens of the longest shared run of full blocks."""
        self.num_asked += 1
        return max((self._shared(prompt, ids) for prompt in self.prompts), default=0)

    def _shared(self, prompt, ids):
        same = 0
        while same < min(len(prompt), len(ids)) and prompt[same] == ids[same]:
            same += 1
        return same // self.block * self.block


def positions(report):
    """Where each passage stands."""
    return [document.position for document in report.documents]


def test_edges_put_the_best_first_and_last():
    """The least useful in the middle."""
    assert edges(5) == [0, 2, 4, 3, 1]
    assert edges(0) == []


def test_relevance_and_edges_ask_no_probe(ask, counter, renderer):
    """Their plans do not depend on the cache."""
    for order in ("relevance", "edges"):
        probe = Tree()
        report = plan(ask(CHAT, PASSAGES, order=order), Ports(counter, renderer, probe=probe)).report
        assert probe.num_asked == 0
        assert report.cache_order is None


def test_passages_follow_a_prefix_that_is_in_kv(ask, counter, renderer):
    """The order of an earlier prompt is taken up, and the saving is reported."""
    context = ContextPolicy(rank=Rank(use_caller_scores="only"))
    by_score = [{"id": f"d{n}", "text": text, "score": 1 - n / 10} for n, text in enumerate(PASSAGES)]
    reordered = [by_score[n] | {"score": 1 - at / 10} for at, n in enumerate([1, 2, 0, 3, 4])]
    first = plan(ask(CHAT, reordered, context=context), Ports(counter, renderer))
    ports = Ports(counter, renderer, probe=Tree(first.prompt_token_ids))
    request = ask([CHAT[0], ("user", "And which lake?")], by_score, order="cache_aware", context=context)
    found = plan(request, ports).report
    assert positions(found) == [2, 0, 1, 3, 4]
    assert found.cache_order.expected_hit_tokens > found.cache_order.relevance_hit_tokens
    assert [d.moved_for_cache for d in found.documents] == [2, -1, -1, 0, 0]


def test_without_a_probe_or_an_answer_relevance_stays(ask, counter, renderer):
    """A remote engine cannot tell; nothing is claimed."""
    relevance = plan(ask(CHAT, PASSAGES), Ports(counter, renderer))
    for probe in (None, lambda ids: None):
        found = plan(ask(CHAT, PASSAGES, order="cache_aware"), Ports(counter, renderer, probe=probe))
        assert found.prompt_token_ids == relevance.prompt_token_ids
        assert found.report.cache_order is None


def test_an_empty_cache_moves_nothing(ask, counter, renderer):
    """And says so."""
    found = plan(ask(CHAT, PASSAGES, order="cache_aware"), Ports(counter, renderer, probe=Tree())).report
    assert (found.cache_order.expected_hit_tokens, found.cache_order.relevance_hit_tokens) == (0, 0)
    assert {d.moved_for_cache for d in found.documents} == {0}


@pytest.mark.parametrize("bound", [0, 1, 2, 10])
def test_no_passage_moves_farther_than_allowed(bound):
    """Whatever is in the cache."""
    texts = [[10 * n, 10 * n + 1, 10 * n + 2, 10 * n + 3] for n in range(6)]
    probe = Tree([i for n in (5, 4, 3, 2, 1, 0) for i in texts[n]], [i for n in (2, 5, 0, 1, 4, 3) for i in texts[n]])
    order = cache_aware(6, lambda n, _: texts[n], prefix=[], probe=probe, max_displacement=bound)
    assert sorted(order) == list(range(6))
    assert all(abs(rank - at) <= bound for at, rank in enumerate(order))
    assert order == {0: [0, 1, 2, 3, 4, 5], 1: [0, 1, 2, 3, 4, 5]}.get(bound, order)


@given(cached=st.lists(st.permutations(range(5)), max_size=3), bound=st.integers(0, 5))
def test_any_cache_gives_an_order_within_bounds(cached, bound):
    """All passages once, none too far, and never fewer hits than relevance."""
    texts = [[10 * n + i for i in range(4 + n)] for n in range(5)]
    probe = Tree(*([i for n in order for i in texts[n]] for order in cached))
    order = cache_aware(5, lambda n, _: texts[n], prefix=[], probe=probe, max_displacement=bound)
    assert sorted(order) == list(range(5))
    assert all(abs(rank - at) <= bound for at, rank in enumerate(order))

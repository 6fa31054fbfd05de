"""Choosing the next token: greedy, penalties, filters, and draws that a seed decides."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import SequenceWork
from engine.errors import EngineError
from engine.request import SamplingParams
from engine.sampler import sample, uniform

VOCABULARY = 3000


def work(output_index=0, history=(), **params):
    """A work whose next token is to be drawn."""
    return SequenceWork(0, [1], 0, [0], True, SamplingParams(**params), output_index, history)


def row(seed=0, scale=3.0):
    """Random logits, one row."""
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * scale


def support(logits, draws=400, **params):
    """The tokens that come out of many draws."""
    works = [work(n, seed=5, **params) for n in range(draws)]
    return set(sample(logits.expand(draws, -1), works))


def test_temperature_zero_takes_the_best():
    """Greedy rows take the argmax, the lower id on a tie."""
    logits = torch.tensor([[0.0, 2.0, 2.0, -1.0], [3.0, 1.0, 0.0, 0.0]])
    assert sample(logits, [work(temperature=0), work(temperature=0, top_p=0.1, min_p=0.5)]) == [1, 0]


def test_a_seeded_draw_depends_on_seed_and_position_alone():
    """The same row with the same seed and position gives the same token in any batch; other positions differ."""
    logits = torch.stack([row(n) for n in range(8)])
    works = [work(n, seed=n % 3, temperature=0.9 + n / 10, top_p=0.9) for n in range(8)]
    together = sample(logits, works)
    alone = [sample(logits[n : n + 1], works[n : n + 1])[0] for n in range(8)]
    shuffled = [7, 3, 1, 0, 2, 6, 5, 4]
    assert (
        together
        == alone
        == [sample(logits[shuffled], [works[n] for n in shuffled])[shuffled.index(n)] for n in range(8)]
    )
    assert len({sample(logits[:1], [work(n, seed=1)])[0] for n in range(50)}) > 10


@given(seed=st.integers(), index=st.integers(0, 10**6))
def test_uniform_is_a_pure_number_in_the_unit_interval(seed, index):
    """Any integer is a seed; the number is in [0, 1) and always the same."""
    assert 0 <= uniform(seed, index) < 1
    assert uniform(seed, index) == uniform(seed, index)


def test_uniform_is_uniform():
    """Over many positions the numbers fill ten bins evenly."""
    bins = [0] * 10
    for index in range(5000):
        bins[int(uniform(3, index) * 10)] += 1
    assert sum((count - 500) ** 2 / 500 for count in bins) < 27.9  # chi-squared, 9 degrees of freedom, p = 0.001


def test_draws_follow_the_softmax():
    """Frequencies of many draws match softmax(logits / temperature)."""
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    tokens = sample(logits.expand(4000, -1), [work(n, seed=11, temperature=1.5) for n in range(4000)])
    for token, expected in enumerate(torch.softmax(logits / 1.5, -1).tolist()):
        assert math.isclose(tokens.count(token) / 4000, expected, abs_tol=0.03)


@pytest.mark.parametrize("top_k", [1, 5, 40])
def test_top_k_keeps_the_k_best(top_k):
    """Only the k best tokens are drawn, and more than one of them."""
    best = set(row().topk(top_k).indices.tolist())
    drawn = support(row(), top_k=top_k, temperature=5.0)
    assert drawn <= best
    assert len(drawn) == min(top_k, len(drawn))
    assert top_k == 1 or len(drawn) > top_k / 2


@pytest.mark.parametrize("scale", [0.3, 3.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.97])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, scale):
    """Tokens outside the nucleus are never drawn, also where it is wider than the first candidates."""
    logits = row(scale=scale)
    probabilities, order = torch.softmax(logits, -1).sort(descending=True)
    inside = int((probabilities.cumsum(-1) - probabilities < top_p).sum())
    drawn = support(logits, top_p=top_p)
    assert drawn <= set(order[:inside].tolist())
    assert len(drawn) > min(inside, 400) / 20


def test_min_p_keeps_what_is_likely_enough_next_to_the_best():
    """Only tokens with at least min_p of the best one's probability are drawn."""
    probabilities = torch.softmax(row(), -1)
    allowed = set((probabilities >= 0.2 * probabilities.max()).nonzero().flatten().tolist())
    assert support(row(), min_p=0.2) <= allowed
    assert support(row(), min_p=1.0) == {int(row().argmax())}


def test_filters_work_together():
    """top_p counts within what top_k left, as transformers' warpers do in their order."""
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
    assert support(logits, top_k=2, top_p=0.56) == {0}  # 0.4 / 0.7 = 0.571 of what is left
    assert support(logits, top_k=2, top_p=0.58) == {0, 1}


def test_repetition_penalty_is_transformers_own():
    """Seen tokens' logits change as `RepetitionPenaltyLogitsProcessor` changes them, for greedy rows too."""
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, history = row(), random.Random(3).choices(range(VOCABULARY), k=50)
    history += row().topk(3).indices.tolist()
    expected = RepetitionPenaltyLogitsProcessor(2.5)(torch.tensor([history]), logits[None].clone())
    chosen = sample(logits[None], [work(history=history, repetition_penalty=2.5, temperature=0)])
    assert chosen == [int(expected.argmax())] != [int(logits.argmax())]


def test_a_penalty_touches_its_own_row_alone():
    """One request's history does not change another's logits, nor the tensor that was handed in."""
    logits = torch.stack([row(), row()])
    before = logits.clone()
    best = int(row().argmax())
    penalised, plain = sample(
        logits, [work(history=[best], repetition_penalty=5.0, temperature=0), work(history=[best], temperature=0)]
    )
    assert plain == best != penalised
    assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [1e-45, 1e-6, 1e-3, 1e6])
def test_extreme_temperatures_are_finite(temperature):
    """No temperature overflows: near zero the best is drawn, at a huge one anything may be."""
    drawn = support(row(), draws=50, temperature=temperature)
    assert drawn == {int(row().argmax())} if temperature < 1 else len(drawn) > 40


def test_unseeded_draws_differ():
    """Without a seed two draws of a flat distribution are not the same every time."""
    assert len({sample(torch.zeros(1, VOCABULARY), [work()])[0] for _ in range(10)}) > 1


def test_bfloat16_logits_are_drawn_in_float32():
    """Half-precision logits give the tokens of their float32 values."""
    logits = row().bfloat16()[None]
    works = [work(4, seed=9, temperature=0.7, top_p=0.8)]
    assert sample(logits, works) == sample(logits.float(), works)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_an_error(value):
    """A NaN or an infinite logit ends in an error, not in a token."""
    logits = torch.zeros(2, 5)
    logits[1, 3] = value
    with pytest.raises(EngineError, match="not finite"):
        sample(logits, [work(), work(temperature=0)])

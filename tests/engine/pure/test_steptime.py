"""The step-time model learns what steps cost, and the pace that follows from it."""

import random

import pytest

from engine.pace import BESIDE_SHORT_TOKENS, UNTRIED_TOKENS, Audience, Pace, beside
from engine.steptime import StepLoad, StepTimeModel


def true_ms(load: StepLoad) -> float:
    """What steps take on the machine of these tests."""
    return 10 + 0.12 * load.prefill_tokens + 5e-5 * load.prefill_pairs + 0.6 * load.decode_rows + 1e-3 * load[3]


def random_load(rng: random.Random) -> StepLoad:
    """Mostly decodes; every third step with a chunk somewhere in a prompt."""
    rows = rng.randrange(17)
    tokens = rng.choice([0, 0, rng.randrange(1, 512)])
    return StepLoad(tokens, tokens * rng.uniform(tokens / 2, 2000), rows, rows * rng.randrange(100, 1500))


def learnt(noise: float = 0.0, stalls: float = 0.0) -> StepTimeModel:
    """A model after 400 steps."""
    model, rng = StepTimeModel(), random.Random(3)
    for _ in range(400):
        load = random_load(rng)
        stall = 30.0 if rng.random() < stalls else 1.0
        model.observe(load, true_ms(load) * rng.lognormvariate(0, noise) * stall)
    return model


LOADS = [
    StepLoad(512, 512 * 256),
    StepLoad(100, 100 * 1050),
    StepLoad(0, 0, 16, 15_000),
    StepLoad(256, 50_000, 8, 8000),
]


@pytest.mark.parametrize(("noise", "stalls", "within"), [(0.0, 0.0, 0.05), (0.15, 0.0, 0.1), (0.1, 0.03, 0.15)])
@pytest.mark.parametrize("load", LOADS)
def test_it_learns_what_steps_take(noise: float, stalls: float, within: float, load: StepLoad) -> None:
    """Prefill, its attention, decodes and their context are told apart, through noise and stalls."""
    assert learnt(noise, stalls).predict_ms(load) == pytest.approx(true_ms(load), rel=within)


def test_it_speaks_after_three_prefills() -> None:
    """Before, it says so; a single step tells nothing about the rest."""
    model = StepTimeModel()
    for count in range(3):
        assert not model.ready
        model.observe(StepLoad(100 + count, 5000), 22.0)
    assert model.ready
    assert model.predict_ms(StepLoad(100, 5000)) == pytest.approx(22.0, rel=0.05)


def test_decoding_for_long_does_not_wash_out_prefill() -> None:
    """After thousands of steps without prefill, its cost is still known."""
    model = learnt()
    for _ in range(4000):
        model.observe(StepLoad(0, 0, 1, 500), true_ms(StepLoad(0, 0, 1, 500)))
    chunk = StepLoad(256, 256 * 500, 1, 500)
    assert model.predict_ms(chunk) == pytest.approx(true_ms(chunk), rel=0.1)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    """A lasting slowdown is not taken for stalls: some hundred prefills later the model has followed."""
    model, rng = learnt(noise=0.05), random.Random(5)
    for _ in range(600):
        load = random_load(rng)
        model.observe(load, 4 * true_ms(load))
    for load in LOADS:
        assert model.predict_ms(load) == pytest.approx(4 * true_ms(load), rel=0.2)


def test_stalls_are_counted() -> None:
    """A step of thirty times its usual duration is a stall; a clock that stands still teaches nothing."""
    model = learnt()
    before, num_stalls = model.predict_ms(LOADS[0]), model.num_stalls
    model.observe(LOADS[0], 30 * true_ms(LOADS[0]))
    assert model.num_stalls == num_stalls + 1
    assert model.predict_ms(LOADS[0]) < 1.3 * before
    untaught = StepTimeModel()
    untaught.observe(LOADS[0], 0.0)
    assert not untaught.ready


def test_coefficients_stay_at_zero_or_above() -> None:
    """Durations that fall with the load, as noise can make them, never make a step's cost negative."""
    model = StepTimeModel()
    for n in range(50):
        model.observe(StepLoad(100 + n, 100.0, 8 - n % 8, 800), 50.0 - n)
    assert min(model._coefficients) >= 0
    assert model.prefill_ms(1000) >= 0


@pytest.mark.parametrize("start", [0, 700, 5000])
@pytest.mark.parametrize("ms", [1.0, 20.0, 300.0])
def test_prefill_within_is_the_inverse(ms: float, start: int) -> None:
    """The tokens that add so many milliseconds add so many milliseconds."""
    model = learnt()
    tokens = model.prefill_within(ms, start)
    assert model.prefill_ms(1, start) * tokens <= ms * 1.001
    with_attention = model.prefill_ms(1, start) + model._coefficients[1] * (tokens - 1) / 2
    assert tokens * with_attention == pytest.approx(ms, rel=1e-3)


DECODES = StepLoad(decode_rows=8, decode_context=8000)


def test_a_step_takes_at_most_its_stretch() -> None:
    """With as many readers as newcomers, prefill and decodes take `stretch` times what decodes take alone."""
    model = learnt()
    for stretch in (1.5, 2.0, 3.0):
        tokens = Pace(model, stretch).prefill_tokens(DECODES, Audience(8, 8), 500, 4096, 16)
        step = StepLoad(tokens, tokens * (500 + tokens / 2), *DECODES[2:])
        assert true_ms(step) == pytest.approx(stretch * true_ms(DECODES), rel=0.05)


def test_the_pace_follows_the_crowd() -> None:
    """Twice as many newcomers as readers double what prefill may add; without readers there is no bound."""
    model = learnt()
    pace = Pace(model, 2.0)
    few, many, most = (pace.prefill_tokens(DECODES, Audience(8, n), 0, 4096, 16) for n in (1, 16, 64))
    assert model.prefill_ms(many) == pytest.approx(2 * model.prefill_ms(few), rel=0.05)
    assert most == 2 * model.largest_prefill, "no further out than the model was tried"
    assert pace.prefill_tokens(DECODES, Audience(0, 5), 0, 4096, 16) == 4096


def test_the_pace_knows_its_bounds() -> None:
    """A block at least, the step's room at most, and a fixed number before anything was measured."""
    assert Pace(StepTimeModel(), 2.0).prefill_tokens(DECODES, Audience(8, 1), 0, 4096, 16) == UNTRIED_TOKENS
    pace = Pace(learnt(), 1.001)
    assert pace.prefill_tokens(DECODES, Audience(8, 1), 0, 4096, 16) == 16
    assert pace.prefill_tokens(DECODES, Audience(8, 1), 0, 5, 16) == 5


def test_little_beside_a_short_prompt() -> None:
    """Others get about as much as the short ones have, and all of it without short ones."""
    assert beside(0, 400) == 400
    assert beside(20, 400) == BESIDE_SHORT_TOKENS
    assert beside(200, 400) == 200
    assert beside(200, 50) == 50

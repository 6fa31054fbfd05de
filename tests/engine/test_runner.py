"""The torch runner beside its arithmetic: seeds, bounds, memory, models that it must refuse."""

import random

import pytest
import torch

from engine.batch import SequenceWork
from engine.config import EngineConfig
from engine.errors import ModelLoadError, OutOfMemoryError
from engine.request import SamplingParams
from engine.runner import TorchRunner


def prompts(*lengths):
    """Random prompts of these lengths."""
    draw = random.Random(3)
    return [[draw.randrange(3, 101) for _ in range(length)] for length in lengths]


def test_seeded_output_does_not_depend_on_the_batch(tiny_runner, drive):
    """A seeded request draws the same tokens alone, in a batch, and with its prompt in chunks."""
    driver = drive(tiny_runner("llama"))
    batch = prompts(9, 30, 4, 17)
    params = [SamplingParams(temperature=1.0, top_p=0.95, seed=n) for n in range(4)]
    together = driver.generate(batch, 12, sampling=params)
    alone = [driver.generate([prompt], 12, sampling=[p])[0] for prompt, p in zip(batch, params, strict=True)]
    assert together == alone == driver.generate(batch, 12, sampling=params, chunk=5)


def test_repetition_penalty_sees_prompt_and_output(tiny_runner, drive):
    """With an enormous penalty no token comes twice, and none of the prompt."""
    driver = drive(tiny_runner("llama"))
    [prompt] = prompts(20)
    [output] = driver.generate([prompt], 30, sampling=SamplingParams(temperature=0, repetition_penalty=1e6))
    assert len(set(output)) == len(output)
    assert set(output).isdisjoint(prompt)


def test_blocks_of_others_are_never_written(tiny_runner):
    """A step writes the slots of its own tokens and no others, a shared prefix included."""
    runner = tiny_runner("llama")
    greedy = SamplingParams(temperature=0)
    [prompt] = prompts(21)
    runner.run([SequenceWork(0, prompt, 0, [5, 9, 2], False, greedy)])
    before = [keys.clone() for keys in runner._pool.keys]
    runner.run(
        [SequenceWork(1, [7], 16, [5, 9, 4], True, greedy), SequenceWork(2, prompt[:3], 21, [5, 9, 2], True, greedy)]
    )
    for old, new in zip(before, runner._pool.keys, strict=True):
        changed = (old != new).flatten(2).any(-1).nonzero().tolist()
        assert changed == [[2, 5], [2, 6], [2, 7], [4, 0]]


def test_warm_up_leaves_the_outputs_alone(tiny_runner, drive):
    """Warming up computes on blocks that no request has yet, and changes no result."""
    cold, warm = tiny_runner("mistral"), tiny_runner("mistral")
    warm.warm_up()
    batch = prompts(5, 33)
    assert drive(cold).generate(batch, 10) == drive(warm).generate(batch, 10)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_warm_up_fits_the_smallest_pool(tiny_runner, num_blocks):
    """A pool of a single block is enough to start."""
    tiny_runner("llama", num_blocks=num_blocks).warm_up()


def test_model_info(tiny_model, tiny_runner):
    """What the model is: bounds, ends, bytes a token, window where all layers have one."""
    info = tiny_runner("llama").model
    assert (info.max_context_tokens, info.vocab_size, info.eos_token_ids) == (512, 101, {2})
    assert info.kv_bytes_per_token == 3 * 2 * 2 * 8 * 4  # layers, K and V, heads, head_dim, float32
    assert info.sliding_window is None
    assert tiny_runner("mistral").model.sliding_window == 21
    assert tiny_runner("gemma3").model.sliding_window is None
    assert tiny_runner("llama", max_context_tokens=100).model.max_context_tokens == 100
    assert tiny_runner("llama").model == info


def test_a_context_beyond_the_models_is_refused(tiny_runner):
    """An operator's bound over the model's own names both."""
    with pytest.raises(ModelLoadError, match="1,000 exceeds the model's 512"):
        tiny_runner("llama", max_context_tokens=1000)


def test_pool_is_sized_by_bytes(tiny_runner):
    """`kv_bytes` buys whole blocks."""
    runner = tiny_runner("llama", num_blocks=None, kv_bytes=1_000_000)
    assert runner.num_blocks == 1_000_000 // (runner.model.kv_bytes_per_token * 8)


def test_a_default_pool_is_a_modest_share_of_free_memory(tiny_runner, monkeypatch):
    """Without a size the pool takes a quarter of what is free, at most 2 GiB on a CPU."""
    monkeypatch.setattr("engine.pool.free_bytes", lambda device: 40_000_000)
    runner = tiny_runner("llama", num_blocks=None)
    assert runner.num_blocks == 10_000_000 // (runner.model.kv_bytes_per_token * 8)


@pytest.mark.parametrize("size", [{"num_blocks": 10**12}, {"num_blocks": None, "kv_bytes": 1 << 60}])
def test_a_pool_that_does_not_fit_is_refused_before_it_is_allocated(tiny_runner, size):
    """The error has what is needed and what is free, in MiB."""
    with pytest.raises(OutOfMemoryError, match=r"needs [\d,]+ MiB, but [\d,]+ MiB are free"):
        tiny_runner("llama", **size)


def test_a_pool_smaller_than_a_block_is_refused(tiny_runner):
    """The error says what a block takes."""
    with pytest.raises(OutOfMemoryError, match="a KV block takes 3,072 bytes"):
        tiny_runner("llama", num_blocks=None, kv_bytes=1000)


def test_weights_that_do_not_fit_are_refused(tiny_runner, monkeypatch):
    """Weights are checked before they are read."""
    monkeypatch.setattr("engine.weights.free_bytes", lambda device: 1000)
    with pytest.raises(OutOfMemoryError, match="weights of"):
        tiny_runner("llama")


def test_half_precision_runs(tiny_runner, drive):
    """bfloat16 weights and pool take half the bytes, and generate."""
    runner = tiny_runner("gemma2", dtype="bfloat16")
    assert runner.model.kv_bytes_per_token == tiny_runner("gemma2").model.kv_bytes_per_token // 2
    assert len(drive(runner).generate(prompts(30), 5)[0]) == 5


@pytest.mark.parametrize(
    ("model_type", "options", "why"),
    [
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "attention sinks"),
        ("mamba", {"state_size": 8}, "Mamba"),
        ("bloom", {"n_layer": 2, "n_head": 4}, "Bloom"),
        ("bert", {}, "not a causal language model|Bert"),
        ("t5", {"d_model": 32, "num_layers": 1, "num_heads": 4}, "not a causal language model"),
    ],
)
def test_architectures_that_cannot_be_paged_are_refused(tmp_path, model_type, options, why):
    """What attention over a paged pool does not compute is named at load, not found in wrong answers."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(model_type, vocab_size=101, **{**shape, **options})
    causal = model_type not in ("t5", "bert")
    (AutoModelForCausalLM if causal else AutoModel).from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=why):
        TorchRunner(EngineConfig(str(tmp_path), dtype="float32", num_blocks=8, device="cpu"))


def test_a_feature_that_nobody_named_is_caught_by_comparison(tiny_runner, monkeypatch):
    """If paged attention computed something else than the model's own, loading would fail."""
    from engine import attention

    right = attention._attention
    monkeypatch.setattr(attention, "_attention", lambda *args: right(*args) * 0.9)
    with pytest.raises(ModelLoadError, match="other logits"):
        tiny_runner("llama")


def test_close_gives_the_pool_back(tiny_runner):
    """After `close` neither model nor pool is held."""
    runner = tiny_runner("llama")
    runner.close()
    assert not any(isinstance(value, torch.nn.Module) for value in vars(runner).values())
    assert not hasattr(runner, "_pool")

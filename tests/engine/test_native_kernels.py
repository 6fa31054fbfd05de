"""The kernels against plain torch, on drawn sizes and batches, on every path through them."""

import platform
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import MistralConfig

from engine.batch import SequenceWork
from engine.llama.native import NativeLlama
from engine.llama.plain import TorchLlama
from engine.llama.shape import LlamaShape, read_shape
from engine.native import Kernels, load
from engine.request import SamplingParams

NUM_BLOCKS = 80
Step = list[SequenceWork]


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny products are quicker without torch's workers; the kernels get threads of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=["", "-march=x86-64-v3"], ids=["this CPU", "AVX2"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The library for this CPU, and one that has neither AVX-512 nor AMX."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine to build the kernels with")
    if request.param and platform.machine() != "x86_64":
        pytest.skip("the option is for x86-64")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", f"g++ {request.param}")
        return load(request.config.cache.mkdir("kernels"))


@dataclass(frozen=True)
class Drawn:
    """A model's shape and weights, and the steps to run on it."""

    shape: LlamaShape
    state: dict[str, Tensor]
    block_size: int
    steps: list[Step]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    """Sizes in the kernels' granules; a window, biases, head norms or none; steps of up to five sequences."""
    kv_heads, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 7]))
    config = MistralConfig(
        vocab_size=draw(st.integers(40, 140)),
        hidden_size=16 * draw(st.integers(1, 48)),
        intermediate_size=16 * draw(st.integers(1, 12)),
        num_hidden_layers=draw(st.integers(1, 2)),
        num_attention_heads=kv_heads * group,
        num_key_value_heads=kv_heads,
        head_dim=draw(st.sampled_from([16, 32, 48, 64, 80, 96, 128])),
        sliding_window=draw(st.sampled_from([None, None, 1, 16, 37, 100])),
        tie_word_embeddings=draw(st.booleans()),
    )
    block_size = draw(st.sampled_from([16, 32, 48]))
    rng = random.Random(draw(st.integers(0, 2**32)))
    state = random_state(read_shape(config), rng.randrange(2**32), draw(st.booleans()), draw(st.booleans()))
    return Drawn(read_shape(config), state, block_size, random_steps(rng, config.vocab_size, block_size))


def random_state(shape: LlamaShape, seed: int, biases: bool, head_norms: bool) -> dict[str, Tensor]:
    """Weights that keep activations near one, exact in bfloat16."""
    generator = torch.Generator().manual_seed(seed)

    def weight(*size: int, mean: float = 0.0) -> Tensor:
        values = torch.randn(size, generator=generator) * (0.2 if len(size) == 1 else size[-1] ** -0.5) + mean
        return values.to(torch.bfloat16)

    queries, keys, values = shape.qkv_sizes
    state = {
        "model.embed_tokens.weight": weight(shape.vocab, shape.hidden) * 8,
        "model.norm.weight": weight(shape.hidden),
    }
    if not shape.tied:
        state["lm_head.weight"] = weight(shape.vocab, shape.hidden)
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        sizes = {"q": queries, "k": keys, "v": values}
        for name, size in sizes.items():
            state[f"{prefix}self_attn.{name}_proj.weight"] = weight(size, shape.hidden) * (2 if name != "v" else 1)
            if biases:
                state[f"{prefix}self_attn.{name}_proj.bias"] = weight(size)
        if biases:
            state[f"{prefix}self_attn.o_proj.bias"] = weight(shape.hidden)
        if head_norms:
            state[f"{prefix}self_attn.q_norm.weight"] = weight(shape.head_dim, mean=1.0)
            state[f"{prefix}self_attn.k_norm.weight"] = weight(shape.head_dim, mean=1.0)
        state[f"{prefix}self_attn.o_proj.weight"] = weight(shape.hidden, queries)
        state[f"{prefix}mlp.gate_proj.weight"] = weight(shape.intermediate, shape.hidden)
        state[f"{prefix}mlp.up_proj.weight"] = weight(shape.intermediate, shape.hidden)
        state[f"{prefix}mlp.down_proj.weight"] = weight(shape.hidden, shape.intermediate)
        state[f"{prefix}input_layernorm.weight"] = weight(shape.hidden, mean=1.0)
        state[f"{prefix}post_attention_layernorm.weight"] = weight(shape.hidden, mean=1.0)
    return state


def random_steps(rng: random.Random, vocab: int, block_size: int) -> list[Step]:
    """Up to four steps that mix first chunks, later chunks and single tokens, over blocks in any order."""
    blocks = rng.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    sequences = []
    for _ in range(rng.randint(1, 5)):
        tokens = [rng.randrange(vocab) for _ in range(rng.choice([3, 17, 40, 130, 200]))]
        sequences.append((tokens, [blocks.pop() for _ in range(-(-len(tokens) // block_size))]))
    ends, steps = [0] * len(sequences), []
    for _ in range(4):
        step = []
        for i, (tokens, table) in enumerate(sequences):
            start, ends[i] = ends[i], min(len(tokens), ends[i] + rng.choice([1, 1, 2, 33, 160]))
            if ends[i] > start:
                step.append(
                    SequenceWork(i, tokens[start : ends[i]], start, table, rng.random() < 0.7, SamplingParams())
                )
        steps.append(step)
    return [step for step in steps if step]


def run(forward: NativeLlama | TorchLlama, steps: list[Step]) -> Tensor:
    """All logits of all steps, one row each."""
    try:
        return torch.cat([forward.step(step).clone() for step in steps])
    finally:
        forward.close()


def with_torch(case: Drawn, dtype: torch.dtype) -> Tensor:
    """The case's logits from the torch forward."""
    return run(
        TorchLlama(dict(case.state), case.shape, NUM_BLOCKS, case.block_size, dtype, torch.device("cpu")), case.steps
    )


def with_kernels(case: Drawn, kernels: Kernels, dtype: torch.dtype, **options: Any) -> Tensor:
    """The case's logits from the kernels."""
    options = {"threads": 2} | options
    return run(
        NativeLlama(dict(case.state), case.shape, kernels, NUM_BLOCKS, case.block_size, dtype, **options), case.steps
    )


def rms(x: Tensor) -> float:
    """Root mean square; 0 of nothing."""
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


many = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@many
@given(case=drawn(), threads=st.integers(1, 3))
def test_float32_is_torchs(kernels: Kernels, case: Drawn, threads: int) -> None:
    """In float32 the logits are torch's, to the order of additions."""
    expected = with_torch(case, torch.float32)
    got = with_kernels(case, kernels, torch.float32, threads=threads)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-4 * max(rms(expected), 1e-3))


@many
@given(case=drawn(), use_tiles=st.booleans())
def test_bfloat16_is_as_accurate_as_torchs(kernels: Kernels, case: Drawn, use_tiles: bool) -> None:
    """In bfloat16, with and without tiles, the logits are as near to float32's as torch's own bfloat16 is."""
    exact = with_torch(case, torch.float32)
    theirs = rms(with_torch(case, torch.bfloat16) - exact)
    ours = rms(with_kernels(case, kernels, torch.bfloat16, use_tiles=use_tiles) - exact)
    assert ours <= 1.1 * theirs + 2e-3 * rms(exact)


def test_threads_without_work_are_fine(kernels: Kernels) -> None:
    """More threads than panels, blocks and rows give the same logits."""
    config = MistralConfig(
        vocab_size=20, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16, sliding_window=None,
    )  # fmt: skip
    shape = read_shape(config)
    work = SequenceWork(0, [3], 0, [0], True, SamplingParams())
    case = Drawn(shape, random_state(shape, 1, False, False), 16, [[work]])
    torch.testing.assert_close(
        with_kernels(case, kernels, torch.float32, threads=7), with_kernels(case, kernels, torch.float32, threads=1)
    )

"""Greedy float32 output equals transformers' `generate`, whatever else is in the batch or in the cache."""

import asyncio
import random

import pytest
from transformers import AutoTokenizer

from engine.config import EngineConfig
from engine.loop import EmbeddedEngine
from engine.request import EngineRequest, SamplingParams
from engine.runner import TorchRunner

MODELS = [
    "llama", "llama_one_kv_head", "llama_rope_scaled", "qwen2", "qwen3", "mistral", "gemma2", "gemma3",
]  # fmt: skip
LENGTHS = [1, 2, 7, 8, 9, 15, 16, 17, 20, 21, 22, 31, 40, 57, 64, 90]
NEW_TOKENS = 20


def prompts(*lengths: int) -> list[list[int]]:
    """Random prompts; of one length always the same."""
    draws = [(random.Random(length), length) for length in lengths]
    return [[draw.randrange(3, 101) for _ in range(length)] for draw, length in draws]


@pytest.fixture(params=MODELS, scope="module")
def case(request, tiny_model, tiny_runner, drive, reference_greedy):
    """(driver, reference) of one tiny model."""
    folder = tiny_model(request.param)
    return drive(tiny_runner(request.param)), lambda prompt: reference_greedy(folder, prompt, NEW_TOKENS)


def test_alone_equals_generate(case):
    """One prompt at a time gives transformers' tokens, for lengths on and off the block edge."""
    driver, reference = case
    for prompt in prompts(1, 8, 21, 64):
        assert driver.generate([prompt], NEW_TOKENS) == [reference(prompt)]


def test_batch_of_mixed_lengths_equals_generate(case):
    """Sixteen prompts of different lengths in one batch each give what they give alone."""
    driver, reference = case
    batch = prompts(*LENGTHS)
    assert driver.generate(batch, NEW_TOKENS) == [reference(prompt) for prompt in batch]


@pytest.mark.parametrize("chunk", [1, 5, 8, 19])
def test_chunked_prefill_equals_generate(case, chunk):
    """Prefill in chunks, while shorter prompts already decode, changes nothing."""
    driver, reference = case
    batch = prompts(2, 22, 57)
    assert driver.generate(batch, NEW_TOKENS, chunk=chunk) == [reference(prompt) for prompt in batch]


def test_warm_prefix_equals_generate(case):
    """Sequences that share the blocks of a prefix computed for another prompt give what they give cold."""
    driver, reference = case
    [prefix, *tails] = prompts(40, 1, 9, 30)
    shared = driver.blocks(len(prefix))
    driver.generate([prefix], 1, tables=[[*shared, *driver.blocks(8)]])
    whole = [prefix + tail for tail in tails]
    tables = [[*shared, *driver.blocks(len(tail) + NEW_TOKENS)] for tail in tails]
    warm = driver.generate(whole, NEW_TOKENS, tables=tables, cached=[len(prefix)] * len(whole))
    assert warm == [reference(prompt) for prompt in whole]


@pytest.mark.parametrize("kind", ["gpt2", "phi3", "qwen3_moe", "deepseek_v3"])
def test_other_architectures_equal_generate(tiny_model, tiny_runner, drive, reference_greedy, kind):
    """Learned positions, fused projections, experts, latent attention: whatever keeps its state in K and V works."""
    batch = prompts(2, 22, 57)
    expected = [reference_greedy(tiny_model(kind), prompt, NEW_TOKENS) for prompt in batch]
    assert drive(tiny_runner(kind)).generate(batch, NEW_TOKENS, chunk=19) == expected


async def through_engine(runner, requests, **options):
    """Output ids of (id, prompt) requests that are submitted together to an `EmbeddedEngine` over `runner`."""
    config = EngineConfig(model="tiny", block_size=runner.block_size, **options)
    engine = EmbeddedEngine(config, lambda: (runner, lambda token: b"%d " % token))
    await engine.start()

    async def output(request_id, prompt):
        request = EngineRequest(request_id, prompt, NEW_TOKENS, SamplingParams(temperature=0), ignore_eos=True)
        events = [event async for event in engine.submit(request)]
        return [token for event in events[:-1] for token in event.token_ids], events[-1].usage

    rounds = [await asyncio.gather(*(output(f"{n}-{name}", prompt) for name, prompt in requests)) for n in range(2)]
    await engine.close()
    return rounds


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("options", [{}, {"step_tokens": 16, "max_running": 5}], ids=["wide", "narrow"])
async def test_through_the_engine_equals_generate(tiny_model, tiny_runner, reference_greedy, kind, options):
    """The scheduler, prefix cache and all: concurrent requests, cold and then warm, give transformers' tokens."""
    [shared, *tails] = prompts(40, 1, 9, 30, 20, 7)
    requests = [(str(n), shared + tail) for n, tail in enumerate(tails)] + [("short", tails[-1])]
    expected = [reference_greedy(tiny_model(kind), prompt, NEW_TOKENS) for _, prompt in requests]
    cold, warm = await through_engine(tiny_runner(kind), requests, **options)
    assert [tokens for tokens, _ in cold] == expected
    assert [tokens for tokens, _ in warm] == expected
    assert all(usage.cached_tokens >= 40 for _, usage in warm[:-1])


async def test_preempted_requests_equal_generate(tiny_model, tiny_runner, reference_greedy):
    """With a pool too small for all, requests are preempted and recomputed, and still give the same tokens."""
    requests = [(str(n), prompt) for n, prompt in enumerate(prompts(40, 57, 31, 64, 21))]
    expected = [reference_greedy(tiny_model("qwen3"), prompt, NEW_TOKENS) for _, prompt in requests]
    runner = tiny_runner("qwen3", num_blocks=16)
    cold, _ = await through_engine(runner, requests)
    assert [tokens for tokens, _ in cold] == expected


@pytest.mark.model
def test_smollm2_equals_generate(smollm2_folder, drive, reference_greedy):
    """The default model in float32: English and Chinese prompts in one batch, cold and over a shared prefix."""
    runner = TorchRunner(EngineConfig(str(smollm2_folder), dtype="float32", num_blocks=64, device="cpu"))
    fast = AutoTokenizer.from_pretrained(smollm2_folder)
    questions = [
        "What is the capital of France?",
        "退款期限是多少天？请简要回答。",
        "Write a haiku about the sea and the wind.",
    ]
    batch = [
        fast(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").input_ids for question in questions
    ]
    expected = [reference_greedy(smollm2_folder, prompt, 10) for prompt in batch]
    driver = drive(runner)
    tables = [driver.blocks(len(prompt) + 10) for prompt in batch]
    assert driver.generate(batch, 10, tables=tables) == expected
    assert driver.generate(batch, 10, tables=tables, cached=[8] * 3) == expected

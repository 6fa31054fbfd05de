"""Greedy float32 output equals transformers' `generate`, whatever else is in the batch or in the cache."""

import random

import pytest

MODELS = [
    "llama", "llama_one_kv_head", "llama_rope_scaled", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text",
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

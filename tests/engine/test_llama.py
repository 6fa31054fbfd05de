"""The compact forward against transformers: every family, however a sequence is cut into steps."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.batch import SequenceWork
from engine.llama import LlamaForward, load_forward, supports
from engine.native import Kernels, load
from engine.request import SamplingParams

SIZES: dict[str, Any] = {
    "vocab_size": 193,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": None,
    "bos_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE)),
    "linear-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LINEAR_ROPE)),
    "yarn-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=YARN_ROPE)),
    "llama-biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
    "smollm": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=21)),
    "mistral-window-of-a-block": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=16)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2-window-in-upper-layers": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=19, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
}
NUM_BLOCKS, BLOCK_SIZE, NEW_TOKENS = 64, 16, 6


@dataclass
class Case:
    """A tiny model with what transformers generates from it."""

    name: str
    model: Any
    prompts: list[list[int]]
    expected: list[list[int]] = field(default_factory=list)


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tiny products are quicker without torch's workers; the kernels get two threads of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The native library, built once for all runs of the suite."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine to build the kernels with")
    return load(request.config.cache.mkdir("kernels"))


@pytest.fixture(params=["torch", "native"])
def use(request: pytest.FixtureRequest) -> Kernels | None:
    """The kernels, or None for the torch forward."""
    return request.getfixturevalue("kernels") if request.param == "native" else None


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest) -> Case:
    """One model of each family, weights drawn large enough for its tokens to differ."""
    torch.manual_seed(7)
    model = FAMILIES[request.param]().eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.1 if "norm" in name else 0.3)
    prompts = [[random.Random(n).randrange(1, 193) for _ in range(n)] for n in (1, 15, 16, 33, 90)]
    made = Case(request.param, model, prompts)
    for prompt in prompts:
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
        made.expected.append(ids[0, len(prompt) :].tolist())
    return made


class Driver:
    """Runs sequences greedily, however it is told to cut them."""

    def __init__(self, model: Any, kernels: Kernels | None, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        options = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "threads": 2} | options
        self.block_size = options["block_size"]
        self.forward: LlamaForward = load_forward(
            dict(model.state_dict()), model.config, dtype=dtype, kernels=kernels, **options
        )
        free = list(range(options["num_blocks"]))
        random.Random(3).shuffle(free)
        self._free = free

    def table(self, tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """Blocks for that many tokens, after the shared ones."""
        return [*shared, *(self._free.pop() for _ in range(-(-tokens // self.block_size) - len(shared)))]

    def step(self, *works: tuple[list[int], int, list[int], bool]) -> list[list[float]]:
        """Works as (all tokens of the sequence up to the step's end, start, table, sample)."""
        batch = [
            SequenceWork(i, tokens[start:], start, table, sample, SamplingParams(temperature=0))
            for i, (tokens, start, table, sample) in enumerate(works)
        ]
        return self.forward.step(batch).tolist()

    def decode(self, tokens: list[int], start: int, table: list[int], n: int = NEW_TOKENS) -> list[int]:
        """Prefill what is missing in one step, then decode alone."""
        tokens, length = list(tokens), len(tokens)
        while len(tokens) < length + n:
            (row,) = self.step((tokens, start, table, True))
            start = len(tokens)
            tokens.append(argmax(row))
        return tokens[length:]


def argmax(row: Sequence[float]) -> int:
    """The greedy token, the first of equals."""
    return max(range(len(row)), key=row.__getitem__)


def test_alone(case: Case, use: Kernels | None) -> None:
    """Each prompt on its own gives transformers' greedy tokens."""
    driver = Driver(case.model, use)
    got = [driver.decode(p, 0, driver.table(len(p) + NEW_TOKENS)) for p in case.prompts]
    assert got == case.expected


def test_batched(case: Case, use: Kernels | None) -> None:
    """All prompts in the same steps, prefills of different lengths first and decodes after, change nothing."""
    driver = Driver(case.model, use)
    all_tokens = [list(prompt) for prompt in case.prompts]
    tables = [driver.table(len(prompt) + NEW_TOKENS) for prompt in case.prompts]
    starts = [0] * len(all_tokens)
    for _ in range(NEW_TOKENS):
        rows = driver.step(*((t, s, table, True) for t, s, table in zip(all_tokens, starts, tables, strict=True)))
        starts = [len(tokens) for tokens in all_tokens]
        for tokens, row in zip(all_tokens, rows, strict=True):
            tokens.append(argmax(row))
    assert [t[-NEW_TOKENS:] for t in all_tokens] == case.expected


@pytest.mark.parametrize("chunk", [7, 32])
def test_chunked_beside_a_decode(case: Case, use: Kernels | None, chunk: int) -> None:
    """A prompt prefilled in chunks, in steps where another sequence decodes, ends the same; chunks give no logits."""
    driver = Driver(case.model, use)
    long, other = case.prompts[-1], case.prompts[1]
    table, other_table = driver.table(len(long) + NEW_TOKENS), driver.table(512 // BLOCK_SIZE * BLOCK_SIZE)
    decoded, other_start = list(other), 0
    for end in [*range(chunk, len(long), chunk), len(long)]:
        start = (end - 1) // chunk * chunk
        rows = driver.step((long[:end], start, table, end == len(long)), (decoded, other_start, other_table, True))
        assert len(rows) == 1 + (end == len(long))
        other_start = len(decoded)
        decoded.append(argmax(rows[-1]))
    expected = min(len(decoded) - len(other), NEW_TOKENS)
    assert decoded[len(other) : len(other) + expected] == case.expected[1][:expected]
    first = argmax(rows[0])
    assert [first, *driver.decode([*long, first], len(long), table, NEW_TOKENS - 1)] == case.expected[-1]


@pytest.mark.parametrize("cached_blocks", [1, 5])
def test_prefix_cached(case: Case, use: Kernels | None, cached_blocks: int) -> None:
    """A sequence that starts behind another's blocks reads them and ends the same."""
    driver = Driver(case.model, use)
    prompt = case.prompts[-1]
    first = driver.table(len(prompt) + NEW_TOKENS)
    driver.step((prompt, 0, first, False))
    table = driver.table(len(prompt) + NEW_TOKENS, first[:cached_blocks])
    assert driver.decode(prompt, cached_blocks * BLOCK_SIZE, table) == case.expected[-1]
    assert driver.decode(prompt, 0, first) == case.expected[-1]


def test_wrong_indices_are_refused(case: Case, kernels: Kernels) -> None:
    """The kernels never see a token, a block or a position that is not there."""
    driver = Driver(case.model, kernels)
    for tokens, start, table, message in (
        ([5, 193], 0, [0], "token id of 5 to 193 is outside 0 to 192"),
        ([-1], 0, [0], "token id of -1"),
        ([5], 0, [NUM_BLOCKS], "block of 64 to 64 is outside 0 to 63"),
        ([5] * 17, 0, [0], "17 tokens from 0 on do not fit a table of 16 slots"),
        ([5], 1, [0], "0 tokens from 1 on do not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            driver.step((tokens, start, table, True))


def test_closed_forward_is_refused(case: Case, kernels: Kernels) -> None:
    """After `close` a step is an error, and a second `close` is nothing."""
    driver = Driver(case.model, kernels)
    driver.forward.close()
    driver.forward.close()
    with pytest.raises(RuntimeError, match="closed"):
        driver.step(([5], 0, [0], True))


def test_weights_are_taken_over(case: Case, use: Kernels | None) -> None:
    """The state is empty afterwards, so that its memory can go."""
    state = dict(case.model.state_dict())
    load_forward(state, case.model.config, num_blocks=1, block_size=16, dtype=torch.float32, kernels=use).close()
    assert state == {}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mlp_bias": True}, "biases in the MLP"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rope type 'dynamic'"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_unsupported_models_say_why(changes: dict[str, Any], reason: str) -> None:
    """A model of the right family with an unusual part is refused by name, before its weights are read."""
    config = LlamaConfig(**SIZES, **changes)
    assert reason in (supports(config) or "")
    with pytest.raises(ValueError, match=reason):
        load_forward({}, config, num_blocks=1, block_size=16, dtype=torch.float32)


def test_other_families_say_why() -> None:
    """Another architecture is refused by name."""
    assert "'gemma2'" in (supports(Gemma2Config()) or "")


@pytest.mark.parametrize(("sizes", "block_size"), [({"head_dim": 24}, 16), ({"hidden_size": 72}, 16), ({}, 10)])
def test_odd_sizes_go_to_torch(kernels: Kernels, sizes: dict[str, int], block_size: int) -> None:
    """Where the kernels' granules do not fit, the torch forward computes, and says so in its name."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | sizes)).eval()
    driver = Driver(model, kernels, block_size=block_size)
    assert driver.forward.name.startswith("torch")
    prompt = list(range(1, 30))
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)[0].tolist()
    assert driver.decode(prompt, 0, driver.table(len(prompt) + NEW_TOKENS)) == ids[len(prompt) :]


def test_pool_larger_than_memory_is_refused(kernels: Kernels) -> None:
    """A pool that the system cannot even reserve is an error with its size."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    with pytest.raises(MemoryError, match="MiB"):
        Driver(model, kernels, num_blocks=2**45)

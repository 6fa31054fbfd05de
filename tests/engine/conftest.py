"""Tiny models with random weights, and a driver that runs a `Runner` by hand."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.batch import Runner, SequenceWork
from engine.config import EngineConfig
from engine.request import SamplingParams

GREEDY = SamplingParams(temperature=0)
_SHAPE = {
    "vocab_size": 101, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "initializer_range": 0.4,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 6}
TINY_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_one_kv_head": ("llama", {"num_key_value_heads": 1}),
    "llama_rope_scaled": ("llama", {"rope_parameters": _LLAMA3_ROPE}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": 21}),
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 21, "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 0.5, "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 21, "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 512}),
    "phi3": ("phi3", {}),
    "qwen3_moe": ("qwen3_moe", {"num_experts": 4, **_EXPERTS}),
    "deepseek_v3": (
        "deepseek_v3",
        {
            "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
            **_EXPERTS, **_LATENT,
        },
    ),
}  # fmt: skip


def save_tiny_model(kind: str, folder: Path) -> Path:
    """Build the model named in `TINY_MODELS` with seeded random weights, and save it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(len(kind))
    model_type, changes = TINY_MODELS[kind]
    config = AutoConfig.for_model(model_type, **{**_SHAPE, **changes})
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of a tiny random model by its name in `TINY_MODELS`; built once a session."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save_tiny_model(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def tiny_runner(tiny_model: Callable[[str], Path]) -> Callable[..., Any]:
    """Makes a float32 `TorchRunner` over a tiny model; options are those of `EngineConfig`."""
    from engine.runner import TorchRunner

    def runner(kind: str, **options: Any) -> TorchRunner:
        config = {"dtype": "float32", "block_size": 8, "num_blocks": 400, "device": "cpu", "num_threads": 1, **options}
        return TorchRunner(EngineConfig(model=str(tiny_model(kind)), **config))

    return runner


class HandDriver:
    """Runs prompts through a runner, with its own block tables handed out in scattered order."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        step = next(s for s in (37, 41, 43) if math.gcd(s, runner.num_blocks) == 1)
        self._free = itertools.cycle(n * step % runner.num_blocks for n in range(runner.num_blocks))

    def blocks(self, num_tokens: int) -> list[int]:
        """Enough blocks for `num_tokens`."""
        return [next(self._free) for _ in range(-(-num_tokens // self.runner.block_size))]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        chunk: int = 1_000_000,
        sampling: Sequence[SamplingParams] | SamplingParams = GREEDY,
        tables: Sequence[list[int]] | None = None,
        cached: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Generate for all prompts together: prefill in chunks of `chunk`, decode as soon as a prompt is done.

        `tables` and `cached` say where a prefix lies that is in KV already, and how long it is.
        """
        params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        tables = tables or [self.blocks(len(prompt) + max_tokens) for prompt in prompts]
        done = list(cached or [0] * len(prompts))
        tokens = [list(prompt) for prompt in prompts]
        while running := [n for n in range(len(prompts)) if len(tokens[n]) < len(prompts[n]) + max_tokens]:
            batch = [self._work(n, tokens[n], done[n], chunk, tables[n], params[n], len(prompts[n])) for n in running]
            for n, work, token in zip(running, batch, self.runner.run(batch), strict=True):
                done[n] += len(work.token_ids)
                assert (token is None) != work.sample
                if token is not None:
                    tokens[n].append(token)
        return [all_tokens[len(prompt) :] for all_tokens, prompt in zip(tokens, prompts, strict=True)]

    def _work(
        self, n: int, tokens: list[int], done: int, chunk: int, table: list[int], params: SamplingParams, prompt: int
    ) -> SequenceWork:
        end = min(done + chunk, len(tokens))
        index = len(tokens) - prompt
        return SequenceWork(n, tokens[done:end], done, table, end == len(tokens), params, index, tokens)


@pytest.fixture(scope="session")
def drive() -> type[HandDriver]:
    """The hand driver's class."""
    return HandDriver


@pytest.fixture(scope="session")
def reference_greedy() -> Callable[[Path, Sequence[int], int], list[int]]:
    """Greedy continuation by transformers' own `generate` in float32, one prompt alone."""
    models: dict[Path, Any] = {}

    @cache
    def generate(folder: Path, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
        import torch
        from transformers import AutoModelForCausalLM

        if folder not in models:
            loading = {"dtype": torch.float32, "attn_implementation": "eager"}
            models[folder] = AutoModelForCausalLM.from_pretrained(folder, **loading)
        ids = torch.tensor([list(prompt)])
        output = models[folder].generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens,
            min_new_tokens=max_tokens, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        continuation: list[int] = output[0, len(prompt) :].tolist()
        return continuation

    return lambda folder, prompt, max_tokens: generate(folder, tuple(prompt), max_tokens)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The default model, converted once into the usual cache."""
    from engine.locate import default_model_path, resolve_model

    return resolve_model(str(default_model_path()))

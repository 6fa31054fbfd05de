"""Which requests can never run here, whatever else runs: told at once, with the numbers, and without a retry time."""

import math
from dataclasses import dataclass

from engine.batch import Runner
from engine.config import EngineConfig
from engine.errors import RequestRejected
from engine.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the engine can hold. `block_bytes` is one KV block's size."""

    max_context_tokens: int
    vocab_size: int
    block_size: int
    block_bytes: int
    num_blocks: int

    @classmethod
    def of(cls, config: EngineConfig, runner: Runner) -> "Bounds":
        """The model's bounds, tightened by the operator's.

        Raises:
            ValueError: one of the operator's is below 1.
        """
        if not (config.overcommit >= 1.0 and config.max_itl_stretch > 1.0):
            raise ValueError(
                f"engine.overcommit is {config.overcommit} and engine.max_itl_stretch {config.max_itl_stretch}; the "
                "first must be at least 1.0, the second more than 1.0"
            )
        for name in ("max_running", "step_tokens", "max_queue_requests", "max_queue_tokens"):
            if getattr(config, name) < 1:
                raise ValueError(f"engine.{name} is {getattr(config, name)}; it must be at least 1")
        model = runner.model
        return cls(
            max_context_tokens=min(config.max_context_tokens or model.max_context_tokens, model.max_context_tokens),
            vocab_size=model.vocab_size,
            block_size=runner.block_size,
            block_bytes=runner.block_size * model.kv_bytes_per_token,
            num_blocks=runner.num_blocks,
        )


def num_kv_tokens(num_prompt: int, max_tokens: int) -> int:
    """Tokens that a request writes to KV at most: all but the last, which is drawn and never read."""
    return num_prompt + max_tokens - 1


def num_kv_blocks(request: EngineRequest, bounds: Bounds) -> int:
    """KV blocks that a request fills at most."""
    return -(-num_kv_tokens(len(request.prompt_token_ids), request.max_tokens) // bounds.block_size)


def check_request(request: EngineRequest, bounds: Bounds) -> None:
    """Refuse a request that can never run.

    Raises:
        RequestRejected: with `retry_after_s` None.
    """
    problem = _malformed(request, bounds) or _too_large(request, bounds)
    if problem:
        raise RequestRejected(problem)


def _malformed(request: EngineRequest, bounds: Bounds) -> str | None:
    if not request.prompt_token_ids:
        return "the prompt is empty; send at least one token"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}; ask for at least 1"
    if not request.weight > 0 or not math.isfinite(request.weight):
        return f"weight is {request.weight}; it must be a positive number"
    if "" in request.stop:
        return "a stop string is empty; leave it out"
    lowest, highest = min(request.prompt_token_ids), max(request.prompt_token_ids)
    if lowest < 0 or highest >= bounds.vocab_size:
        wrong = lowest if lowest < 0 else highest
        return f"token id {wrong} is not in the vocabulary of {bounds.vocab_size}; encode with this model's tokenizer"
    return None


def _too_large(request: EngineRequest, bounds: Bounds) -> str | None:
    num_prompt, max_tokens = len(request.prompt_token_ids), request.max_tokens
    size = f"a prompt of {num_prompt} tokens and {max_tokens} tokens of output"
    if num_prompt + max_tokens > bounds.max_context_tokens:
        return (
            f"{size} make {num_prompt + max_tokens}, more than the context of {bounds.max_context_tokens}; "
            "shorten the prompt or lower max_tokens"
        )
    num_blocks = num_kv_blocks(request, bounds)
    if num_blocks > bounds.num_blocks:
        return (
            f"{size} need {num_blocks} KV blocks of {bounds.block_size} tokens, the pool has {bounds.num_blocks}; "
            "shorten the prompt, lower max_tokens or give the engine a larger KV pool"
        )
    share = bounds.num_blocks if request.kv_share is None else int(request.kv_share * bounds.num_blocks)
    if num_blocks > share:
        return (
            f"{size} need {num_blocks} KV blocks, and team {request.team!r} may hold {share} of {bounds.num_blocks} "
            f"(kv_share {request.kv_share}); shorten the prompt, lower max_tokens or raise kv_share"
        )
    return None

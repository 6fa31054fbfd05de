"""Which requests can never run here, whatever else runs: told at once, with the numbers, and without a retry time."""

from dataclasses import dataclass

from engine.errors import RequestRejected
from engine.request import EngineRequest


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the engine can hold."""

    max_context_tokens: int
    vocab_size: int
    block_size: int
    num_blocks: int


def check_request(request: EngineRequest, bounds: Bounds, num_blocks: int) -> None:
    """Refuse a request that needs `num_blocks` KV blocks if it can never run.

    Raises:
        RequestRejected: with `retry_after_s` None.
    """
    problem = _malformed(request, bounds) or _too_large(request, bounds, num_blocks)
    if problem:
        raise RequestRejected(problem)


def _malformed(request: EngineRequest, bounds: Bounds) -> str | None:
    if not request.prompt_token_ids:
        return "the prompt is empty; send at least one token"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}; ask for at least 1"
    if "" in request.stop:
        return "a stop string is empty; leave it out"
    lowest, highest = min(request.prompt_token_ids), max(request.prompt_token_ids)
    if lowest < 0 or highest >= bounds.vocab_size:
        wrong = lowest if lowest < 0 else highest
        return f"token id {wrong} is not in the vocabulary of {bounds.vocab_size}; encode with this model's tokenizer"
    return None


def _too_large(request: EngineRequest, bounds: Bounds, num_blocks: int) -> str | None:
    num_prompt = len(request.prompt_token_ids)
    size = f"a prompt of {num_prompt} tokens and {request.max_tokens} tokens of output"
    if num_prompt + request.max_tokens > bounds.max_context_tokens:
        return (
            f"{size} make {num_prompt + request.max_tokens}, more than the context of {bounds.max_context_tokens}; "
            "shorten the prompt or lower max_tokens"
        )
    if num_blocks > bounds.num_blocks:
        return (
            f"{size} need {num_blocks} KV blocks of {bounds.block_size} tokens, the pool has {bounds.num_blocks}; "
            "shorten the prompt, lower max_tokens or give the engine a larger KV pool"
        )
    return None

"""What a request costs, in the policy's units of account."""

from engine.request import Usage
from gateway.schemas import Cost
from policies.schema import Prices

GIB = 2**30
DIGITS = 9


def cost_of(prices: Prices, usage: Usage) -> Cost:
    """Computed and cached prompt tokens, output tokens, and KV memory over time, each at its price.

    The parts are rounded first, so that they add up to the total as printed.
    """
    cached = usage.cached_tokens or 0
    computed = charged_prompt_tokens(usage) - cached
    prompt = round(computed * prices.prompt_per_1k / 1000, DIGITS)
    cached_prompt = round(cached * prices.cached_prompt_per_1k / 1000, DIGITS)
    output = round(usage.output_tokens * prices.output_per_1k / 1000, DIGITS)
    kv = round((usage.kv_byte_seconds or 0.0) / GIB * prices.kv_gib_second, DIGITS)
    return Cost(
        currency=prices.currency,
        prompt=prompt,
        cached_prompt=cached_prompt,
        output=output,
        kv=kv,
        total=round(prompt + cached_prompt + output + kv, DIGITS),
    )


def charged_prompt_tokens(usage: Usage) -> int:
    """Prompt tokens that were computed or taken from cache; all of them where the engine cannot tell."""
    if usage.cached_tokens is None or usage.computed_tokens is None:
        return usage.prompt_tokens
    return usage.cached_tokens + usage.computed_tokens


def most_cost(prices: Prices, prompt_tokens: int, output_tokens: int) -> float:
    """What these tokens cost at most, nothing cached. KV memory over time cannot be known before: it is left out."""
    prompt_price = max(prices.prompt_per_1k, prices.cached_prompt_per_1k)
    return (prompt_tokens * prompt_price + output_tokens * prices.output_per_1k) / 1000

"""What a client is told of its limits: `x-ratelimit-*` headers, what remains, and a refusal in numbers."""

from collections.abc import Mapping

from gateway.errors import ConcurrencyExceeded, LimitRefused, QuotaExceeded, RateLimited
from gateway.ledger import Balance, LimitExceeded, LimitKind, Standing
from gateway.schemas import Remaining

ERRORS: Mapping[LimitKind, type[LimitRefused]] = {
    "requests_per_minute": RateLimited,
    "tokens_per_minute": RateLimited,
    "tokens_per_day": QuotaExceeded,
    "cost_per_month": QuotaExceeded,
    "concurrency": ConcurrencyExceeded,
}
PHRASES: Mapping[LimitKind, str] = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "tokens_per_day": "tokens a day",
    "cost_per_month": "units of cost a month",
    "concurrency": "requests at once",
}


def refusal(exceeded: LimitExceeded) -> LimitRefused:
    """The error for a limit that has no room, with the numbers and the way out."""
    limit, phrase = exceeded.limit, PHRASES[exceeded.limit.kind]
    whole = f"{limit.bound:,.10g} {phrase} of {limit.scope}"
    if exceeded.retry_after_s is None:
        message = (
            f"this request may take {exceeded.asked:,.10g}, more than the whole {whole}, so it can never be admitted; "
            "lower max_tokens or budget.max_prompt_tokens, or have the limit raised"
        )
    else:
        message = (
            f"{exceeded.used:,.10g} of {whole} are taken and this request may take {exceeded.asked:,.10g}; "
            f"try again in {max(1, round(exceeded.retry_after_s)):,} s"
        )
    return ERRORS[limit.kind](
        message, retry_after_s=exceeded.retry_after_s, headers=ratelimit_headers(exceeded.standing)
    )


def ratelimit_headers(standing: Standing) -> dict[str, str]:
    """`x-ratelimit-*` as OpenAI names them: the minute's limits, of several accounts the one with least left."""
    headers = {}
    least = _least(standing)
    for kind, what in (("requests_per_minute", "requests"), ("tokens_per_minute", "tokens")):
        if balance := least.get(kind):
            headers[f"x-ratelimit-limit-{what}"] = f"{balance.bound:.0f}"
            headers[f"x-ratelimit-remaining-{what}"] = f"{int(balance.remaining)}"
            headers[f"x-ratelimit-reset-{what}"] = f"{balance.reset_s or 0:.0f}s"
    return headers


def remaining_of(standing: Standing) -> Remaining:
    """The report's `limits.remaining`; null where there is no such limit."""
    least = {kind: int(balance.remaining) for kind, balance in _least(standing).items()}
    return Remaining(
        requests_per_minute=least.get("requests_per_minute"),
        tokens_per_minute=least.get("tokens_per_minute"),
        tokens_per_day=least.get("tokens_per_day"),
    )


def _least(standing: Standing) -> dict[str, Balance]:
    least: dict[str, Balance] = {}
    for balance in standing:
        if balance.kind not in least or balance.remaining < least[balance.kind].remaining:
            least[balance.kind] = balance
    return least

"""The report's numbers: sums, rounding, cost, TTFT from arrival, advice, and unknown against zero."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from budget.types import ContextReport, DocumentReport, RankingReport
from engine.request import Usage
from gateway.advice import advise
from gateway.cost import charged_prompt_tokens, cost_of, most_cost
from gateway.exchange import Exchange
from gateway.report import resources_of
from gateway.schemas import BudgetReport
from policies.schema import Prices


def test_report_is_whole(gateway: Any, ask: Callable[..., Any]) -> None:
    """A report decodes as its own type and has everything that a finished request has."""
    report = gateway.post(ask(user="u-1")).json()["budget_report"]
    typed = msgspec.convert(report, BudgetReport)
    assert (typed.version, typed.truncated, typed.user, typed.stage) == (1, False, "u-1", "production")
    assert typed.model is not None
    assert (typed.model.name, typed.model.id, typed.model.engine) == ("chat", "fake", "embedded")
    assert typed.policy.name == "dev/default"
    assert typed.limits is not None
    assert typed.limits.store == "ok"
    assert typed.attempts == []


def test_numbers_agree(gateway: Any, ask: Callable[..., Any]) -> None:
    """Usage, resources and context agree; cached and computed make the prompt; sections add up."""
    body = ask("A question?", documents=[{"text": "One fact. Another fact."}, {"text": "A third one."}], temperature=0)
    for _ in range(2):
        answer = gateway.post(body).json()
        context, resources = answer["budget_report"]["context"], answer["budget_report"]["resources"]
        assert resources["prompt_tokens"] == context["tokens_after"] == answer["usage"]["prompt_tokens"]
        assert resources["cached_tokens"] + resources["computed_tokens"] == resources["prompt_tokens"]
        assert resources["output_tokens"] == answer["usage"]["completion_tokens"]
        assert sum(section["tokens_after"] for section in context["sections"]) == context["tokens_after"]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == resources["cached_tokens"]
    assert resources["cached_tokens"] > 0


def test_times_count_from_arrival(start: Any, ask: Callable[..., Any]) -> None:
    """TTFT includes planning and queue, and lies before the total."""
    from time import sleep

    from budget.plan import plan

    def slow(request: Any, ports: Any) -> Any:
        sleep(0.1)
        return plan(request, ports)

    with start(plan=slow, step_delay_s=0.01) as gateway:
        resources = gateway.post(ask(max_tokens=5)).json()["budget_report"]["resources"]
    assert resources["plan_ms"] >= 100
    assert resources["ttft_ms"] >= resources["plan_ms"] + 9
    assert resources["total_ms"] >= resources["ttft_ms"] + 35
    assert resources["total_ms"] == round(resources["total_ms"], 2)


def test_kv_is_not_shared_between_teams(gateway: Any, ask: Callable[..., Any]) -> None:
    """The same prompt hits the cache for its own team alone."""
    body = ask("The same long prompt for everyone, more than one block of it.", temperature=0)
    cached = [gateway.post(body, key=key).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for key in
              ("dev", "dev", "other", "other")]  # fmt: skip
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0
    assert cached[3] > 0


@pytest.mark.parametrize(("sharing", "hit"), [("global", True), ("none", False)])
def test_prefix_sharing(start: Any, ask: Callable[..., Any], sharing: str, hit: bool) -> None:
    """`global` shares between teams, `none` not even within one."""
    edit = lambda policy: policy.replace("defaults:", f"defaults:\n  prefix_sharing: {sharing}")  # noqa: E731
    body = ask("The same long prompt for everyone, more than one block of it.")
    with start(policy_edit=edit) as gateway:
        gateway.post(body, key="dev")
        key = "other" if hit else "dev"
        assert (gateway.post(body, key=key).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) == hit


def test_cost_of_the_documented_example() -> None:
    """The numbers of the documented report."""
    usage = Usage(1187, 640, 547, output_tokens=92, kv_byte_seconds=29_262_643.0)
    cost = cost_of(Prices(), usage)
    assert (cost.prompt, cost.cached_prompt, cost.output) == (0.00547, 0.00064, 0.0092)
    assert round(cost.kv, 5) == 0.00273
    assert cost.total == round(cost.prompt + cost.cached_prompt + cost.output + cost.kv, 9)


def test_cost_of_what_is_unknown_or_never_ran() -> None:
    """An engine that does not tell its cache hits is charged whole prompts; a request that never ran nothing."""
    assert charged_prompt_tokens(Usage(100, None, None)) == 100
    assert cost_of(Prices(), Usage(100, None, None)).prompt == 0.001
    assert cost_of(Prices(), Usage(100, 0, 0)).total == 0
    assert most_cost(Prices(), 1000, 1000) == pytest.approx(0.11)


def test_unknown_is_null_and_zero_is_zero() -> None:
    """What an engine does not tell stays null; what it counts as none is 0."""
    exchange = Exchange()
    resources = resources_of(exchange)
    assert resources.cached_tokens == 0
    assert resources.queue_ms is resources.ttft_ms is resources.kv_bytes_peak is None
    assert resources.inter_token_ms is resources.output_tokens_per_s is None


def context(*fates: tuple[int, str, str | None]) -> ContextReport:
    """A report with passages of 100 tokens: rank, fate, reason."""
    documents = [
        DocumentReport(index=n, id=None, fate=fate, reason=reason, tokens_before=100, tokens_after=0, rank=rank)  # type: ignore[arg-type]
        for n, (rank, fate, reason) in enumerate(fates)
    ]
    return ContextReport(
        max_prompt_tokens=1, max_document_tokens=None, requested_output_tokens=None, granted_output_tokens=1,
        tokens_before=1, tokens_after=1, count_method="exact", sections=[], documents=documents, turns=[],
        ranking=RankingReport(method="bm25"),
    )  # fmt: skip


def test_advice_on_unused_documents() -> None:
    """Only the end of the ranking counts: what never fitted and had nothing used behind it."""
    dropped = ("dropped", "over_budget")
    (advice,) = advise(context((2, *dropped), (1, "kept", None), (4, *dropped), (3, "trimmed", "token_cap")))
    assert (advice.code, advice.saves_tokens) == ("documents_unused", 100)
    assert "ranked 4 never fitted; asking the retriever for 3 would save 100 tokens" in advice.message
    (advice,) = advise(context((1, *dropped), (2, *dropped)))
    assert "ranked 1 to 2" in advice.message
    assert advise(context((1, "kept", None))) == []
    assert advise(context()) == []

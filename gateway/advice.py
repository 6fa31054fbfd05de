"""What the prompt's author could change, read off the report."""

from budget.types import ContextReport
from gateway.schemas import Advice


def advise(context: ContextReport) -> list[Advice]:
    """Every piece of advice that applies, the one that saves most first."""
    found = [advice for rule in (documents_unused,) if (advice := rule(context)) is not None]
    return sorted(found, key=lambda advice: -(advice.saves_tokens or 0))


def documents_unused(context: ContextReport) -> Advice | None:
    """Passages at the end of the ranking that never fitted: the retriever need not send them."""
    ranked = sorted((d for d in context.documents if d.rank is not None), key=lambda d: d.rank or 0)
    used = [n for n, document in enumerate(ranked) if document.reason != "over_budget"]
    tail = ranked[used[-1] + 1 if used else 0 :]
    if not tail:
        return None
    saves, keep = sum(document.tokens_before for document in tail), len(ranked) - len(tail)
    first, last = tail[0].rank, tail[-1].rank
    which = f"The passage ranked {first}" if first == last else f"Passages ranked {first} to {last}"
    return Advice(
        code="documents_unused",
        message=f"{which} never fitted; asking the retriever for {keep} would save {saves:,} tokens a request.",
        saves_tokens=saves,
    )

"""How many tokens each section may take, and the errors where what must stay takes more."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from budget.errors import ContextLengthExceeded
from budget.types import PlanRequest, SectionName
from policies.schema import SectionLimit


@dataclass(frozen=True, slots=True)
class Bounds:
    """Tokens; None is no bound of its own."""

    prompt: int
    sections: Mapping[SectionName, int | None]
    max_prompt_tokens: int
    max_context_tokens: int
    reserve_output_tokens: int

    def of(self, section: SectionName) -> int:
        """A section's bound, at most the prompt's."""
        own = self.sections.get(section)
        return max(self.prompt, 0) if own is None else min(own, max(self.prompt, 0))


def read_bounds(request: PlanRequest) -> Bounds:
    """The prompt's bound leaves the reserve for the answer; a section's share is of the prompt's bound."""
    prompt = min(request.max_prompt_tokens, request.max_context_tokens - request.reserve_output_tokens)
    own = request.context.sections
    sections: dict[SectionName, int | None] = {
        "system": _bound(own.system, prompt),
        "facts": _bound(own.facts, prompt),
        "history": _bound(own.history, prompt),
        "documents": _least(_bound(own.documents, prompt), request.max_document_tokens),
    }
    return Bounds(
        prompt, sections, request.max_prompt_tokens, request.max_context_tokens, request.reserve_output_tokens
    )


def _bound(section: SectionLimit, prompt: int) -> int | None:
    share = None if section.max_share is None else max(math.floor(section.max_share * prompt), 0)
    return _least(section.max_tokens, share)


def _least(*bounds: int | None) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def require(fits: Bounds, sections: Mapping[SectionName, int], *, what: str) -> None:
    """Checks parts that cannot be left out.

    Args:
        fits: the bounds.
        sections: tokens of these parts by section.
        what: what they are, for the message.

    Raises:
        ContextLengthExceeded: they are over the prompt's bound, or system texts or passages over their own.
    """
    hints = {"system": ("messages", "shorten the system text"), "documents": ("documents", "send less of them pinned")}
    for name in ("system", "documents"):
        tokens, bound = sections.get(name, 0), fits.sections.get(name)
        if bound is not None and tokens > bound:
            param, hint = hints[name]
            raise ContextLengthExceeded(
                f"The {name} section must hold {tokens:,} tokens, but its limit is {bound:,}: {hint}, or raise "
                f"{'max_document_tokens or ' if name == 'documents' else ''}context.sections.{name} in the policy.",
                needed_tokens=tokens,
                allowed_tokens=bound,
                param=param,
            )
    needed = sum(sections.values())
    if needed > fits.prompt:
        raise ContextLengthExceeded(
            f"The prompt needs {needed:,} tokens for {what} ({_parts(sections)}), but {max(fits.prompt, 0):,} are "
            f"allowed ({_reason(fits)}): shorten these parts, or raise the limit.",
            needed_tokens=needed,
            allowed_tokens=max(fits.prompt, 0),
        )


def _parts(sections: Mapping[SectionName, int]) -> str:
    return ", ".join(f"{name} {tokens:,}" for name, tokens in sections.items() if tokens)


def _reason(fits: Bounds) -> str:
    if fits.prompt == fits.max_prompt_tokens:
        return f"max_prompt_tokens is {fits.max_prompt_tokens:,}"
    reserve = f"{fits.reserve_output_tokens:,} reserved for the answer"
    return f"the model's context of {fits.max_context_tokens:,} tokens less {reserve}"


def history_room(request: PlanRequest, spare: int, documents: int) -> int:
    """The part of the room that earlier turns and facts may take; what they leave goes to the passages.

    The section of higher priority goes first, up to the other's `min_tokens`. Of equal priority, passages are sure of
    half: what they do not want goes to the history, and the other way round.

    Args:
        request: the policy.
        spare: tokens that are left beside what must stay.
        documents: tokens that the passages want, within their own bound.
    """
    own = request.context.sections
    share = spare // 2
    if own.documents.priority > own.history.priority:
        share = spare - min(own.history.min_tokens, spare)
    elif own.documents.priority < own.history.priority:
        share = 0
    return spare - min(documents, max(share, min(own.documents.min_tokens, spare)))

"""What goes into a plan and what comes out: conversation, passages, segments, and every fate with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from policies.schema import ContextPolicy

Role = Literal["system", "user", "assistant", "tool"]
SectionName = Literal["system", "tools", "facts", "summary", "history", "documents", "question", "template"]
DocumentFate = Literal["kept", "trimmed", "merged", "dropped"]
DocumentReason = Literal[
    "sentence_trim", "token_cap", "overlap_merged", "exact_duplicate", "near_duplicate", "semantic_duplicate",
    "already_in_history", "below_min_score", "over_budget", "empty",
]  # fmt: skip
TurnClass = Literal["fact", "context", "small_talk", "tool", "pinned"]
TurnFate = Literal["kept", "trimmed", "extracted", "summarised", "dropped"]
TurnReason = Literal["recent", "pinned", "token_cap", "small_talk", "over_budget", "superseded", "empty"]
Order = Literal["relevance", "edges", "cache_aware"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message, its text parts already joined. `tool_calls` are as the API sent them."""

    role: Role
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """One retrieved passage. `index`, its position in the input, is its identity; ids may repeat or be missing."""

    index: int
    text: str
    id: str | None = None
    title: str | None = None
    score: float | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One planning job. Token bounds are already the tightest of policy, caller and model."""

    messages: Sequence[Message]
    documents: Sequence[Document]
    context: ContextPolicy
    max_prompt_tokens: int
    """The bound that is reported: policy's, caller's or the model's context, whichever is least."""
    max_context_tokens: int
    """The model's window, prompt and output together."""
    reserve_output_tokens: int
    """Tokens of the window that the plan leaves for the answer."""
    max_document_tokens: int | None = None
    requested_output_tokens: int | None = None
    max_output_tokens: int | None = None
    """The most that policy or model lets a request generate."""
    order: Order = "relevance"
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt text that is encoded on its own. Only template text (`control`) may become control tokens."""

    text: str
    control: bool
    section: SectionName


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one prompt message's content, on its way into a segment."""

    text: str
    section: SectionName


@dataclass(frozen=True, slots=True)
class PromptMessage:
    """A message as it will be rendered: its content in parts, each of which becomes one segment."""

    role: Role
    parts: tuple[Part, ...]
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    @property
    def content(self) -> str:
        """The parts joined, as an engine that takes text gets them."""
        return "".join(p.text for p in self.parts)


class SectionReport(Struct, frozen=True, kw_only=True):
    """One section's tokens; all sections add up to the context's totals."""

    name: SectionName
    tokens_before: int
    tokens_after: int
    limit_tokens: int | None = None


class DocumentReport(Struct, frozen=True, kw_only=True):
    """One input passage's fate. `kept_spans` are [start, end) character offsets into its text."""

    index: int
    id: str | None
    fate: DocumentFate
    reason: DocumentReason | None = None
    of: int | None = None
    """Index of the passage that it duplicates or was merged into."""
    tokens_before: int
    tokens_after: int
    score: float | None = None
    rank: int | None = None
    position: int | None = None
    moved_for_cache: int = 0
    kept_spans: list[tuple[int, int]] = []


class TurnReport(Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One input message's fate, the last question and system messages included."""

    index: int
    role: Role
    class_: TurnClass
    fate: TurnFate
    reason: TurnReason | None = None
    tokens_before: int
    tokens_after: int


class RankingReport(Struct, frozen=True, kw_only=True):
    """The method that was really used; `fallback` says why it is not the one asked for."""

    method: str
    fallback: str | None = None


class CacheOrderReport(Struct, frozen=True, kw_only=True):
    """Tokens expected to hit the prefix cache, as ordered and as relevance alone would have it."""

    expected_hit_tokens: int
    relevance_hit_tokens: int


class ContextReport(Struct, frozen=True, kw_only=True):
    """What happened to the request's context; the `context` object of the budget report.

    A summary has empty `documents` and `turns`, and `counts` instead: `{"documents": {"dropped:over_budget": 3}}`.
    """

    max_prompt_tokens: int
    max_document_tokens: int | None
    requested_output_tokens: int | None
    granted_output_tokens: int
    tokens_before: int
    tokens_after: int
    count_method: Literal["exact", "estimated"]
    sections: list[SectionReport]
    documents: list[DocumentReport]
    turns: list[TurnReport]
    ranking: RankingReport
    cache_order: CacheOrderReport | None = None
    counts: dict[str, dict[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A prompt ready to run, with its report."""

    segments: tuple[Segment, ...]
    prompt_token_ids: tuple[int, ...]
    messages: tuple[PromptMessage, ...]
    report: ContextReport
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    """By stage: dedupe, rank, trim, history, assemble."""

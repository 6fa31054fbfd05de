"""What the HTTP surface reads and writes: requests, completions, errors and the budget report (schema version 1)."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from budget.types import ContextReport

REPORT_VERSION = 1
Outcome = Literal[
    "ok", "length", "cancelled", "client_stalled", "queue_timeout", "first_token_timeout", "total_timeout",
    "rejected", "failed",
]  # fmt: skip
PositiveInt = Annotated[int, Meta(gt=0, le=2**53 - 1)]
"""What every JSON reader can hold."""
Milliseconds = Annotated[int, Meta(gt=0, le=7 * 86_400_000)]


class TextPart(Struct, kw_only=True):
    """A content part; only `text` is supported."""

    type: str
    text: str | None = None


class ChatMessage(Struct, kw_only=True):
    """One message. Keys that are not listed are read over and never reach the prompt."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    pinned: bool | None = None


class DocumentIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """One retrieved passage."""

    text: str
    id: str | None = None
    title: str | None = None
    score: float | None = None
    metadata: dict[str, Any] | None = None
    pinned: bool | None = None


class BudgetIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a caller may tighten."""

    max_prompt_tokens: PositiveInt | None = None
    max_document_tokens: Annotated[int, Meta(ge=0, le=2**53 - 1)] | None = None
    order: Literal["relevance", "edges", "cache_aware"] | None = None
    report: Literal["full", "summary", "none"] | None = None
    planning: Literal["on", "off"] | None = None


class TimeoutsIn(Struct, kw_only=True, forbid_unknown_fields=True):
    """Milliseconds from arrival; the policy's limits stay."""

    queue_ms: Milliseconds | None = None
    first_token_ms: Milliseconds | None = None
    total_ms: Milliseconds | None = None


class StreamOptions(Struct, kw_only=True):
    """OpenAI's stream options."""

    include_usage: bool | None = None


class ChatRequest(Struct, kw_only=True):
    """`POST /v1/chat/completions`. An explicit null equals an absent field; unknown top-level fields are accepted."""

    messages: list[ChatMessage]
    model: str | None = None
    documents: list[DocumentIn] | None = None
    budget: BudgetIn | None = None
    timeouts: TimeoutsIn | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    n: PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    # Named only to be refused where they ask for something: see `gateway.body.UNSUPPORTED`.
    functions: Any = None
    function_call: Any = None
    best_of: Any = None
    logit_bias: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


class PromptTokensDetails(Struct, kw_only=True):
    """OpenAI's split of the prompt tokens."""

    cached_tokens: int = 0


class CompletionUsage(Struct, kw_only=True):
    """OpenAI's usage object."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class PolicyRef(Struct, kw_only=True):
    """The policy that was applied."""

    name: str
    revision: str
    shadow: dict[str, Any] | None = None


class ModelRef(Struct, kw_only=True):
    """The model that answered."""

    name: str
    id: str
    revision: str
    max_context_tokens: int
    max_output_tokens: int
    engine: Literal["embedded", "remote"] = "embedded"


class InterToken(Struct, kw_only=True):
    """Gaps between tokens, in milliseconds."""

    p50: float
    p95: float


class Resources(Struct, kw_only=True):
    """What the request took. TTFT and total count from arrival at the gateway; unknown is null, zero is zero."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    computed_tokens: int | None = None
    recomputed_tokens: int | None = None
    output_tokens: int | None = None
    plan_ms: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    predicted_ttft_ms: float | None = None
    decode_ms: float | None = None
    total_ms: float | None = None
    inter_token_ms: InterToken | None = None
    output_tokens_per_s: float | None = None
    kv_blocks_peak: int | None = None
    kv_blocks_shared: int | None = None
    kv_bytes_peak: int | None = None
    kv_byte_seconds: float | None = None
    kv_pool_used_ratio: float | None = None
    prefill_chunks: int | None = None
    preemptions: int | None = None
    batch_size_mean: float | None = None


class TimeoutsReport(Struct, kw_only=True):
    """The limits that applied, in milliseconds."""

    queue: float | None
    first_token: float | None
    total: float | None


class Remaining(Struct, kw_only=True):
    """What is left of each limit; null where there is none."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None


class LimitsReport(Struct, kw_only=True):
    """Time and quota limits of the request."""

    timeouts_ms: TimeoutsReport
    remaining: Remaining
    store: Literal["ok", "local_share", "open"] = "ok"


class Cost(Struct, kw_only=True):
    """Units of account; `kv` is the request's share of KV GiB-seconds."""

    currency: str
    prompt: float
    cached_prompt: float
    output: float
    kv: float
    total: float


class Advice(Struct, kw_only=True):
    """One thing that the prompt's author could change."""

    code: str
    message: str
    saves_tokens: int | None = None


class BudgetReport(Struct, kw_only=True):
    """The budget report. Objects that were never reached (no plan, no engine) are null."""

    version: int = REPORT_VERSION
    truncated: bool = False
    request_id: str
    team: str
    app: str
    stage: str
    user: str | None = None
    policy: PolicyRef
    model: ModelRef | None = None
    outcome: Outcome
    context: ContextReport | None = None
    timings_ms: dict[str, float] = {}
    resources: Resources | None = None
    attempts: list[dict[str, Any]] = []
    limits: LimitsReport | None = None
    cost: Cost | None = None
    advice: list[Advice] = []


class AssistantMessage(Struct, kw_only=True):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: str | None = None


class Choice(Struct, kw_only=True):
    """The one choice of a completion."""

    index: int = 0
    message: AssistantMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletion(Struct, kw_only=True):
    """The JSON response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage
    budget_report: BudgetReport | UnsetType = UNSET


class ChoiceDelta(Struct, kw_only=True, omit_defaults=True):
    """What a stream chunk adds."""

    role: str | None = None
    content: str | None = None


class ChunkChoice(Struct, kw_only=True):
    """The one choice of a chunk."""

    index: int = 0
    delta: ChoiceDelta
    finish_reason: str | None = None
    logprobs: None = None


class ChatCompletionChunk(Struct, kw_only=True):
    """One SSE event. `usage` is present, null but for the last, where the client asked for it."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    budget_report: BudgetReport | UnsetType = UNSET


class ErrorBody(Struct, kw_only=True):
    """OpenAI's error object and the request's id."""

    message: str
    type: str
    code: str
    param: str | None = None
    request_id: str


class ErrorResponse(Struct, kw_only=True):
    """An error response; the report stands beside it where planning was done."""

    error: ErrorBody
    budget_report: BudgetReport | UnsetType = UNSET


class PlanResponse(Struct, kw_only=True):
    """`POST /v1/budget/plan`: the messages that would be sent, and what was decided."""

    object: Literal["budget.plan"] = "budget.plan"
    messages: list[dict[str, Any]]
    budget_report: BudgetReport

"""Every key of a policy set, as types. Absent limits are None: no limit of ours.

Durations are seconds, sizes bytes, counts plain integers here; the YAML spells them `2s`, `2MiB`, `400k`
(`policies.load` parses by the markers below).
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Duration = Annotated[float, Meta(gt=0, extra={"unit": "duration"})]
Size = Annotated[int, Meta(gt=0, extra={"unit": "size"})]
Count = Annotated[int, Meta(ge=0, extra={"unit": "count"})]
PositiveCount = Annotated[int, Meta(gt=0, extra={"unit": "count"})]
Share = Annotated[float, Meta(ge=0, le=1)]
Switch = Literal["on", "off"]
Stage = Literal["development", "pilot", "production"]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[^\s/\x00-\x1f\x7f]{1,64}$",
        extra={"is": "a name", "fix": "write 1 to 64 characters without spaces and slashes"},
    ),
]
"""A team or an app: both stand in `team/app`, in headers and in metrics."""
ModelName = Annotated[
    str,
    Meta(
        pattern=r"^[^\s\x00-\x1f\x7f]{1,128}$",
        extra={"is": "a model name", "fix": "write 1 to 128 characters without spaces"},
    ),
]
KeyHash = Annotated[
    str,
    Meta(
        pattern="^sha256:[0-9a-f]{64}$",
        extra={
            "is": "the hash of a key",
            "fix": "write sha256: and 64 lower-case hex digits, as printed when the key was made",
            "secret": True,
        },
    ),
]

EXTRACT_PATTERNS = ("numbered", "tags", "fenced")
"""Patterns that `extract_documents` knows by name; anything else is a regular expression with a group `text`."""


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all policy types: immutable, and an unknown key is an error."""


class SectionLimit(_Strict, frozen=True):
    """Room of one prompt section. `max_share` is a share of the prompt budget; unused room flows on."""

    max_tokens: PositiveCount | None = None
    min_tokens: Count = 0
    max_share: Share | None = None
    priority: int = 0


class HistorySection(SectionLimit, frozen=True):
    """The turns before the last question."""

    keep_last_turns: Count = 2
    drop_small_talk: bool = True
    summary: Switch = "off"


class DocumentsSection(SectionLimit, frozen=True):
    """The passages. `last_user` puts them before the question, `system` after the system text (shared by prefix)."""

    placement: Literal["last_user", "system"] = "last_user"


class Sections(_Strict, frozen=True):
    """Limits by section; the question and the template are always kept whole."""

    system: SectionLimit = SectionLimit()
    facts: SectionLimit = SectionLimit()
    history: HistorySection = HistorySection()
    documents: DocumentsSection = DocumentsSection()


class Dedupe(_Strict, frozen=True):
    """`near` and `semantic` are similarities from which two passages count as one; null turns a tier off."""

    exact: bool = True
    near: Share | None = 0.8
    semantic: Share | None = 0.95
    merge_overlaps: bool = True


class Rank(_Strict, frozen=True):
    """How passages are ordered by usefulness."""

    method: Literal["hybrid", "bm25", "embedding", "caller"] = "hybrid"
    min_score: Share = 0.0
    diversity: Share = 0.2
    use_caller_scores: Literal["blend", "only", "ignore"] = "blend"
    cross_encoder: str | None = None


class Trim(_Strict, frozen=True):
    """How a passage is shortened."""

    unit: Literal["sentence", "none"] = "sentence"
    max_tokens_per_document: PositiveCount | None = None
    ellipsis: bool = False


class Render(_Strict, frozen=True):
    """How a passage looks in the prompt: `{id}`, `{title}` and `{text}` are filled in."""

    document: str = "<{id}> {title}\n{text}"
    separator: str = "\n\n"


class ContextPolicy(_Strict, frozen=True):
    """What may enter the prompt. `max_prompt_tokens` null is the model's context."""

    planning: Switch = "on"
    max_prompt_tokens: PositiveCount | None = None
    max_document_tokens: Count | None = None
    reserve_output_tokens: PositiveCount = 256
    overflow: Literal["trim", "reject"] = "trim"
    sections: Sections = Sections()
    extract_documents: str | None = None
    dedupe: Dedupe = Dedupe()
    rank: Rank = Rank()
    trim: Trim = Trim()
    render: Render = Render()
    order: Literal["relevance", "edges", "cache_aware"] = "relevance"
    max_displacement: Count = 3


class RequestLimits(_Strict, frozen=True):
    """Bounds of one request; beyond them it is a 413."""

    max_bytes: Size = 8 * 1024 * 1024
    max_documents: Count = 1000
    max_messages: Count = 1000


class Rate(_Strict, frozen=True):
    """A minute's worth."""

    requests_per_minute: PositiveCount | None = None
    tokens_per_minute: PositiveCount | None = None


class Quota(_Strict, frozen=True):
    """A day's tokens and a month's cost, both in `time_zone`."""

    tokens_per_day: PositiveCount | None = None
    cost_per_month: Annotated[float, Meta(gt=0)] | None = None
    time_zone: str = "UTC"
    alert_at: tuple[Share, ...] = (0.8, 1.0)


class Concurrency(_Strict, frozen=True):
    """Requests at once, and the share of the KV pool that a team may hold."""

    requests: PositiveCount | None = None
    kv_share: Share | None = None


class Limits(_Strict, frozen=True):
    """All that admission looks at."""

    request: RequestLimits = RequestLimits()
    rate: Rate = Rate()
    quota: Quota = Quota()
    concurrency: Concurrency = Concurrency()
    on_store_loss: Literal["closed", "local_share", "open"] = "local_share"


class Timeouts(_Strict, frozen=True):
    """Phases of a request; null never ends it."""

    plan: Duration | None = 5.0
    queue: Duration | None = 30.0
    first_token: Duration | None = 60.0
    total: Duration | None = 600.0
    stream_idle: Duration | None = 30.0


class StructuredOutput(_Strict, frozen=True):
    """Tries for an answer that must match a schema."""

    max_attempts: PositiveCount = 2


class ReportPolicy(_Strict, frozen=True):
    """How much of the report is sent and kept."""

    detail: Literal["full", "summary", "none"] = "full"
    store_text: bool = False
    retention: Duration = 30 * 86400.0


class Prices(_Strict, frozen=True):
    """Units of account by 1,000 tokens and by GiB-second of KV."""

    prompt_per_1k: Annotated[float, Meta(ge=0)] = 0.01
    cached_prompt_per_1k: Annotated[float, Meta(ge=0)] = 0.001
    output_per_1k: Annotated[float, Meta(ge=0)] = 0.1
    kv_gib_second: Annotated[float, Meta(ge=0)] = 0.1
    currency: str = "unit"


class Policy(_Strict, frozen=True):
    """One effective policy: what is left after defaults, stage, team, app and ceilings were merged."""

    objective: Literal["interactive", "throughput"] = "interactive"
    context: ContextPolicy = ContextPolicy()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    weight: Annotated[float, Meta(gt=0)] = 1.0
    priority: int = 0
    prefix_sharing: Literal["team", "global", "none"] = "team"
    structured_output: StructuredOutput = StructuredOutput()
    report: ReportPolicy = ReportPolicy()
    fallbacks: tuple[str, ...] = ()
    prices: Prices = Prices()


class ModelPolicy(_Strict, frozen=True):
    """A model that keys may name. None bounds are the model's own."""

    id: str
    revision: str | None = None
    max_context_tokens: PositiveCount | None = None
    max_output_tokens: PositiveCount | None = None


class KeyEntry(_Strict, frozen=True):
    """An API key, by the hash of its text (`sha256:` and 64 hex digits). No `models` means all."""

    hash: KeyHash
    app: Name = "default"
    stage: Stage = "production"
    models: tuple[str, ...] | None = None
    expires: str | None = None
    """ISO date; the key works until the end of that day, UTC."""
    admin: bool = False


class Team(Policy, frozen=True):
    """A team's overlay over the defaults, its keys, and its apps' overlays."""

    keys: tuple[KeyEntry, ...] = ()
    apps: dict[Name, Policy] = field(default_factory=dict)


class PolicyDocument(_Strict, frozen=True):
    """The whole set as the YAML shows it. Overlays are merged as written: no default here hides a value there."""

    version: Literal[1]
    models: dict[ModelName, ModelPolicy] = field(default_factory=dict)
    ceilings: Policy = Policy()
    defaults: Policy = Policy()
    stages: dict[Stage, Policy] = field(default_factory=dict)
    teams: dict[Name, Team] = field(default_factory=dict)

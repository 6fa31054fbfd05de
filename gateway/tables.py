"""The budget report for a terminal: what was kept, what was dropped and why, and what it cost."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from budget.types import ContextReport, DocumentReport, PromptMessage, TurnReport
from gateway.doctor import Finding
from gateway.schemas import BudgetReport, Resources
from policies.explain import Explained

_WRAPPING = ("id", "reason", "found", "fix", "value", "from")
_POLICY_COLUMNS = ("key", "value", "from")
_FATE_STYLE = {"kept": "green", "trimmed": "yellow", "merged": "cyan", "extracted": "cyan", "summarised": "cyan"}


def context_tables(context: ContextReport) -> list[RenderableType]:
    """Sections, passages and turns."""
    return [_sections(context), _documents(context.documents), _turns(context.turns)]


def message_texts(messages: Iterable[PromptMessage]) -> Iterator[Text]:
    """The planned conversation, message by message."""
    for message in messages:
        yield Text.assemble((f"[{message.role}] ", "bold"), message.content)


def report_tables(report: BudgetReport) -> list[RenderableType]:
    """The whole report. Parts that were never reached (no plan, no engine) are left out."""
    parts: list[RenderableType] = []
    if report.context is not None:
        parts += context_tables(report.context)
    if report.resources is not None:
        parts.append(_resources(report, report.resources))
    parts += [Text(f"advice: {a.message}") for a in report.advice]
    return parts


def findings_table(findings: Iterable[Finding]) -> Table:
    """The doctor's sheet; what wants mending says how."""
    table = _table("Tidegate doctor", ("what", "found", "fix"), left=("what", "found", "fix"))
    for f in findings:
        table.add_row(f.what, f.value, Text(f.fix, style="red" if f.fatal else "yellow"))
    return table


def policy_table(title: str, explained: Iterable[Explained]) -> Table:
    """Every value in force and where it stands."""
    table = _table(title, _POLICY_COLUMNS, left=_POLICY_COLUMNS)
    for path, value, origin in explained:
        table.add_row(path, value if isinstance(value, str) else msgspec.json.encode(value).decode(), origin)
    return table


def _table(title: str, columns: Iterable[str], *, left: Sequence[str] = ()) -> Table:
    """Numbers to the right, the columns named in `left` to the left."""
    shown = Text(title, style="bold", no_wrap=True, overflow="ignore")  # else it wraps at the table's width
    table = Table(title=shown, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(
            name, justify="left" if name in left else "right", no_wrap=name not in _WRAPPING, overflow="fold"
        )
    return table


def _sections(context: ContextReport) -> Table:
    title = f"Prompt: {context.tokens_before:,} tokens before, {context.tokens_after:,} after"
    title += f" (budget {context.max_prompt_tokens:,}, count {context.count_method})"
    table = _table(title, ("section", "before", "after", "limit"), left=("section",))
    for s in (s for s in context.sections if s.tokens_before or s.tokens_after):
        table.add_row(s.name, _int(s.tokens_before), _int(s.tokens_after), _int(s.limit_tokens))
    return table


def _documents(documents: Sequence[DocumentReport]) -> Table:
    columns = ("#", "id", "fate", "reason", "before", "after", "score", "rank", "place")
    table = _table("Passages", columns, left=("id", "fate", "reason"))
    for d in documents:
        numbers = (_int(d.tokens_before), _int(d.tokens_after), _number(d.score, 3), _int(d.rank), _int(d.position))
        table.add_row(str(d.index), d.id or "", _fate(d.fate), _reason(d), *numbers)
    return table


def _turns(turns: Sequence[TurnReport]) -> Table:
    columns = ("#", "role", "class", "fate", "reason", "before", "after")
    table = _table("Turns", columns, left=("role", "class", "fate", "reason"))
    for t in turns:
        numbers = (_int(t.tokens_before), _int(t.tokens_after))
        table.add_row(str(t.index), t.role, t.class_, _fate(t.fate), t.reason or "", *numbers)
    return table


def _resources(report: BudgetReport, used: Resources) -> Table:
    table = _table("Resources", ("what", "value"), left=("what",))
    rows = (
        ("outcome", report.outcome),
        ("prompt tokens", _int(used.prompt_tokens)),
        ("cached tokens (prefix hit)", _int(used.cached_tokens)),
        ("computed tokens", _int(used.computed_tokens)),
        ("output tokens", _int(used.output_tokens)),
        ("planning", _ms(used.plan_ms)),
        ("queue", _ms(used.queue_ms)),
        ("prefill", _ms(used.prefill_ms)),
        ("TTFT", _ms(used.ttft_ms)),
        ("total", _ms(used.total_ms)),
        ("output tokens/s", _number(used.output_tokens_per_s, 1)),
        ("KV blocks, peak (shared)", f"{_int(used.kv_blocks_peak)} ({_int(used.kv_blocks_shared)})"),
        ("KV MiB, peak", _number(_mib(used.kv_bytes_peak), 1)),
        ("cost", "-" if report.cost is None else f"{report.cost.total:.5f} {report.cost.currency}"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _fate(fate: str) -> Text:
    return Text(fate, style=_FATE_STYLE.get(fate, "red"))


def _reason(document: DocumentReport) -> str:
    reason = document.reason or ""
    return reason if document.of is None else f"{reason} of #{document.of}"


def _int(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


def _mib(value: int | None) -> float | None:
    return None if value is None else value / 2**20

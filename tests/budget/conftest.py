"""A small real tokenizer (byte-level BPE, GPT-2 shaped) and a ChatML renderer: planning tested without an engine."""

import gzip
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from budget.ports import Ports
from budget.tokens import SegmentEncoder
from budget.types import (
    ContextReport,
    Document,
    Message,
    Plan,
    PlanRequest,
    PromptMessage,
    SectionReport,
    Segment,
)
from policies.schema import ContextPolicy

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the return window is thirty days from the date of the order.",
    "Returns are accepted within 30 days. Our stores are open daily from nine to five. What is the refund period?",
    "You are a careful assistant. My order number is A-4821, and I prefer aisle seats. Never mention prices.",
    "This passage tells of the history of the city, its people, and the river that flows through it every year.",
    "本协议自双方签字之日起生效，有效期三年，期满前三十天内任何一方未提出异议的自动续期一年。",
    "北京故宫博物院建于一九二五年。我的订单号是，请不要提价格，谢谢你。这家酒店在哪里？他出生于上海。",
]


def _train() -> tuple[Tokenizer, Tokenizer]:
    """The same vocabulary twice: without control tokens for caller text, with them for template text."""
    text = Tokenizer(models.BPE())
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    text.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text.train_from_iterator(
        CORPUS * 3, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    control = Tokenizer.from_str(text.to_str())
    control.add_special_tokens(list(CONTROL))
    return text, control


class BpeCounter:
    """`TokenCounter` over two frozen tokenizers."""

    method = "exact"
    separator_side = "leading"

    def __init__(self) -> None:
        self._text, self._control = _train()
        self.control_ids = {self._control.token_to_id(token) for token in CONTROL}
        self._ids: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self._text.encode(text).ids
        return self._ids[text]

    def encode_control(self, text: str) -> list[int]:
        return self._control.encode(text).ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self._text.encode(text).offsets

    def decode(self, ids: Sequence[int]) -> str:
        return self._control.decode(list(ids), skip_special_tokens=False)


class TrailingCounter(BpeCounter):
    """The same with separators at the end of the text before, as cl100k shaped vocabularies need."""

    separator_side = "trailing"


class ChatML:
    """`PromptRenderer` for ChatML; tool calls are caller text."""

    def render(self, messages: Sequence[PromptMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[Segment]:
        found: list[Segment] = []
        literal = ""
        if tools:
            found += [
                Segment("<|im_start|>system\n# Tools\n", True, "template"),
                Segment(json.dumps(list(tools), ensure_ascii=False), False, "tools"),
            ]
            literal = "<|im_end|>\n"
        for message in messages:
            literal += f"<|im_start|>{message.role}\n"
            for part in message.parts:
                found += [Segment(literal, True, "template")] if literal else []
                found.append(Segment(part.text, False, part.section))
                literal = ""
            for call in message.tool_calls:
                found.append(Segment(literal + "<tool_call>", True, "template"))
                found.append(Segment(json.dumps(call["function"], ensure_ascii=False), False, "history"))
                literal = "</tool_call>"
            literal += "<|im_end|>\n"
        return [*found, Segment(literal + "<|im_start|>assistant\n", True, "template")]


@pytest.fixture(scope="session")
def counter() -> BpeCounter:
    """A GPT-2 shaped byte-level BPE of 900 tokens."""
    return BpeCounter()


@pytest.fixture(scope="session")
def trailing_counter() -> TrailingCounter:
    """The same, with trailing separators."""
    return TrailingCounter()


@pytest.fixture(scope="session")
def renderer() -> ChatML:
    """ChatML."""
    return ChatML()


@pytest.fixture(scope="session")
def ports(counter: BpeCounter, renderer: ChatML) -> Ports:
    """Counter and renderer, no models."""
    return Ports(counter=counter, renderer=renderer)


ROOT = Path(__file__).resolve().parents[2]


def _folder(variable: str, default: str) -> Path:
    folder = Path(os.environ.get(variable, ROOT / default))
    if not folder.is_dir():
        pytest.skip(f"no {folder}: set {variable}")
    return folder


def _expanded(value: Any) -> Any:
    """A case's JSON with `{"$repeat": [text, n]}` and `{"$concat": [...]}` written out."""
    if isinstance(value, list):
        return [_expanded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "$repeat" in value:
        text, times = value["$repeat"]
        return text * times
    if "$concat" in value:
        return "".join(_expanded(one) for one in value["$concat"])
    return {key: _expanded(one) for key, one in value.items()}


@pytest.fixture(scope="session")
def case() -> Callable[[int], dict[str, Any]]:
    """A reported fault's input, by its number."""

    def read(number: int) -> dict[str, Any]:
        lines = (_folder("TIDEGATE_CASES", "../shared/cases") / "reported_faults.jsonl").read_text("utf-8").splitlines()
        found = {one["n"]: one["input"] for one in map(json.loads, lines)}
        return dict(_expanded(found[number]))

    return read


@pytest.fixture(scope="session")
def records() -> Callable[..., list[dict[str, Any]]]:
    """The first records of a data set."""

    def read(name: str, num: int) -> list[dict[str, Any]]:
        file = _folder("TIDEGATE_DATA", "../shared/data") / f"{name}.jsonl.gz"
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line, _ in zip(lines, range(num), strict=False)]

    return read


def _message(given: Mapping[str, Any]) -> Message:
    content = given.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    calls = tuple(given.get("tool_calls") or ())
    return Message(given["role"], content, calls, given.get("tool_call_id"), bool(given.get("pinned")))


@pytest.fixture(scope="session")
def ask() -> Callable[..., PlanRequest]:
    """A plan request from plain values: messages as API dicts or (role, content), documents as texts or dicts."""

    def make(
        messages: Sequence[Any], documents: Sequence[Any] = (), *, limit: int = 10_000, **changes: Any
    ) -> PlanRequest:
        given = [m if isinstance(m, Mapping) else {"role": m[0], "content": m[1]} for m in messages]
        texts = [d if isinstance(d, Mapping) else {"text": d, "id": f"d{i}"} for i, d in enumerate(documents)]
        fields = {"text", "id", "title", "score", "pinned"}
        values: dict[str, Any] = {
            "context": ContextPolicy(),
            "max_prompt_tokens": limit,
            "max_context_tokens": limit + 100,
            "reserve_output_tokens": 100,
        }
        return PlanRequest(
            messages=[_message(m) for m in given],
            documents=[Document(i, **{k: v for k, v in d.items() if k in fields}) for i, d in enumerate(texts)],
            **values | changes,
        )

    return make


@pytest.fixture(scope="session")
def shows() -> Callable[[Plan], str]:
    """The prompt's caller text and template, as one string."""
    return lambda plan: "".join(segment.text for segment in plan.segments)


@pytest.fixture(scope="session")
def invariants() -> Callable[[PlanRequest, Plan, Ports], None]:
    """Asserts all that holds for every plan."""

    def check(request: PlanRequest, plan: Plan, ports: Ports) -> None:
        _within_bounds(request, plan)
        _adds_up(plan)
        _each_once(request, plan)
        _roles_in_order(plan)
        encode = SegmentEncoder(ports.counter).encode
        encoded = [i for segment in plan.segments for i in encode(segment)]
        assert list(plan.prompt_token_ids) == encoded

    return check


def _within_bounds(request: PlanRequest, plan: Plan) -> None:
    report = plan.report
    assert report.tokens_after == len(plan.prompt_token_ids)
    assert report.tokens_after <= request.max_prompt_tokens
    assert report.tokens_after + report.granted_output_tokens <= request.max_context_tokens
    assert report.tokens_after <= request.max_context_tokens - request.reserve_output_tokens
    assert report.granted_output_tokens >= 1
    if request.max_document_tokens is not None:
        assert _sections(report)["documents"].tokens_after <= request.max_document_tokens


def _sections(report: ContextReport) -> dict[str, SectionReport]:
    return {section.name: section for section in report.sections}


def _adds_up(plan: Plan) -> None:
    report, sections = plan.report, _sections(plan.report)
    assert sum(s.tokens_before for s in report.sections) == report.tokens_before
    assert sum(s.tokens_after for s in report.sections) == report.tokens_after
    assert sum(d.tokens_before for d in report.documents) == sections["documents"].tokens_before
    assert sum(d.tokens_after for d in report.documents) == sections["documents"].tokens_after
    spoken = [sections[name] for name in ("system", "history", "question")]
    assert sum(t.tokens_before for t in report.turns) == sum(s.tokens_before for s in spoken)
    kept = sum(t.tokens_after for t in report.turns if t.fate == "kept")
    assert kept == sum(s.tokens_after for s in spoken)


def _each_once(request: PlanRequest, plan: Plan) -> None:
    report = plan.report
    assert [d.index for d in report.documents] == [d.index for d in request.documents]
    assert [t.index for t in report.turns] == list(range(len(request.messages)))
    positions = sorted(d.position for d in report.documents if d.position is not None)
    assert positions == list(range(len(positions)))
    prompt = "".join(message.content for message in plan.messages)
    for document, source in zip(report.documents, request.documents, strict=True):
        assert (document.fate == "kept") == (document.reason is None)
        assert (document.fate == "dropped") == (not document.kept_spans)
        for start, end in document.kept_spans:
            assert source.text[start:end].strip() in prompt
    for turn in report.turns:
        assert turn.fate != "dropped" or turn.reason is not None
        assert turn.fate != "kept" or request.messages[turn.index].content in prompt


def _roles_in_order(plan: Plan) -> None:
    calls: list[str] = []
    for message in plan.messages:
        if message.role == "tool":
            calls.remove(str(message.tool_call_id))
        else:
            assert not calls
            calls = [call["id"] for call in message.tool_calls]
    assert not calls
    roles = [message.role for message in plan.messages]
    assert "system" not in roles[roles.count("system") :]


WORDS = [*sorted(set(" ".join(CORPUS[:4]).split())), "It", "never", "4821", "2019", "Paris"]
HAN = "".join(CORPUS[4:])


def _texts() -> st.SearchStrategy[str]:
    english = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(lambda words: " ".join(words) + ".")
    chinese = st.text(st.sampled_from(HAN), min_size=1, max_size=20).map(lambda text: text + "。")
    odd = st.text(max_size=30)
    sentence = st.one_of(english, english, chinese, chinese, odd)
    return st.lists(sentence, max_size=6).map(" ".join)


@st.composite
def _conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages of all roles; calls have their results; the last is a user's, a tool's or an assistant's."""
    texts = st.one_of(
        _texts(), st.sampled_from(["Thanks!", "好的，谢谢。", "Hello", "My order number is 4821.", "不要提价格。"])
    )
    found: list[dict[str, Any]] = []
    for n in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from(["user", "user", "assistant", "call", "system"]))
        pinned = draw(st.integers(0, 11)) == 0
        if kind == "call":
            ids = [f"c{n}-{k}" for k in range(draw(st.integers(1, 2)))]
            calls = [{"id": i, "type": "function", "function": {"name": "look", "arguments": "{}"}} for i in ids]
            found.append({"role": "assistant", "content": None, "tool_calls": calls, "pinned": pinned})
            found += [{"role": "tool", "tool_call_id": i, "content": draw(texts)} for i in ids]
        else:
            found.append({"role": kind, "content": draw(texts), "pinned": pinned})
    return found


@st.composite
def _documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Passages with and without ids, titles, scores; some are copies."""
    own = st.fixed_dictionaries(
        {"text": _texts()},
        optional={
            "id": st.sampled_from(["a", "b", "c"]),
            "title": st.sampled_from(["River", "故宫", ""]),
            "score": st.floats(-1, 1),
            "pinned": st.integers(0, 15).map(lambda n: n == 0),
        },
    )
    return draw(st.lists(own, max_size=8))


@pytest.fixture(scope="session")
def texts() -> st.SearchStrategy[str]:
    """English, Chinese and odd text, in sentences."""
    return _texts()


@pytest.fixture(scope="session")
def conversations() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Valid conversations, as API messages."""
    return _conversations()


@pytest.fixture(scope="session")
def documents() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Passages, as API documents."""
    return _documents()

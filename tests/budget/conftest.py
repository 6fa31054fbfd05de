"""A small real tokenizer (byte-level BPE, GPT-2 shaped) and a ChatML renderer: planning tested without an engine."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from budget.ports import Ports
from budget.types import PromptMessage, Segment

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

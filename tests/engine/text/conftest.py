"""Tokenizers of the common shapes, trained in-process, and chat templates with the habits of well-known ones."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The refund period is 30 days. Call the service line, or write to us.\n\n<d2> Title of the second extract\nText.",
    "What does the warranty cover? It covers parts and labour; see section 4.2.\n\n- first item\n- second item",
    "退款期限为三十天。请拨打服务热线，或者写信给我们。\n\n<d3> 第二段摘录的标题\n正文。保修包括哪些内容？",
    '{"name": "lookup", "arguments": {"q": "opening hours"}}\n{"type": "function", "description": "Look up"}',
    "<|im_start|>user\n[INST] <s> </s> tool_call think system user assistant tool_response",
] * 8
SPECIAL = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN_ADDED = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEMPLATES = Path(__file__).parent / "templates"


def byte_level(split: str | None) -> Tokenizer:
    """Byte-level BPE: GPT-2's own splitting, or the given one."""
    tokenizer = Tokenizer(models.BPE())
    byte_split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    steps = [] if split is None else [pre_tokenizers.Split(Regex(split), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, byte_split])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """BPE as Llama 2 has it: a space before every text, bytes as `<0xNN>`, control tokens inside the vocabulary."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trained.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def unigram() -> Tokenizer:
    """Unigram as SentencePiece has it, with control tokens as ordinary, even likely, pieces of the vocabulary."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


SHAPES: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: byte_level(None),
    "qwen": lambda: byte_level(QWEN_SPLIT),
    "llama2": sentencepiece_bpe,
    "unigram": unigram,
}


@pytest.fixture(scope="session")
def make_fast() -> Callable[..., Any]:
    """A transformers tokenizer of a shape in `SHAPES`, with a template of the folder or none."""
    from transformers import PreTrainedTokenizerFast

    trained = cache(lambda shape: SHAPES[shape]())

    @cache
    def make(shape: str, template: str | None) -> PreTrainedTokenizerFast:
        backend = Tokenizer.from_str(trained(shape).to_str())
        backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
        backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN_ADDED])
        bos = [("<s>", backend.token_to_id("<s>"))]
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=bos)
        fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        fast.chat_template = (TEMPLATES / f"{template}.jinja").read_text() if template else None
        return fast

    return make


@pytest.fixture(scope="session")
def make_tokenizer(make_fast: Callable[..., Any]) -> Callable[..., Any]:
    """A `ModelTokenizer` of a shape in `SHAPES`, with a template of the folder or none."""
    from engine.tokenizer import ModelTokenizer

    @cache
    def make(shape: str = "qwen", template: str | None = "chatml") -> ModelTokenizer:
        return ModelTokenizer(make_fast(shape, template))

    return make


@dataclass(frozen=True)
class Text:
    """A part of a message."""

    text: str
    section: str = "history"


@dataclass(frozen=True)
class Message:
    """A message as the planner hands it to the renderer."""

    role: str
    parts: Sequence[Text]
    tool_calls: Sequence[dict[str, Any]] = ()
    tool_call_id: str | None = None


def message(role: str, *texts: str | Text, calls: Iterable[dict[str, Any]] = (), answers: str | None = None) -> Message:
    """A message with `texts` as its parts."""
    parts = [text if isinstance(text, Text) else Text(text) for text in texts]
    return Message(role, parts, tuple(calls), answers)


def call(name: str, arguments: str, call_id: str = "call_0a1b2c3d4e5f") -> dict[str, Any]:
    """A tool call as the API sends it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.fixture(scope="session")
def say() -> Callable[..., Message]:
    """`say(role, *texts, calls=, answers=)` makes a message."""
    return message


@pytest.fixture(scope="session")
def tool_call() -> Callable[..., dict[str, Any]]:
    """`tool_call(name, arguments)` makes a call as the API sends it."""
    return call


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_folder: Path) -> Any:
    """The default model's tokenizer, from its GGUF."""
    from engine.tokenizer import ModelTokenizer

    return ModelTokenizer.from_pretrained(smollm2_folder)

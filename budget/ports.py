"""What the planner needs from outside, as Protocols. The gateway wires them to the engine or to tiktoken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from budget.types import PromptMessage, Segment


class TokenCounter(Protocol):
    """Encodes text as the serving model will. Thread-safe; a segment's ids never depend on its neighbours."""

    @property
    def method(self) -> Literal["exact", "estimated"]:
        """Whether counts are those of the serving model's own tokenizer."""
        ...

    @property
    def separator_side(self) -> Literal["leading", "trailing"]:
        """Where white space between two texts belongs, so that encoding them apart equals encoding them together.

        At the start of the second (GPT-2 shaped vocabularies) or at the end of the first (cl100k shaped ones).
        """
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Ids of caller text; never a control token, whatever the text holds."""
        ...

    def encode_control(self, text: str) -> Sequence[int]:
        """Ids of template text, control tokens included."""
        ...

    def count(self, text: str) -> int:
        """`len(encode(text))`, cached by content."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """[start, end) character offsets of each id of `encode(text)`; for cutting at a token count."""
        ...


class PromptRenderer(Protocol):
    """Turns messages into the serving model's chat format, as segments."""

    def render(self, messages: Sequence[PromptMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[Segment]:
        """Template literals and caller text apart, ending where the assistant's answer begins.

        Template text has section `template`, tool definitions `tools`, each caller part its own section.

        Raises:
            InvalidConversation: the template refuses these messages.
        """
        ...


class Embedder(Protocol):
    """Sentence vectors. Thread-safe."""

    name: str

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """(len(texts), d), rows of unit length. The same call gives the same bits, whatever was asked before."""
        ...


class Scorer(Protocol):
    """Relevance of passages to a query; higher is better, on any scale."""

    name: str

    def score(self, query: str, passages: Sequence[str]) -> Sequence[float]:
        """One finite number a passage, in order.

        Raises:
            ScorerUnavailable: nothing can be scored now; the planner falls back and reports it.
        """
        ...


class ScorerUnavailable(Exception):
    """A scorer or embedder cannot answer; the message is the report's `ranking.fallback`."""


class PrefixProbe(Protocol):
    """How much of a prompt prefix is in KV right now. Advisory and thread-safe."""

    def __call__(self, token_ids: Sequence[int]) -> int | None:
        """Cached tokens of this prefix; None where it cannot be known."""
        ...


class SummaryCache(Protocol):
    """Summaries of old turns, made elsewhere; the planner only reads."""

    def get(self, key: str) -> str | None:
        """The summary under this content key, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All of them, for one serving model. None: that help is not to be had."""

    counter: TokenCounter
    renderer: PromptRenderer
    embedder: Embedder | None = None
    cross_encoder: Scorer | None = None
    probe: PrefixProbe | None = None
    summaries: SummaryCache | None = None

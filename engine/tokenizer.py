"""The serving model's tokenizer and chat template: what counts as how many tokens, and what a prompt looks like.

Caller text and template text are encoded by two frozen instances, segment by segment, so counts are additive and text
can never become a control token. Importing this module loads no torch; loading a tokenizer does.
"""

import json
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from engine.chat import ChatTemplate, MessageLike
from engine.chat_probe import Abilities
from engine.encoding import AddedToken, ControlTokens, TemplateEncoder, TextEncoder, text_tokenizer, unknown_id
from engine.errors import ModelLoadError
from engine.placeholders import RenderedSegment
from engine.vocabulary import Vocabulary

_CACHE_BYTES = 64 << 20
_TEXT_ENDS = ("text.", "text", "0.5", '"said"', "(a)", "词。", "词", "问？")
_TEXT_STARTS = ("<d2> Title", "Title", "1. One", "[a]", "- item", "词", "“词”")


class ModelTokenizer:
    """One model's tokenizer. Thread-safe; every method is deterministic.

    Attributes:
        method: always `exact`: what is counted is what the engine prefills.
        separator_side: the side of a text boundary on which white space encodes as it would in the whole.
        vocab_size: ids are below it; the model's output layer may be wider.
    """

    method: Literal["exact"] = "exact"

    def __init__(self, tokenizer: Any) -> None:
        """Freeze a transformers tokenizer.

        Raises:
            ModelLoadError: it is not backed by the `tokenizers` library.
        """
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelLoadError(f"{type(tokenizer).__name__} has no tokenizer.json form, which exact counts need")
        spec: dict[str, Any] = json.loads(backend.to_str())
        added = _added_tokens(tokenizer)
        control = ControlTokens(added)
        self._text = TextEncoder(text_tokenizer(spec, added), control, unknown_id(spec))
        self._template = TemplateEncoder(spec, control)
        hidden = {token.id for token in added if token.special}
        contents = {token.id: token.content for token in added}
        self._vocabulary = Vocabulary(backend, spec, contents, hidden)
        self._encoded = _EncodingCache(_CACHE_BYTES)
        self.control_ids = frozenset(control.contents)
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.separator_side: Literal["leading", "trailing"] = self._probe_separator()
        self._chat = ChatTemplate(tokenizer, control, self.separator_side)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "ModelTokenizer":
        """Load the tokenizer of a model folder or hub id; code in the repository is never run.

        Raises:
            ModelLoadError: there is no tokenizer there, or it cannot be read.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), trust_remote_code=False)
        except Exception as error:  # whatever the tokenizer's own loader raises
            raise ModelLoadError(f"no tokenizer could be read from {path}: {_first_line(error)}") from error
        return cls(tokenizer)

    @property
    def abilities(self) -> Abilities:
        """What the chat template can show; `abilities.tools` says whether tool definitions reach the model."""
        return self._chat.abilities

    def encode(self, text: str) -> list[int]:
        """Ids of caller text; never a control token. A lone surrogate counts as U+FFFD."""
        return self._ids(text).tolist()

    def count(self, text: str) -> int:
        """`len(encode(text))`."""
        return len(self._ids(text))

    def encode_control(self, text: str) -> list[int]:
        """Ids of template text, control tokens included."""
        return self._template.encode(text)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """[start, end) characters of each id of `encode(text)`; ids that share a character share its span."""
        return self._text.offsets(text)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a generated id adds to the text; empty for special tokens."""
        return self._vocabulary.token_bytes(token_id)

    def render(self, messages: Sequence[MessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> list[RenderedSegment]:
        """The prompt in segments, ending where the assistant's answer begins.

        Raises:
            ChatTemplateError: the template refuses the messages, or would leave out a text.
        """
        return self._chat.render(messages, tools)

    def _ids(self, text: str) -> "array[int]":
        ids = self._encoded.get(text)
        if ids is None:
            ids = array("i", self._text.encode(text))
            self._encoded.put(text, ids)
        return ids

    def _probe_separator(self, separator: str = "\n\n") -> Literal["leading", "trailing"]:
        leading = trailing = 0
        for end in _TEXT_ENDS:
            for start in _TEXT_STARTS:
                whole = self.encode(end + separator + start)
                leading += self.encode(end) + self.encode(separator + start) == whole
                trailing += self.encode(end + separator) + self.encode(start) == whole
        return "trailing" if trailing > leading else "leading"


class _EncodingCache:
    """Ids by text, the least recently used dropped first once texts and ids together exceed `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str) -> "array[int] | None":
        with self._lock:
            ids = self._entries.get(text)
            if ids is not None:
                self._entries.move_to_end(text)
            return ids

    def put(self, text: str, ids: "array[int]") -> None:
        size = _size(text, ids)
        if size > self._max_bytes // 8:
            return
        with self._lock:
            if text in self._entries:
                return
            self._entries[text] = ids
            self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= _size(*self._entries.popitem(last=False))


def _size(text: str, ids: "array[int]") -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids)


def _added_tokens(tokenizer: Any) -> list[AddedToken]:
    special = set(tokenizer.all_special_ids)
    return [
        AddedToken(token_id, token.content, bool(token.special) or token_id in special)
        for token_id, token in tokenizer.added_tokens_decoder.items()
    ]


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

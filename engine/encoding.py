"""Frozen tokenizers: one for caller text, which knows no control tokens, and one for template text, which does.

A transformers tokenizer changes state when its options are set; these are never touched after loading, so they are
safe under threads.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


class AddedToken(NamedTuple):
    """A token that stands beside the vocabulary. Text never becomes one, special or not, unless it is white space."""

    id: int
    content: str
    special: bool

    @property
    def is_space(self) -> bool:
        """A run of white space that is one token (Gemma, Phi-2): it steers nothing, so text may use it."""
        return not self.special and self.content.replace("▁", " ").isspace()


class ControlTokens:
    """The added tokens that caller text must not become."""

    def __init__(self, tokens: Sequence[AddedToken]) -> None:
        self.contents = {token.id: token.content for token in tokens if not token.is_space and token.content}
        longest_first = sorted(self.contents.values(), key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
        self._pattern = re.compile(pattern)
        self._break = re.compile(f"\n|{pattern}")

    def find(self, text: str) -> re.Match[str] | None:
        """The first control token that `text` spells."""
        return self._pattern.search(text)

    def start(self, text: str) -> bool:
        """Whether `text` begins with a control token."""
        return self._pattern.match(text) is not None

    def breaks(self, text: str) -> list[tuple[int, int]]:
        """[start, end) of every line break and control token in `text`."""
        return [match.span() for match in self._break.finditer(text)]


class TextEncoder:
    """Encodes text that may hold anything, and never yields a control token.

    A control id can still come from the vocabulary itself (a Unigram model has `</s>` as a piece), so wherever one
    appears its text is cut in the middle and the halves are encoded apart. The unknown token stays where it stands
    for a character that the vocabulary lacks.
    """

    def __init__(self, frozen: Tokenizer, control: ControlTokens, unknown_id: int | None) -> None:
        self._frozen = frozen
        self._control = control.contents
        self._unknown_id = unknown_id
        self._replaced: dict[int, str] = {}
        singles = (c for c in self._control.values() if len(c) == 1)
        # a control token of one character cannot be cut
        self._replaced = {
            ord(c): _REPLACEMENT for c in singles if not self._control.keys().isdisjoint(self._raw(c).ids)
        }

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. A lone surrogate counts as U+FFFD."""
        return [token_id for _, piece in self._pieces(text) for token_id in piece.ids]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """[start, end) characters of each id of `encode(text)`; the ids of one character's bytes share its span."""
        return [(at + start, at + end) for at, piece in self._pieces(text) for start, end in piece.offsets]

    def _pieces(self, text: str, at: int = 0) -> list[tuple[int, Encoding]]:
        encoding = self._raw(text)
        if self._control.keys().isdisjoint(encoding.ids):
            return [(at, encoding)]
        cuts = [(start + end) // 2 for start, end in self._control_spans(text, encoding)]
        if not cuts:
            return [(at, encoding)]
        bounds = pairwise([0, *cuts, len(text)])
        return [piece for start, end in bounds for piece in self._pieces(text[start:end], at + start)]

    def _control_spans(self, text: str, encoding: Encoding) -> list[tuple[int, int]]:
        found = []
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            content = self._control.get(token_id)
            if content is None or end - start < 2 or (token_id == self._unknown_id and content not in text[start:end]):
                continue
            found.append((start, end))
        return found

    def _raw(self, text: str) -> Encoding:
        if self._replaced:
            text = text.translate(self._replaced)
        try:
            return self._frozen.encode(text, add_special_tokens=False)
        except TypeError:  # what the binding raises for a lone surrogate
            return self._frozen.encode(_SURROGATE.sub(_REPLACEMENT, text), add_special_tokens=False)


class TemplateEncoder:
    """Encodes template literals, in which control tokens count as such.

    SentencePiece vocabularies put a space before the text that follows a control token; a literal that goes on in
    the middle of a line gets none.
    """

    def __init__(self, spec: Mapping[str, Any], control: ControlTokens) -> None:
        self._control = control
        self._leading = _build(spec)
        inner = without_prefix_space(spec)
        self._inner = self._leading if inner == spec else _build(inner)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, control tokens included."""
        frozen = self._leading if self._control.start(text) else self._inner
        ids: list[int] = frozen.encode(_SURROGATE.sub(_REPLACEMENT, text), add_special_tokens=False).ids
        return ids


def unknown_id(spec: Mapping[str, Any]) -> int | None:
    """The id that stands for characters which the vocabulary lacks."""
    model = spec["model"]
    found: int | None = model.get("unk_id")  # Unigram has the id, the others the token
    return model["vocab"].get(model["unk_token"]) if found is None and model.get("unk_token") else found


def text_tokenizer(spec: Mapping[str, Any], added: Sequence[AddedToken]) -> Tokenizer:
    """The tokenizer of `spec` with no added token but runs of white space, and no space put before a text."""
    plain = without_prefix_space(spec)
    spaces = {token.id for token in added if token.is_space}
    kept = [token for token in spec["added_tokens"] if token["id"] in spaces]
    frozen = _build({**plain, "added_tokens": kept})
    if all(frozen.token_to_id(token["content"]) == token["id"] for token in kept):
        return frozen
    return _build({**plain, "added_tokens": []})  # ids of tokens beside the vocabulary shift when others are missing


def without_prefix_space(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `spec` that puts no space before its input, for texts that are joined after encoding."""
    normalizer = _edit(spec["normalizer"], "normalizers", _no_prepend)
    return {
        **spec,
        "normalizer": normalizer,
        "pre_tokenizer": _edit(spec["pre_tokenizer"], "pretokenizers", _no_prefix),
    }


def _edit(step: Any, children: str, change: Any) -> Any:
    if step is None or step["type"] != "Sequence":
        return None if step is None else change(step)
    changed = [_edit(child, children, change) for child in step[children]]
    return {**step, children: [child for child in changed if child is not None]}


def _no_prepend(step: dict[str, Any]) -> dict[str, Any] | None:
    return None if step["type"] == "Prepend" else step


def _no_prefix(step: dict[str, Any]) -> dict[str, Any]:
    if step["type"] == "Metaspace":
        return {**step, "prepend_scheme": "never"} if "prepend_scheme" in step else {**step, "add_prefix_space": False}
    return {**step, "add_prefix_space": False} if step.get("add_prefix_space") else step


def _build(spec: Mapping[str, Any]) -> Tokenizer:
    bare = {**spec, "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps(bare, ensure_ascii=False))

"""How a passage looks in the prompt: its label, its rendering, and the white space between it and its neighbours."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from budget.types import Document

_PLACEHOLDER = re.compile(r"\{(id|title|text)\}")
_EMPTY_TITLE = re.compile(r"^\{title\}\n|[ \t]?\{title\}", re.MULTILINE)


def labels(documents: Sequence[Document]) -> list[str]:
    """A label for each passage, none twice.

    A passage's id is its label. Where it has none, or another passage has the same, a few digits of the text's hash
    take its place or follow it: a label depends on the passage, not on its position, so that the same passage is the
    same tokens in every prompt.
    """
    num_same_id = Counter(document.id for document in documents)
    found: list[str] = []
    taken: set[str] = set()
    for document in documents:
        label = (document.id or "").strip()
        if not label or num_same_id[document.id] > 1:
            label = "-".join(filter(None, [label, hashlib.sha256(document.text.encode()).hexdigest()[:4]]))
        if label in taken:
            label = f"{label}-{document.index}"
        while label in taken:
            label += "'"
        taken.add(label)
        found.append(label)
    return found


def render(template: str, label: str, title: str, text: str) -> str:
    """The template filled in, once: braces within a passage stay as they are. A missing title leaves no gap."""
    values = {"id": label, "title": title, "text": text}
    literals, names = _parts(template, bool(title))
    return literals[0] + "".join([values[name] + literal for name, literal in zip(names, literals[1:], strict=True)])


@lru_cache(maxsize=256)
def _parts(template: str, has_title: bool) -> tuple[list[str], list[str]]:
    """The literals around the placeholders, and the placeholders' names."""
    pieces = _PLACEHOLDER.split(template if has_title else _EMPTY_TITLE.sub("", template))
    return pieces[::2], pieces[1::2]


def attach(texts: Sequence[tuple[str, str]], side: Literal["leading", "trailing"]) -> list[str]:
    """Texts with the separators between them put where the vocabulary wants white space.

    Args:
        texts: pairs of the separator before a text and the text; the first one's separator is left out.
        side: `leading`: at the start of the text behind; `trailing`: at the end of the text before.
    """
    attached: list[str] = []
    for at, (separator, text) in enumerate(texts):
        if at and side == "trailing":
            attached[-1] += separator
        attached.append(separator + text if at and side == "leading" else text)
    return attached

"""A passage that an app pasted into a message, and what such passages are called."""

from typing import NamedTuple

MAX_PASSAGES = 1000
"""Of one message; a text in which a pattern matches more often is no list of passages."""

NAMES = "document|doc|passage|source|context|chunk|snippet|reference|文[档檔]|段落|[资資]料|片段|文章|[来來]源|参考"
"""Of passages, as the inside of a regular expression's group."""


class Pasted(NamedTuple):
    """A passage: what to cut out of the message as [start, end), and what the cut holds."""

    start: int
    end: int
    text: str
    id: str | None = None
    title: str | None = None

"""Where in a message an app pasted passages: numbered ones, tagged ones, fenced ones, or a pattern of the policy's.

Every shipped pattern is linear in the text. A pattern finds at least two passages, or none.
"""

import time
from collections.abc import Callable, Sequence

import regex

from budget.cache import BoundedCache
from budget.markup import fenced, tagged
from budget.numbered import numbered
from budget.pasted import MAX_PASSAGES, Pasted

MAX_CHARS = 200_000
"""Of a text that a policy's own regular expression is tried on: its time may grow faster than the text."""

_TIMEOUT_S = 0.5
"""For such an expression. One that is linear needs a hundredth of this for MAX_CHARS, one that is not mostly needs
minutes: so the outcome hangs on the text, not on the machine's load, and it is remembered."""


def find_pasted(text: str, pattern: str, *, is_system: bool) -> list[Pasted]:
    """The passages in order, none overlapping; [] where there are fewer than two.

    Args:
        text: a message.
        pattern: `numbered`, `tags`, `fenced`, or a regular expression with a group `text` and, if it likes, `id` and
            `title`; each of its matches is cut out whole.
        is_system: plain lists (`1.`) in a system text are instructions, and stay.
    """
    finders: dict[str, Callable[[str], Sequence[Pasted]]] = {
        "numbered": lambda own: numbered(own, plain=not is_system),
        "tags": tagged,
        "fenced": fenced,
    }
    finder = finders.get(pattern)
    found = [p for p in (finder(text) if finder else _matched(text, pattern)) if p.text.strip()]
    return found if 2 <= len(found) <= MAX_PASSAGES else []


_matches: BoundedCache[tuple[Pasted, ...]] = BoundedCache(max_bytes=16 * 1024 * 1024)


def _matched(text: str, pattern: str) -> Sequence[Pasted]:
    """Matches of a policy's regular expression; none in a text that is too long or takes it too long."""
    if len(text) > MAX_CHARS:
        return ()
    found = _matches.get((pattern, text))
    if found is None:
        found = tuple(_searched(text, pattern))
        _matches.put((pattern, text), found, 500 + 8 * len(text) + 4 * len(pattern))
    return found


def _searched(text: str, pattern: str) -> list[Pasted]:
    found: list[Pasted] = []
    started = time.thread_time()
    try:
        for match in regex.finditer(pattern, text, timeout=_TIMEOUT_S, concurrent=True):
            groups = match.groupdict()
            own = [(groups.get(name) and groups[name].strip()) or None for name in ("id", "title")]
            found.append(Pasted(match.start(), match.end(), (groups["text"] or "").strip(), *own))
            if len(found) > MAX_PASSAGES or time.thread_time() - started > _TIMEOUT_S:
                return []
    except TimeoutError:
        return []
    return found

"""Passages as a numbered list: `[1]`, `1.`, `Document [1](Title: ...)`, `【1】`, `文档1：`."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from budget.pasted import MAX_PASSAGES, NAMES, Pasted

_MARKER = re.compile(
    rf"^[ \t]*(?P<open>(?:(?:{NAMES})[ \t]*)?[\[【]\^?|(?:{NAMES})[ \t]*\#?|[(（]?)(?P<number>\d{{1,3}}|[①-⑳])"
    r"(?P<close>[\]】][ \t]*[:：.]?|[ \t]*[.．)）、:：]|)(?P<title>\((?:title|标题)[:：][^()\n]*\))?",
    re.IGNORECASE | re.MULTILINE,
)
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_ASKS = re.compile(r"\n[ \t]*(?:question|query|q|user|task|问题|提问|用户|任务)[ \t]*[:：]", re.IGNORECASE)


def numbered(text: str, *, plain: bool) -> list[Pasted]:
    """The longest run of markers of one style that count up from 0 or 1."""
    longest = max(_runs(text, plain=plain), key=lambda run: run[-1].start() - run[0].start(), default=[])
    return list(_items(text, longest)) if 2 <= len(longest) <= MAX_PASSAGES else []


def _runs(text: str, *, plain: bool) -> Iterator[list[re.Match[str]]]:
    open_runs: dict[str, list[re.Match[str]]] = {}
    for marker in _MARKER.finditer(text):
        if (style := _style(text, marker, plain=plain)) is None:
            continue
        number, run = _number(marker), open_runs.get(style)
        if run and number == _number(run[-1]) + 1:
            run.append(marker)
        elif number <= 1:
            if run:
                yield run
            open_runs[style] = [marker]
    yield from open_runs.values()


def _style(text: str, marker: re.Match[str], *, plain: bool) -> str | None:
    """The marker without its number; None where it is a number and no marker."""
    style = f"{marker['open'].strip()}#{marker['close'].strip()}".casefold()
    is_circled = not marker["number"].isdecimal()
    if style[0] in "#(（":
        follows = text[marker.end() : marker.end() + 1]
        is_marked = is_circled or (style != "#" and (follows.isspace() or not follows.isascii()))
        return style if plain and is_marked else None
    return style if marker["close"] else None


def _number(marker: re.Match[str]) -> int:
    given = marker["number"]
    return int(given) if given.isdecimal() else ord(given) - ord("①") + 1


def _items(text: str, run: Sequence[re.Match[str]]) -> Iterator[Pasted]:
    is_wrapped = False
    for marker, following in pairwise([*run, None]):
        assert marker is not None
        end = following.start() if following else _last_end(text, marker.end(), is_wrapped=is_wrapped)
        body = text[marker.end() : end].strip()
        is_wrapped = is_wrapped or "\n" in body
        title = re.sub("^[^:：]*[:：]", "", marker["title"][:-1]).strip() if marker["title"] else None
        yield Pasted(marker.start(), end, body, str(_number(marker)), title)


def _last_end(text: str, start: int, *, is_wrapped: bool) -> int:
    """Where the last passage ends: at a blank line, before what asks, at its line's end if no other has more lines."""
    stops = [stop.start() for pattern in (_BLANK_LINE, _ASKS) if (stop := pattern.search(text, start))]
    end = min([*stops, len(text)])
    newline = text.find("\n", start, end)
    if newline >= 0 and not is_wrapped:
        return newline
    last_line = text.rfind("\n", start, len(text.rstrip()))
    asks_last = end == len(text) and last_line >= 0 and text.rstrip().endswith(("?", "？"))
    return last_line if asks_last else end

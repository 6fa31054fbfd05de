"""Passages between tags and between fences."""

import re
from collections.abc import Sequence

from budget.pasted import MAX_PASSAGES, NAMES, Pasted

_MAX_DEPTH = 16
_ELEMENTS = NAMES.replace("source|", "")
_TAG = re.compile(rf"<(?P<slash>/?)(?P<name>(?:{_ELEMENTS})s?)\b(?P<attributes>[^<>]*)>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\b(id|index|title|name)\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'/>]+))", re.IGNORECASE)
_CHILD = re.compile(r"\s*<(?P<name>title|source|id)>(?P<value>[^<]*)</(?P=name)>", re.IGNORECASE)
_CONTENT = re.compile(
    r"\s*<(?P<name>document_content|content|text)>(?P<text>.*)</(?P=name)>\s*", re.IGNORECASE | re.DOTALL
)


def tagged(text: str) -> list[Pasted]:
    """Elements such as `<doc id="a" title="b">`, the innermost of them; a wrapper that is left empty goes too."""
    found: list[Pasted] = []
    stack: list[tuple[re.Match[str], int]] = []
    for tag in _TAG.finditer(text):
        if len(stack) > _MAX_DEPTH or len(found) > MAX_PASSAGES:
            return []
        if not tag["slash"]:
            stack.append((tag, len(found)))
            continue
        if not stack or stack[-1][0]["name"].lower() != tag["name"].lower():
            stack.clear()
            continue
        opened, num_before = stack.pop()
        if len(found) == num_before:
            found.append(_element(text, opened, tag))
        elif not _left_between(text, found[num_before:], opened.end(), tag.start()):
            found[num_before] = found[num_before]._replace(start=opened.start())
            found[-1] = found[-1]._replace(end=tag.end())
    return found


def _left_between(text: str, pasted: Sequence[Pasted], start: int, end: int) -> bool:
    """Whether anything but passages stands in [start, end)."""
    edges = [start, *(edge for p in pasted for edge in (p.start, p.end)), end]
    return any(text[a:b].strip() for a, b in zip(edges[::2], edges[1::2], strict=True))


def _element(text: str, opened: re.Match[str], closed: re.Match[str]) -> Pasted:
    values = {m[1].lower(): m[2] or m[3] or m[4] for m in _ATTRIBUTE.finditer(opened["attributes"])}
    body = text[opened.end() : closed.start()]
    at = 0
    while child := _CHILD.match(body, at):
        values.setdefault(child["name"].lower(), child["value"].strip())
        at = child.end()
    body = body[at:]
    if content := _CONTENT.fullmatch(body):
        body = content["text"]
    title = values.get("title") or values.get("name") or values.get("source")
    return Pasted(opened.start(), closed.end(), body.strip(), values.get("id") or values.get("index"), title)


_FENCE = re.compile(r"^[ \t]{0,3}(?P<mark>`{3,}|~{3,}|\"{3,}|'{3,})(?P<info>[^`\"\n]*)$", re.MULTILINE)
_PROSE = re.compile(rf"(?:(?:{NAMES}|text|txt|plain(?:text)?|markdown|md)\b[ \t:：]*)?(?P<title>.*)", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z][\w+#.-]*", re.IGNORECASE)


def fenced(text: str) -> list[Pasted]:
    """Blocks between fences, but for those that name a language: they are code, and belong to the question."""
    found: list[Pasted] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence["mark"].startswith(opened["mark"]) and not fence["info"].strip():
            prose = _PROSE.match(opened["info"].strip())
            title = prose["title"].strip() if prose else ""
            if not (_LANGUAGE.fullmatch(title) and title == opened["info"].strip()):
                body = text[opened.end() : fence.start()].strip("\r\n")
                own = (title, None) if title.isdecimal() else (None, title or None)
                found.append(Pasted(opened.start(), fence.end(), body, *own))
            opened = None
    return found

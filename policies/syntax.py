"""Text that is no YAML: what is wrong with it, where, and what to do."""

import codecs

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

_TAB_FIX = "indent with spaces: YAML allows no tabs there"


class SyntaxFault(Exception):
    """The text cannot be read; line and column count from 1."""

    def __init__(self, line: int, column: int, message: str, fix: str) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.message = message
        self.fix = fix


def decode(data: bytes) -> str:
    """UTF-8 with or without a byte order mark.

    Raises:
        SyntaxFault: it is another encoding.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SyntaxFault(1, 1, "the file is UTF-16", "save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _place_at(data[: error.start].decode("utf-8-sig"))
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise SyntaxFault(line, column, message, "save the file as UTF-8") from None


def fault_of(error: YAMLError, text: str) -> SyntaxFault:
    """A scanner's or parser's error in our words."""
    if isinstance(error, ReaderError):
        fix = "remove it, or write it escaped in double quotes"
        return SyntaxFault(*_place_at(text[: error.position]), "a control character", fix)
    if not isinstance(error, MarkedYAMLError) or (mark := error.problem_mark or error.context_mark) is None:
        return SyntaxFault(1, 1, f"not YAML: {error}", "check the syntax")
    what = ": ".join(part for part in (error.context, error.problem) if part)
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    return SyntaxFault(mark.line + 1, mark.column + 1, f"not YAML: {what}", _fix(what, line))


def _place_at(before: str) -> tuple[int, int]:
    lines = before.split("\n")
    return len(lines), len(lines[-1]) + 1


def _fix(what: str, line: str) -> str:
    if "\\t" in what or "\t" in line[: len(line) - len(line.lstrip())]:
        return _TAB_FIX
    if "mapping values are not allowed" in what:
        return "indent keys of one level alike, and quote text that holds a colon and a space"
    if "cannot start any token" in what:
        return "quote text that starts with a sign that YAML keeps for itself, such as @, ` or %"
    if "quoted scalar" in what:
        return "close the quotation mark"
    if "flow" in what:
        return "close the bracket, and put commas between its parts"
    return "check indentation, colons and quotation marks around this place"

"""What a chat template can show, found out once by rendering small conversations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import EngineError

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
"""Messages and tools to text; raises ChatTemplateError."""

_LONG_ID, _SHORT_ID = "call_0123456789abcdefghijklmn", "abcdefghi"
_TOOL = {
    "type": "function",
    "function": {
        "name": "papa",
        "description": "quebec",
        "parameters": {"type": "object", "properties": {"romeo": {"type": "string"}}, "required": ["romeo"]},
    },
}


class ChatTemplateError(EngineError, ValueError):
    """The model's chat template refuses these messages, or would leave out some of their text."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """How far a template gets with each kind of message; what it cannot show is rewritten before rendering.

    `calls` says, by (has content, more than one call), whether tool calls are shown; `bare_content` is the content
    that a message with calls alone must have; `short_ids` that call ids must be nine characters (Mistral);
    `user_after_result` whether the user may speak next after the result of a tool.
    """

    systems: Literal["anywhere", "first", "none"]
    same_role_twice: bool
    tool_role: bool
    tools: bool
    user_after_result: bool = True
    short_ids: bool = False
    bare_content: str | None = ""
    calls: Mapping[tuple[bool, bool], bool] = field(default_factory=dict)


def probe(render: Render) -> Abilities:
    """Render what real conversations hold, and look whether every word comes out, in order."""

    def shows(words: str, *messages: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] = ()) -> bool:
        try:
            return _in_order(render(messages, tools), words.split())
        except ChatTemplateError:
            return False

    user, again, answer = _say("user", "bravo"), _say("user", "echo"), _say("assistant", "delta")
    short_ids, bare = next(
        (
            (call_id == _SHORT_ID, content)
            for call_id in (_LONG_ID, _SHORT_ID)
            for content in ("", None)
            if shows("bravo papa sierra", user, _calls(content, call_id), _result(call_id), answer, again)
        ),
        (False, ""),
    )
    call_id = _SHORT_ID if short_ids else _LONG_ID
    calls = {
        (has_content, several): shows(
            "bravo " + "lima " * has_content + "papa sierra " * (1 + several),
            user, _calls("lima" if has_content else bare, call_id, 1 + several),
            *[_result(call_id)] * (1 + several), answer, again,
        )
        for has_content in (False, True) for several in (False, True)
    }  # fmt: skip
    asked = _calls(bare, call_id) if calls[False, False] else _say("assistant", "papa")
    tool_role = shows("bravo tango delta echo", user, asked, _result(call_id), answer, again)
    result = _result(call_id) if tool_role else _say("user", "tango")
    return Abilities(
        systems=_systems(shows, [user, asked, result]),
        same_role_twice=shows("bravo echo delta", user, again, answer, user),
        tool_role=tool_role,
        user_after_result=shows("bravo tango echo", user, asked, result, again),
        tools=shows("papa", user, tools=[_TOOL]) and shows("romeo", user, asked, result, tools=[_TOOL]),
        short_ids=short_ids,
        bare_content=bare,
        calls=calls,
    )


def _systems(shows: Callable[..., bool], tail: Sequence[Mapping[str, Any]]) -> Literal["anywhere", "first", "none"]:
    """Where system texts are shown, also in a conversation that ends with the result of a tool."""
    first, second, late = _say("system", "alfa"), _say("system", "oscar"), _say("system", "kilo")
    if not shows("alfa bravo", first, tail[0]) or not shows("alfa bravo papa tango", first, *tail):
        return "none"
    several = [first, second, tail[0], _say("assistant", "delta"), late, *tail]
    return "anywhere" if shows("alfa oscar bravo delta kilo bravo papa tango", *several) else "first"


def _in_order(rendering: str, words: Sequence[str]) -> bool:
    at = 0
    for word in words:
        at = rendering.find(word, at) + len(word)
        if at < len(word):
            return False
    return True


def _say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _calls(content: str | None, call_id: str, count: int = 1) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "papa", "arguments": {"romeo": "sierra"}}}
    return {"role": "assistant", "content": content, "tool_calls": [call] * count}


def _result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": "tango", "tool_call_id": call_id, "name": "papa"}

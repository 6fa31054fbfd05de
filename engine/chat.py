"""Messages to prompt segments, through the model's own chat template.

Where the template cannot show something (see `chat_probe.Abilities`), the messages are rewritten by these rules, so
that no text is ever left out:

- Tool calls become lines of JSON at the end of the assistant's content.
- System texts after the first join the first, in order; a template without a system role gets them at the start of
  the first user message.
- A tool result in a template without that role becomes a user message.
- Neighbours of one role become one message, where the template insists on turns.

A tokenizer without a template gets `User: ...` and `Assistant: ...` paragraphs.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from engine.chat_probe import Abilities, ChatTemplateError, probe
from engine.encoding import ControlTokens
from engine.placeholders import Piece, Placeholders, RenderedSegment

PLAIN_TEMPLATE = (
    "{{ bos_token if bos_token is defined else '' }}"
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
_WORD = re.compile(r"[A-Za-z0-9_$-]{1,64}")


class PartLike(Protocol):
    """A piece of one message's content."""

    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def section(self) -> str: ...  # noqa: D102


class MessageLike(Protocol):
    """A chat message whose content is in parts; `tool_calls` are as the API sent them."""

    @property
    def role(self) -> str: ...  # noqa: D102
    @property
    def parts(self) -> Sequence[PartLike]: ...  # noqa: D102
    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]]: ...  # noqa: D102
    @property
    def tool_call_id(self) -> str | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class _Turn:
    role: str
    pieces: tuple[Piece, ...]
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str = ""
    """What to call it in an error."""


class ChatTemplate:
    """One model's chat template. Stateless after loading, and thread-safe."""

    def __init__(self, tokenizer: Any, control: ControlTokens, separator_side: Literal["leading", "trailing"]) -> None:
        self._tokenizer = tokenizer
        self._control = control
        self._side = separator_side
        self._template = None if tokenizer.chat_template else PLAIN_TEMPLATE
        self._nonce = str(secrets.randbits(96) | 1 << 95)
        self.abilities: Abilities = probe(self._apply)

    def render(self, messages: Sequence[MessageLike], tools: Sequence[Mapping[str, Any]] = ()) -> list[RenderedSegment]:
        """The prompt in segments, ending where the assistant's answer begins.

        Raises:
            ChatTemplateError: the template refuses the messages, or would leave out a text.
        """
        if not messages:
            raise ChatTemplateError("there are no messages to render")
        held = Placeholders(self._nonce, self._control)
        turns = [_turn(n, message) for n, message in enumerate(messages)]
        chat = [self._message(turn, held) for turn in self._arranged(turns)]
        text = self._apply(chat, [self._tool(n, tool, held) for n, tool in enumerate(tools)])
        if lost := held.lost(text):
            raise ChatTemplateError(f"the model's chat template leaves out {lost}")
        return held.segments(text)

    def _apply(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(chat), tools=list(tools) or None, chat_template=self._template,
                add_generation_prompt=True, tokenize=False,
            )  # fmt: skip
        except Exception as error:  # a template can raise anything
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error
        return str(text)

    def _arranged(self, turns: Sequence[_Turn]) -> list[_Turn]:
        can = self.abilities
        arranged = [self._calls_shown(turn) for turn in turns]
        if not can.tool_role:
            arranged = [replace(t, role="user", tool_call_id=None) if t.role == "tool" else t for t in arranged]
        if can.systems != "anywhere":
            arranged = self._systems_first(arranged)
        if not can.same_role_twice:
            arranged = self._merged(arranged)
        return arranged

    def _calls_shown(self, turn: _Turn) -> _Turn:
        has_content = any(piece.text.strip() for piece in turn.pieces)
        if not turn.tool_calls or self.abilities.calls[has_content, len(turn.tool_calls) > 1]:
            return turn
        lines = "\n".join(_call_json(call) for call in turn.tool_calls)
        section = turn.pieces[-1].section if turn.pieces else "history"
        own = turn.pieces if has_content else ()
        return replace(turn, pieces=self._joined([own, (Piece(lines, section),)], "\n"), tool_calls=())

    def _systems_first(self, turns: Sequence[_Turn]) -> list[_Turn]:
        systems = [turn for turn in turns if turn.role == "system"]
        others = [turn for turn in turns if turn.role != "system"]
        if not systems:
            return others
        first = replace(systems[0], pieces=self._joined([turn.pieces for turn in systems]))
        if self.abilities.systems == "first":
            return [first, *others]
        at = next((n for n, turn in enumerate(others) if turn.role == "user"), None)
        if at is None:
            return [replace(first, role="user"), *others]
        others[at] = replace(others[at], pieces=self._joined([first.pieces, others[at].pieces]))
        return others

    def _merged(self, turns: Sequence[_Turn]) -> list[_Turn]:
        merged: list[_Turn] = []
        for turn in turns:
            last = merged[-1] if merged else None
            if last and last.role == turn.role and turn.role in ("user", "assistant") and not last.tool_calls:
                pieces = self._joined([last.pieces, turn.pieces])
                merged[-1] = replace(turn, pieces=pieces, name=last.name)
            else:
                merged.append(turn)
        return merged

    def _joined(self, texts: Sequence[tuple[Piece, ...]], separator: str = "\n\n") -> tuple[Piece, ...]:
        """Texts with a separator between them, on the side where the vocabulary wants it."""
        joined: list[Piece] = []
        for pieces in texts:
            if joined and pieces and self._side == "leading":
                pieces = (pieces[0]._replace(text=separator + pieces[0].text), *pieces[1:])
            elif joined and pieces:
                joined[-1] = joined[-1]._replace(text=joined[-1].text + separator)
            joined += pieces
        return tuple(joined)

    def _message(self, turn: _Turn, held: Placeholders) -> dict[str, Any]:
        content: str | None = held.hold(turn.pieces, required=f"the content of {turn.name}")
        message: dict[str, Any] = {"role": turn.role, "content": content}
        if turn.tool_calls:
            message["content"] = content or self.abilities.bare_content
            section = turn.pieces[-1].section if turn.pieces else "history"
            message["tool_calls"] = [self._call(call, section, turn.name, held) for call in turn.tool_calls]
        if turn.tool_call_id is not None:
            message["tool_call_id"] = self._guarded(self._call_id(turn.tool_call_id), "history", held)
        return message

    def _call(self, call: Mapping[str, Any], section: str, name: str, held: Placeholders) -> dict[str, Any]:
        function = call.get("function") or {}
        label = f"a tool call of {name}"
        arguments = _parsed(function.get("arguments"))
        if isinstance(arguments, Mapping):
            arguments = {
                self._guarded(key, section, held): self._guarded(value, section, held, values=True, required=label)
                for key, value in arguments.items()
            }
        else:
            arguments = self._guarded(arguments, section, held, values=True, required=label)
        function_name = held.hold([Piece(str(function.get("name", "")), section)], inline=True, required=label)
        shown = {"type": "function", "function": {"name": function_name, "arguments": arguments}}
        if call.get("id"):
            shown["id"] = self._guarded(self._call_id(str(call["id"])), section, held)
        return shown

    def _call_id(self, call_id: str) -> str:
        if not self.abilities.short_ids or re.fullmatch("[A-Za-z0-9]{9}", call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]

    def _tool(self, n: int, tool: Mapping[str, Any], held: Placeholders) -> dict[str, Any]:
        guarded: dict[str, Any] = self._guarded(tool, "tools", held)
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name"):
            name = [Piece(str(function["name"]), "tools")]
            guarded["function"]["name"] = held.hold(name, inline=True, required=f"tools[{n}]")
        return guarded

    def _guarded(
        self, value: Any, section: str, held: Placeholders, *, values: bool = False, required: str | None = None
    ) -> Any:
        """A JSON value in which every string that is not a harmless single word has a stand-in.

        Templates branch on words such as `"type": "string"`, so these stay; with `values`, no string value does.
        """
        if isinstance(value, str):
            if not values and _WORD.fullmatch(value) and not self._control.find(value):
                return value
            return held.hold([Piece(value, section)], inline=True, required=required)
        if isinstance(value, Mapping):
            return {
                self._guarded(key, section, held): self._guarded(child, section, held, values=values, required=required)
                for key, child in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._guarded(child, section, held, values=values, required=required) for child in value]
        return value


def _turn(n: int, message: MessageLike) -> _Turn:
    pieces = tuple(Piece(part.text, part.section) for part in message.parts if part.text)
    return _Turn(message.role, pieces, tuple(message.tool_calls), message.tool_call_id, f"messages[{n}]")


def _parsed(arguments: Any) -> Any:
    """Call arguments as a JSON object, which templates expect; what is no object stays as it was sent."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _call_json(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    shown = {"name": function.get("name", ""), "arguments": _parsed(function.get("arguments"))}
    return json.dumps(shown, ensure_ascii=False)

"""Messages to prompt segments, through the model's own chat template (see `chat_rules` for what it cannot show).

A tokenizer without a template gets `User: ...` and `Assistant: ...` paragraphs.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from engine.chat_probe import Abilities, ChatTemplateError, probe
from engine.chat_rules import SeparatorSide, Turn, arranged, parsed_arguments
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


class ChatTemplate:
    """One model's chat template. Stateless after loading, and thread-safe.

    Attributes:
        abilities: what the template can show, found by probing it.
    """

    def __init__(self, tokenizer: Any, control: ControlTokens, separator_side: SeparatorSide) -> None:
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
        called = {call.get("id"): _function_name(call) for message in messages for call in message.tool_calls}
        turns = arranged([_turn(n, message) for n, message in enumerate(messages)], self.abilities, self._side)
        try:
            chat = [self._message(turn, called, held) for turn in turns]
            definitions = [self._tool(n, tool, held) for n, tool in enumerate(tools)]
        except RecursionError as error:
            raise ChatTemplateError("a tool call or definition is nested too deeply") from error
        text = self._apply(chat, definitions)
        if lost := held.lost(text):
            raise ChatTemplateError(f"the model's chat template leaves out {lost}")
        return held.segments(text)

    def _apply(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        options = {"chat_template": self._template, "add_generation_prompt": True, "tokenize": False}
        try:
            return str(self._tokenizer.apply_chat_template(list(chat), tools=list(tools) or None, **options))
        except Exception as error:  # a template can raise anything
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error

    def _message(self, turn: Turn, called: Mapping[Any, str], held: Placeholders) -> dict[str, Any]:
        content = held.hold(turn.pieces, required=f"the content of {turn.name}")
        message: dict[str, Any] = {"role": turn.role, "content": content}
        if turn.tool_calls:
            message["content"] = content or self.abilities.bare_content
            message["tool_calls"] = [self._call(call, turn, held) for call in turn.tool_calls]
        if turn.tool_call_id is not None:
            message["tool_call_id"] = self._guarded(self._call_id(turn.tool_call_id), turn.section, held)
            if name := called.get(turn.tool_call_id):
                message["name"] = self._guarded(name, turn.section, held)
        return message

    def _call(self, call: Mapping[str, Any], turn: Turn, held: Placeholders) -> dict[str, Any]:
        label = f"a tool call of {turn.name}"
        arguments = parsed_arguments((call.get("function") or {}).get("arguments"))
        shown: dict[str, Any] = {
            "type": "function",
            "function": {
                "name": held.hold([Piece(_function_name(call), turn.section)], inline=True, required=label),
                "arguments": self._guarded(arguments, turn.section, held, required=label),
            },
        }
        if call.get("id"):
            shown["id"] = self._guarded(self._call_id(str(call["id"])), turn.section, held)
        return shown

    def _call_id(self, call_id: str) -> str:
        if not self.abilities.short_ids or re.fullmatch("[A-Za-z0-9]{9}", call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]

    def _tool(self, n: int, tool: Mapping[str, Any], held: Placeholders) -> dict[str, Any]:
        guarded: dict[str, Any] = self._guarded(tool, "tools", held)
        if name := _function_name(tool):
            guarded["function"]["name"] = held.hold([Piece(name, "tools")], inline=True, required=f"tools[{n}]")
        return guarded

    def _guarded(self, value: Any, section: str, held: Placeholders, *, required: str | None = None) -> Any:
        """A JSON value whose strings have stand-ins, but for harmless single words.

        Templates branch on words such as `"type": "string"`, so these stay, unless the value is `required`.
        """
        if isinstance(value, str):
            if required is None and _WORD.fullmatch(value) and not self._control.find(value):
                return value
            return held.hold([Piece(value, section)], inline=True, required=required)
        if isinstance(value, Mapping):
            return {
                self._guarded(key, section, held): self._guarded(child, section, held, required=required)
                for key, child in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._guarded(child, section, held, required=required) for child in value]
        return value


def _turn(n: int, message: MessageLike) -> Turn:
    pieces = tuple(Piece(part.text, part.section) for part in message.parts if part.text)
    return Turn(message.role, pieces, f"messages[{n}]", tuple(message.tool_calls), message.tool_call_id)


def _function_name(holder: Mapping[str, Any]) -> str:
    """The function's name in a tool call or a tool definition."""
    return str((holder.get("function") or {}).get("name") or "")

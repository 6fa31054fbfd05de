"""How messages are rewritten where a chat template cannot show them, so that no text is ever left out.

- Tool calls that the template would lose become lines of JSON at the end of the assistant's content.
- A tool result becomes a user message in a template without that role, and after a call as text where the template
  insists on turns.
- An assistant message without text stands between a tool result and the user, where the template insists on one.
- System texts after the first join the first, in order; a template without a system role gets them at the start of
  the first user message.
- Neighbours of one role become one message, where the template insists on turns.

The rules depend on the template alone, so a conversation that grows keeps its prompt's prefix.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from engine.chat_probe import Abilities
from engine.placeholders import Piece

SeparatorSide = Literal["leading", "trailing"]


@dataclass(frozen=True, slots=True)
class Turn:
    """A message on its way into a template; `name` is what to call it in an error."""

    role: str
    pieces: tuple[Piece, ...]
    name: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None

    @property
    def section(self) -> str:
        """Where what belongs to the message is counted: with its content, else with history."""
        return self.pieces[-1].section if self.pieces else "history"


def arranged(turns: Sequence[Turn], can: Abilities, side: SeparatorSide) -> list[Turn]:
    """`turns` as a template with these abilities shows them all."""
    result = _results_shown([_calls_shown(turn, can, side) for turn in turns], turns, can)
    if not can.user_after_result:
        result = _results_answered(result)
    if can.systems != "anywhere":
        result = _systems_first(result, can, side)
    return result if can.same_role_twice else _merged(result, side)


def parsed_arguments(arguments: Any) -> Any:
    """Call arguments as a JSON object, which templates expect; what is no object stays as it was sent."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _calls_shown(turn: Turn, can: Abilities, side: SeparatorSide) -> Turn:
    has_content = any(piece.text.strip() for piece in turn.pieces)
    if not turn.tool_calls or can.calls[has_content, len(turn.tool_calls) > 1]:
        return turn
    lines = Piece("\n".join(_call_line(call) for call in turn.tool_calls), turn.section)
    own = turn.pieces if has_content else ()
    return replace(turn, pieces=_joined([own, (lines,)], side, "\n"), tool_calls=())


def _results_shown(shown: Sequence[Turn], sent: Sequence[Turn], can: Abilities) -> list[Turn]:
    """Results become user turns where there is no tool role, or where their call is text and turns must alternate."""
    result, call_is_text = [], False
    for turn, original in zip(shown, sent, strict=True):
        if turn.role == "tool" and (not can.tool_role or (call_is_text and not can.same_role_twice)):
            turn = replace(turn, role="user", tool_call_id=None)
        elif turn.role == "assistant":
            call_is_text = len(turn.tool_calls) < len(original.tool_calls)
        result.append(turn)
    return result


def _results_answered(turns: Sequence[Turn]) -> list[Turn]:
    answered: list[Turn] = []
    for turn in turns:
        if turn.role == "user" and answered and answered[-1].role == "tool":
            answered.append(Turn("assistant", (), answered[-1].name))
        answered.append(turn)
    return answered


def _call_line(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    shown = {"name": function.get("name", ""), "arguments": parsed_arguments(function.get("arguments"))}
    return json.dumps(shown, ensure_ascii=False)


def _systems_first(turns: Sequence[Turn], can: Abilities, side: SeparatorSide) -> list[Turn]:
    systems = [turn for turn in turns if turn.role == "system"]
    others = [turn for turn in turns if turn.role != "system"]
    if not systems:
        return others
    first = replace(systems[0], pieces=_joined([turn.pieces for turn in systems], side))
    if can.systems == "first":
        return [first, *others]
    at = next((n for n, turn in enumerate(others) if turn.role == "user"), None)
    if at is None:
        return [replace(first, role="user"), *others]
    others[at] = replace(others[at], pieces=_joined([first.pieces, others[at].pieces], side))
    return others


def _merged(turns: Sequence[Turn], side: SeparatorSide) -> list[Turn]:
    merged: list[Turn] = []
    for turn in turns:
        last = merged[-1] if merged else None
        if last and last.role == turn.role and turn.role in ("user", "assistant") and not last.tool_calls:
            merged[-1] = replace(turn, pieces=_joined([last.pieces, turn.pieces], side), name=last.name)
        else:
            merged.append(turn)
    return merged


def _joined(texts: Sequence[tuple[Piece, ...]], side: SeparatorSide, separator: str = "\n\n") -> tuple[Piece, ...]:
    """Texts with a separator between them, on the side where the vocabulary wants it."""
    joined: list[Piece] = []
    for pieces in texts:
        if joined and pieces and side == "leading":
            pieces = (pieces[0]._replace(text=separator + pieces[0].text), *pieces[1:])
        elif joined and pieces:
            joined[-1] = joined[-1]._replace(text=joined[-1].text + separator)
        joined += pieces
    return tuple(joined)

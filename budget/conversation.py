"""A chat read as what may be kept or dropped together: system texts, exchanges, and the part that must stay."""

from collections.abc import Sequence
from dataclasses import dataclass

from budget.errors import InvalidConversation
from budget.types import Message

Unit = tuple[int, ...]
"""Indices of messages that live or die together: one message, or an assistant's tool calls with all their results."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Indices into the input messages; every message is in exactly one of the three fields.

    Blank messages (no text, no calls) before the tail are left out of all three: they have nothing to keep.
    """

    messages: Sequence[Message]
    system: tuple[int, ...]
    """System messages, wherever they stood, in order."""
    exchanges: tuple[tuple[Unit, ...], ...]
    """Runs of units that belong together: each begun by a user message, but for the first, if it has none, and for
    units between the question and the last message, which stand alone."""
    tail: tuple[int, ...]
    """The last message with its unit, and the last user message: mandatory."""

    @property
    def question(self) -> int | None:
        """The last user message; None where there is no user message."""
        return next((i for i in self.tail if self.messages[i].role == "user"), None)


def read_conversation(messages: Sequence[Message]) -> Conversation:
    """Groups the messages.

    A conversation may end with a user message, a tool result, or (as OpenAI allows) an assistant message; it may have
    no user message at all. Consecutive messages of one role are accepted.

    Raises:
        InvalidConversation: no messages, or tool calls and results that do not answer each other.
    """
    if not messages:
        raise InvalidConversation("messages is empty: send at least one message", param="messages")
    spoken = [i for i, m in enumerate(messages) if m.role != "system"]
    units = _units(messages, spoken)
    tail = _tail(messages, units)
    kept = [u for u in units if not set(u) & set(tail) and not is_blank(messages, u)]
    return Conversation(
        messages=messages,
        system=tuple(i for i, m in enumerate(messages) if m.role == "system" and m.content.strip()),
        exchanges=_exchanges(messages, kept, next((i for i in tail if messages[i].role == "user"), None)),
        tail=tail,
    )


def is_blank(messages: Sequence[Message], unit: Unit) -> bool:
    """Whether a unit says nothing."""
    return not any(messages[i].content.strip() or messages[i].tool_calls for i in unit)


def _units(messages: Sequence[Message], spoken: list[int]) -> list[Unit]:
    units: list[Unit] = []
    at = 0
    while at < len(spoken):
        index = spoken[at]
        results = _results(messages, spoken, at) if messages[index].role == "assistant" else 0
        if messages[index].role == "tool":
            raise InvalidConversation(
                f"messages[{index}] is a tool result (tool_call_id {messages[index].tool_call_id!r}), but no assistant "
                "message with that tool call stands right before it: send the call too, or leave the result out",
                param=f"messages[{index}].tool_call_id",
            )
        units.append(tuple(spoken[at : at + 1 + results]))
        at += 1 + results
    return units


def _results(messages: Sequence[Message], spoken: list[int], at: int) -> int:
    """How many tool results follow the assistant message at `spoken[at]`: one for each of its calls.

    Raises:
        InvalidConversation: a call has no result right behind it.
    """
    index = spoken[at]
    wanted = [call.get("id") for call in messages[index].tool_calls]
    found = 0
    while wanted and at + 1 + found < len(spoken):
        result = messages[spoken[at + 1 + found]]
        if result.role != "tool" or result.tool_call_id not in wanted:
            break
        wanted.remove(result.tool_call_id)
        found += 1
    if wanted:
        raise InvalidConversation(
            f"messages[{index}] calls a tool (id {wanted[0]!r}), but no result for it follows: send a tool message "
            "with that tool_call_id right behind, or leave the call out",
            param=f"messages[{index}].tool_calls",
        )
    return found


def _tail(messages: Sequence[Message], units: list[Unit]) -> tuple[int, ...]:
    if not units:
        return ()
    users = [u for u in units if messages[u[0]].role == "user"]
    return tuple(sorted({*units[-1], *(users[-1] if users else ())}))


def _exchanges(messages: Sequence[Message], units: list[Unit], question: int | None) -> tuple[tuple[Unit, ...], ...]:
    """Units in runs. A user message begins one; behind the question (a long run of tool calls) each unit is its own."""
    runs: list[list[Unit]] = []
    for unit in units:
        behind = question is not None and unit[0] > question
        if behind or not runs or messages[unit[0]].role == "user":
            runs.append([])
        runs[-1].append(unit)
    return tuple(tuple(run) for run in runs)

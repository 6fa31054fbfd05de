"""Which earlier turns stay: recent ones whole, small talk first to go, older ones in chunks, their facts kept.

Turns go in one fixed order (small talk, then the oldest), so that more room never keeps less. Old turns go in chunks
whose borders depend on nothing but the length of the conversation: one more turn mostly leaves the border, and with it
the prefix that is in KV, where it was.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from budget.conversation import Conversation
from budget.facts import Fact, find_facts, supersede
from budget.small_talk import is_small_talk
from budget.statements import read_statement
from budget.types import Message, TurnClass
from policies.schema import HistorySection

_ASKS = re.compile(r"[?？]|[吗么](?:\W|$)|还是|是否|要不要|好不好")
_OFFERS = re.compile(r"\bfound\b|\bthere (?:is|are) \d", re.IGNORECASE)


_FACTS_SHARE = 0.75
"""Of the room, up to which whole turns give way to facts that bind or inform."""


@dataclass(frozen=True, slots=True)
class History:
    """Indices of the messages that stay, and the facts kept of those that do not, in the order they were said."""

    kept: frozenset[int]
    facts: tuple[Fact, ...] = ()
    tokens: int = 0
    """Of both, beside what must stay."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What is known of the messages, by index. `must` stay; `pinned` are those of them that were asked for."""

    conversation: Conversation
    classes: Sequence[TurnClass]
    facts: Sequence[Fact]
    must: frozenset[int]
    pinned: frozenset[int]
    recent: frozenset[int]

    @property
    def optional(self) -> frozenset[int]:
        """The turns that may be kept or dropped."""
        exchanges = self.conversation.exchanges
        return frozenset(i for exchange in exchanges for unit in exchange for i in unit) - self.must


def classify(message: Message, previous: Message | None = None) -> TurnClass:
    """The turn's class. `previous` is the turn before it: thanks may take up what that one offered."""
    if message.pinned or message.role == "system":
        return "pinned"
    if message.role == "tool" or message.tool_calls:
        return "tool"
    if is_small_talk(message.content, answers=previous is not None and _asks(previous.content)):
        return "context" if previous is not None and _OFFERS.search(previous.content) else "small_talk"
    return "fact" if message.role == "user" and read_statement(message.content).gives else "context"


def read_turns(conversation: Conversation, policy: HistorySection) -> Turns:
    """Classes and facts of all messages, and which of them are held fast."""
    messages = conversation.messages
    said = [i for i, m in enumerate(messages) if m.role == "user"]
    pinned = _pinned(conversation)
    must = pinned.union(conversation.system, conversation.tail)
    return Turns(
        conversation=conversation,
        classes=[classify(m, messages[i - 1] if i else None) for i, m in enumerate(messages)],
        facts=supersede([fact for i in said for fact in find_facts(i, messages[i].content)]),
        must=must,
        pinned=pinned.union(conversation.system),
        recent=_recent(conversation, policy) - must,
    )


def _pinned(conversation: Conversation) -> frozenset[int]:
    """Pinned turns, each with its unit and the user turn that it belongs to: roles stay in order."""
    messages = conversation.messages
    kept = {i for i in conversation.tail if messages[i].pinned}
    for exchange in conversation.exchanges:
        for unit in exchange:
            if any(messages[i].pinned for i in unit):
                kept |= {*unit, *(exchange[0] if messages[exchange[0][0]].role == "user" else ())}
    return frozenset(kept)


def _recent(conversation: Conversation, policy: HistorySection) -> frozenset[int]:
    """The last `keep_last_turns` messages before the tail, with the exchanges they belong to."""
    exchanges = [[i for unit in exchange for i in unit] for exchange in conversation.exchanges]
    last = sorted(i for exchange in exchanges for i in exchange)[-policy.keep_last_turns :]
    last = last if policy.keep_last_turns else []
    return frozenset(i for exchange in exchanges if set(exchange) & set(last) for i in exchange)


def select(
    turns: Turns,
    *,
    policy: HistorySection,
    costs: Mapping[int, int],
    room: int,
    turns_room: int,
    facts_room: int,
    fact_cost: Callable[[Fact], int],
    facts_frame: int,
) -> History:
    """Chooses turns and facts.

    Args:
        turns: of the conversation.
        policy: small talk.
        costs: tokens by message, its share of the template included.
        room: tokens for turns and facts together, beside what must stay.
        turns_room: the most of it for turns.
        facts_room: the most of it for facts.
        fact_cost: tokens of a fact in the prompt.
        facts_frame: tokens that the first fact brings along.
    """
    optional = turns.optional
    for dropped in _drops(turns, policy):
        kept = optional - dropped
        tokens = sum(costs[i] for i in kept)
        allowed = min(facts_room, room - tokens)
        if tokens > min(room, turns_room):
            continue
        wanted = [f for f in turns.facts if f.turn in dropped and not f.superseded]
        chosen = _fitting(wanted, allowed - facts_frame, fact_cost)
        lasting_lost = sum(f.tier < 2 for f in wanted) - sum(f.tier < 2 for f in chosen)
        if not lasting_lost or not kept or allowed >= min(facts_room, _FACTS_SHARE * room):
            frame = facts_frame if chosen else 0
            return History(turns.must | kept, chosen, tokens + frame + sum(fact_cost(fact) for fact in chosen))
    return History(turns.must)


def _drops(turns: Turns, policy: HistorySection) -> Iterator[frozenset[int]]:
    """Growing sets of turns to drop, each holding the one before, from none to all."""
    exchanges = [frozenset(i for unit in e for i in unit) & turns.optional for e in turns.conversation.exchanges]
    old = [e for e in exchanges if e and not e & turns.recent]
    small = [e for e in old if policy.drop_small_talk and all(turns.classes[i] == "small_talk" for i in e)]
    old = [e for e in old if e not in small]
    chunk = chunk_size(len(old))
    steps = [frozenset().union(*old[at : at + chunk]) for at in range(0, len(old), chunk)]
    if small:
        steps.insert(0, frozenset().union(*small))
    steps += [e for e in exchanges if e & turns.recent]
    dropped: frozenset[int] = frozenset()
    yield dropped
    for step in steps:
        dropped |= step
        yield dropped


def chunk_size(num_exchanges: int) -> int:
    """Exchanges that go together: about a third of the conversation, a power of two, so that borders stay put."""
    return 1 << max(num_exchanges // 3, 1).bit_length() - 1


def _fitting(facts: Sequence[Fact], room: int, cost: Callable[[Fact], int]) -> tuple[Fact, ...]:
    """The facts that fit: binding ones first, then the newest."""
    chosen: set[int] = set()
    for at in sorted(range(len(facts)), key=lambda at: (facts[at].tier, -at)):
        if (tokens := cost(facts[at])) <= room:
            room -= tokens
            chosen.add(at)
    return tuple(fact for at, fact in enumerate(facts) if at in chosen)


def _asks(text: str) -> bool:
    return _ASKS.search(text) is not None and not is_small_talk(text)

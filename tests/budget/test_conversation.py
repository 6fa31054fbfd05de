"""Which messages live or die together, and which conversations are refused."""

import pytest

from budget.conversation import read_conversation
from budget.errors import InvalidConversation
from budget.types import Message

CALL = ({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}},)


def user(text: str = "q") -> Message:
    """A user's turn."""
    return Message("user", text)


def answer(text: str = "a") -> Message:
    """An assistant's turn."""
    return Message("assistant", text)


def test_no_messages_are_refused():
    """Reported fault 1: an error that names the field, not a crash."""
    with pytest.raises(InvalidConversation) as error:
        read_conversation([])
    assert error.value.param == "messages"


def test_a_result_without_its_call_is_refused_with_its_place():
    """Behind a user's message, or with another id."""
    for before in ([user()], [user(), Message("assistant", "", ({**CALL[0], "id": "other"},))]):
        with pytest.raises(InvalidConversation, match=r"messages\[\d\]") as error:
            read_conversation([*before, Message("tool", "r", tool_call_id="c1"), user()])
        assert error.value.param.startswith("messages[")


def test_a_call_without_its_result_is_refused():
    """In the middle and at the end."""
    for after in ([], [user()]):
        with pytest.raises(InvalidConversation, match="no result"):
            read_conversation([user(), Message("assistant", "", CALL), *after])


def test_calls_and_results_are_one_unit():
    """Whatever number of calls one message makes."""
    calls = (CALL[0], {**CALL[0], "id": "c2"})
    results = [Message("tool", "r", tool_call_id="c2"), Message("tool", "r", tool_call_id="c1")]
    found = read_conversation([user(), Message("assistant", "", calls), *results, answer(), user("q2")])
    assert found.exchanges == (((0,), (1, 2, 3), (4,)),)
    assert found.tail == (5,)


def test_the_tail_holds_the_last_message_and_the_last_question():
    """A tool result brings its call; an assistant's last message brings the question."""
    tool = [Message("assistant", "", CALL), Message("tool", "r", tool_call_id="c1")]
    assert read_conversation([user(), answer(), user(), *tool]).tail == (2, 3, 4)
    assert read_conversation([user(), answer()]).tail == (0, 1)


def test_units_behind_the_question_stand_alone():
    """A long run of tool calls can lose its oldest ones."""
    tool = [Message("assistant", "", CALL), Message("tool", "r", tool_call_id="c1")]
    found = read_conversation([user(), *tool, *tool, *tool])
    assert found.tail == (0, 5, 6)
    assert found.exchanges == (((1, 2),), ((3, 4),))


def test_system_texts_are_found_wherever_they_stand():
    """Reported fault 53."""
    found = read_conversation([Message("system", "1"), user(), Message("system", "2"), answer(), user()])
    assert found.system == (0, 2)


def test_a_conversation_may_lack_a_question():
    """System texts alone, or an assistant alone, are what OpenAI accepts."""
    assert read_conversation([Message("system", "s")]).question is None
    assert read_conversation([answer()]).question is None


def test_blank_messages_are_in_no_group():
    """There is nothing in them to keep; a blank question stays."""
    found = read_conversation([Message("system", " "), user(), answer(""), user("")])
    assert (found.system, found.exchanges, found.tail) == ((), (((1,),),), (3,))

"""What a user turn says: whether it gives something of its own, and which of its sentences are facts.

A fact is a whole sentence, kept verbatim. By rules, in English and Chinese: it is no question, and it binds ("never
mention prices"), or speaks in the first person, or holds a value (a number, a date).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from budget.cache import BoundedCache
from budget.sentences import sentences
from budget.small_talk import is_small_talk
from budget.text import is_cjk


def _words(*patterns: str) -> str:
    return rf"\b(?:{'|'.join(patterns)})\b"


_BINDS = re.compile(
    _words(
        "never|always|must(?:n'?t)?|do(?:n'?t| not)|should(?:n'?t)?|can(?:'t|not)|only|avoid|hate",
        "allerg\\w*|prefer\\w*|require\\w*|remember|note that|keep in mind|from now on|make sure|call me",
        "please (?:use|answer|reply|call|do|keep|write|speak)|at (?:most|least)|no more than",
        "budget|deadline|vegetarian|vegan|correction|actually|instead|i meant|rather",
    )
    + "|不要|不想|别|不能|不可|不得|不吃|不喝|不用|不许|必须|务必|一定要|只要|只能|只用|总是|始终|永远|请用|请勿|请以"
    "|记住|记得|过敏|忌口|素食|偏好|喜欢|讨厌|希望|预算|至少|最多|不超过"
    "|更正|纠正|改成|改为|改到|换成|其实|说错|搞错|弄错|应该是|应为"
)
_INFORMS = re.compile(
    _words(
        "(?:my|our|the) [\\w' -]{1,40}? (?:is|are|was|were)",
        "(?:i am|i'm|we are|we're) (?!going|looking|planning|leaving|ok|fine|all)",
        "(?:i|we) (?:live|work|have|own|use|speak|study)|(?:is|are) (?:on |at |in |from )?[\\w./-]*\\d[\\w./-]*",
    )
    + "|@|我叫|我姓|我是|我的|我住|我在|我有|我用|我家|我们(?:一共|共|有|是)|(?:是|为|[:：])[^，。]{0,6}[\\dA-Za-z]"
)
_FIRMLY = re.compile(
    _words("never|always|must|don't|do not|only|allerg\\w*|remember") + "|不要|别|必须|务必|只能|过敏|记住"
)
_REQUESTS = re.compile(
    _words(
        "(?:i|we)(?: would|'d)? (?:want|need|like|plan|intend)|(?:find|book|make|set|search|get|reserve|add|show) ",
        "(?:i am|i'm|we are|we're) (?:going|looking|planning|leaving)|(?:i|we)(?:'ll| will) ",
    )
    + "|推荐|找[一个家]|帮[我忙]|查[一下]|介绍|给我|有没有"
)
_FIRST_PERSON = re.compile(r"\b(?:i|my|mine|me|we|our|us)\b|我|咱|本人|俺")
_ASKING_ME = re.compile(
    r"(?:can|could|may|should|do|shall|must|will|would) (?:i|we|you \w+ me)\b"
    r"|\b(?:tell|give|show|help|find|get|let) me\b"
    "|(?:帮|告诉|给|为)我们?|我(?:知道|明白|了解)了"
)
_VALUE = re.compile(
    r"\d|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day\b|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|dozen)\b"
    r"|\b(?:january|february|march|april|june|july|august|september|october|november|december|today|tomorrow|noon)\b"
    '|[一二两三四五六七八九十百千万][个位人天晚元块点号月日年间张次]|星期|周[一二三四五六日天末]|[“「『《"]',
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<=[a-z,;:] )(?!I\b|I')[A-Z][\w'-]*|@|去(?![吧了这那哪它吗])")
_QUESTION = re.compile(
    r"[?？]\W*$|(?:吗|么|呢|多少|哪里|哪儿|哪些|哪家|什么|怎么样)[^，。！]{0,4}$"
    r"|^(?:(?:and|so|ok|okay|hi|hello|yes|then|also|now),? )?"
    r"(?:who|what|when|where|which|why|how|can|could|would|will|is|are|do(?! not|n)|does|did|may (?:i|we))\b",
    re.IGNORECASE,
)
_CONFIRMS = re.compile(r"\b(?:correct|right)\b|^\W*(?:yes|no|可以|好的?|行|是的|对)\W*$")
_POINTS_BACK = re.compile("它|[他她]家|[这该此那]")
_BARE_QUESTION = 8
"""Characters; a shorter Chinese question names nothing."""
_LONG_TURN = 8
"""Sentences; a longer turn is pasted text, of which only binding sentences are the user's own."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one user turn says: whether it gives data, wishes or names of its own, and its facts as (text, tier)."""

    gives: bool
    facts: tuple[tuple[str, int], ...]


_read: BoundedCache[Statement] = BoundedCache(max_bytes=8 * 1024 * 1024)


def read_statement(text: str) -> Statement:
    """Reads a user turn, once by content: it comes again with every later request of its conversation."""
    found = _read.get(text)
    if found is None:
        said = _said(text)
        found = Statement(any(_gives(sentence) for sentence in said), tuple(_facts(said)))
        _read.put(text, found, 200 + 8 * len(text))
    return found


def _facts(said: Sequence[str]) -> Iterator[tuple[str, int]]:
    for sentence in said:
        lowered = _lowered(sentence)
        binds = _BINDS.search(lowered) is not None
        if _QUESTION.search(sentence) or not (binds or _VALUE.search(sentence) or _first_person(lowered)):
            continue
        if binds or len(said) <= _LONG_TURN:
            yield sentence, _tier(lowered, binds)


def _tier(lowered: str, binds: bool) -> int:
    if _REQUESTS.search(lowered):
        return 0 if binds and _FIRMLY.search(lowered) else 2
    if binds:
        return 0
    return 1 if _INFORMS.search(lowered) else 2


def _said(text: str) -> list[str]:
    """The sentences that are not small talk."""
    pieces = (text[span.start : span.end] for span in sentences(text))
    return [piece for piece in pieces if not is_small_talk(piece)]


def _gives(sentence: str) -> bool:
    lowered = _lowered(sentence)
    if _BINDS.search(lowered) or _VALUE.search(sentence) or _NAME.search(sentence) or _first_person(lowered):
        return True
    if not _QUESTION.search(sentence):
        return not _CONFIRMS.search(lowered)
    return is_cjk(sentence) and len(sentence) > _BARE_QUESTION and not _POINTS_BACK.search(sentence)


def _lowered(sentence: str) -> str:
    return sentence.lower().replace("’", "'")


def _first_person(lowered: str) -> bool:
    return _FIRST_PERSON.search(_ASKING_ME.sub("", lowered)) is not None

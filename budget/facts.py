"""What users state about themselves and their task, and what of it still holds. English and Chinese."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from budget.statements import read_statement
from budget.text import is_cjk, normalise, terms

_CORRECTS = re.compile(
    r"\b(?:correction|actually|instead|i meant|rather|changed?|sorry|wrong|mistake|not|updated?|now)\b|^no\b"
    "|更正|纠正|改成|改为|改到|换成|变成|其实|说错|搞错|弄错|应该是|应为|更新|不对|不是|现在是"
)
_SAME = 0.5
"""Share of the shorter sentence's words from which a correction is about the same thing."""
_ATTRIBUTE_EN = re.compile(
    r"\b(?:my|our|the)\s+(?P<name>(?:[\w'-]+\s+){0,4}?[\w'-]+?)\s*"
    r"(?:\b(?:is|are|was|were|will be|should be|must be|has to be|needs to be|became"
    r"|(?:(?:has|is|was) )?(?:now )?(?:been )?changed to)\b|[:=])"
    r"\s*(?P<lead>at|in|on|a|an|for|from|to|by|not)?\b"
)
_ATTRIBUTE_ZH = re.compile(
    r"(?P<name>[^\W\da-zA-Z_]{1,12}?)(?:应该是|应该为|应为|已?经?改成|已?经?改为|改到|换成|变成|(?<![但还可不就要总只也都老或])是|[:：])(?P<lead>)"
)
_DOES = re.compile(
    r"\b(?:live|stay|work|study|prefer|drive|arrive|leave|fly|depart|return)(?=s?\b)|住|工作|喜欢|偏好|出发|到达|返回"
)
_NO_PART_OF_NAME = re.compile(
    r"\b(?:new|correct|right|actual|real|current|latest|updated|final|own|now)\b"
    "|新的?|正确的?|实际的?|最新的?|现在的?|现在|其实|更正|纠正|不对|我们的?|咱们的?|我的?|您|这|那|它|[他她你今]|的$|已经?$"
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence of turn `turn`, verbatim. Tier 0 binds, tier 1 informs, tier 2 asks for something; it goes first."""

    turn: int
    text: str
    tier: int
    superseded: bool = False


def find_facts(turn: int, text: str) -> list[Fact]:
    """The facts of one user turn, in order."""
    return [Fact(turn, sentence, tier) for sentence, tier in read_statement(text).facts]


def supersede(facts: Sequence[Fact]) -> list[Fact]:
    """Marks each fact that a later one repeats, restates with another value, or corrects.

    Restated: both give the same attribute the same kind of value ("my order number is ..."). Corrected: the later one
    says so ("actually", "改成") and shares the attribute or half of the words.

    Args:
        facts: in the order they were said.
    """
    marked: list[Fact] = []
    later: list[_Claim] = []
    for fact in reversed(facts):
        claim = _claim(fact.text)
        marked.append(replace(fact, superseded=any(new.replaces(claim) for new in later)))
        later.append(claim)
    return marked[::-1]


@dataclass(frozen=True, slots=True)
class _Claim:
    text: str
    words: frozenset[str]
    corrects: bool
    attribute: str = ""
    kind: tuple[str, bool] = ("", False)
    """Of the value: the word that leads it in, and whether it has digits."""
    does: str = ""
    """The verb, of which a person's fact has one at a time: where one lives, what one prefers."""

    def replaces(self, old: "_Claim") -> bool:
        if self.text == old.text:
            return True
        if self.attribute and self.attribute == old.attribute:
            return self.corrects or self.kind == old.kind
        if self.corrects and self.does and self.does == old.does:
            return True
        shared = len(self.words & old.words)
        return self.corrects and shared > 1 and shared >= _SAME * min(len(self.words), len(old.words))


def _claim(text: str) -> _Claim:
    lowered = normalise(text)
    words = frozenset(t for t in terms(text) if not any(c.isdigit() for c in t))
    match = (_ATTRIBUTE_ZH if is_cjk(text) else _ATTRIBUTE_EN).search(lowered)
    corrects = _CORRECTS.search(lowered) is not None
    verb = _DOES.search(lowered)
    does = verb[0] if verb else ""
    if not match:
        return _Claim(lowered, words, corrects, does=does)
    attribute = " ".join(_NO_PART_OF_NAME.sub(" ", match["name"]).split())
    has_digits = any(c.isdigit() for c in lowered[match.end() :])
    return _Claim(lowered, words, corrects, attribute, (match["lead"] or "", has_digits), does)

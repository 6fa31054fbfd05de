"""Text as words: a form for comparison, and the terms that lexical ranking counts. English and Chinese alike."""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

CJK_CLASS = (
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Han, kana and Hangul, as the inside of a regular expression's character class: scripts whose words are not set apart
by spaces, or (Hangul) whose words carry endings that bigrams match better."""

_CJK = re.compile(f"[{CJK_CLASS}]")
_CJK_RUN = re.compile(f"([{CJK_CLASS}]+)")
_ZERO_WIDTH = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff]+")
_FOLDED: dict[int, int | str] = {
    **{wide: chr(wide - 0xFEE0) for wide in range(0xFF01, 0xFF5F)},
    **dict.fromkeys(map(ord, "“”„‟«»「」『』〝〞＂"), '"'),
    **dict.fromkeys(map(ord, "‘’‚‛´＇"), "'"),
    **dict.fromkeys(map(ord, "‐‑‒–—―−－"), "-"),
    **dict.fromkeys(map(ord, "。｡．"), "."),
    ord("、"): ",",
}
"""Spellings of one mark. Full-width forms are NFKC's own, done first because most Chinese text then needs no more."""

_WORD = re.compile(r"\d+(?:[.,]\d+)+|\w+")

STOP_WORDS = frozenset(
    """a about above after again all also am an and any are as at be because been before being below between both but by
    can could did do does doing down during each few for from further had has have having he her here hers him his how i
    if in into is it its itself just me more most my no nor not of off on once only or other our out over own s same she
    should so some such t than that the their them then there these they this those through to too under until up very
    was we were what when where which while who whom whose why will with would you your""".split()  # noqa: SIM905
)
"""English words that carry no topic. A question's cue words (who, when) are read from the question itself."""


def is_cjk(text: str) -> bool:
    """Whether any character is Han, kana or Hangul."""
    return not text.isascii() and _CJK.search(text) is not None


def normalise(text: str) -> str:
    """For comparison only: NFKC; case, quotes, dashes, stops folded; zero-width characters out; single spaces."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text.translate(_FOLDED))
        text = _ZERO_WIDTH.sub("", text)
    return " ".join(text.casefold().split())


def terms(text: str) -> list[str]:
    """Terms for lexical matching, in order: stemmed words without stop words, numbers, and CJK characters and bigrams.

    CJK text has no words to go by: bigrams stand for them, and single characters for the words that have only one.
    """
    found: list[str] = []
    for word in _WORD.findall(normalise(text)):
        if word.isascii():
            if word not in STOP_WORDS:
                found.append(stem(word))
        else:
            found.extend(_foreign_terms(word))
    return found


def _foreign_terms(word: str) -> list[str]:
    """Terms of a word that is not plain ASCII: CJK runs in characters and bigrams, the rest as it is."""
    found: list[str] = []
    for run in _CJK_RUN.split(word):
        if not run:
            continue
        if _CJK.match(run):
            found.extend(run)
            found.extend([a + b for a, b in pairwise(run)])
        elif run not in STOP_WORDS:
            found.append(stem(run) if run.isascii() else run)
    return found


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """A light English stem: plural, -ed, -ing and final -e removed where enough of the word remains.

    Numbers lose their thousands separators, so that `1,069` and `1069` are one term.
    """
    if word[0].isdigit():
        return word.replace(",", "")
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        root = word[: -len(ending)]
        if word.endswith(ending) and len(root) > 2 and any(v in root for v in "aeiouy"):
            word = root[:-1] if root[-1] == root[-2] and root[-1] not in "lsz" else root
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word

"""How useful each sentence is for the question: what the trimmer chooses by."""

import math
from collections.abc import Sequence

import numpy as np

from budget.cues import answer_cue
from budget.ports import Embedder
from budget.relevance import LEXICAL, RELATED, SCORE_DIGITS, gather
from budget.sentences import Span
from budget.types import Message

_PASSAGE = 2.0
_CUE = 0.25
_OPENING = 0.1
_LENGTH = 0.15
_TOTAL = LEXICAL + RELATED + _PASSAGE + _CUE + _OPENING + _LENGTH


def sentence_scores(
    query: str,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    *,
    passage_scores: Sequence[float],
    titles: Sequence[str | None] | None = None,
    embedder: Embedder | None = None,
    context: Sequence[Message] = (),
) -> list[list[float]]:
    """Usefulness in 0..1 of each sentence of each passage, comparable across passages.

    Evidence for the sentence and for its passage, whether it holds the kind of thing that the question asks for, if
    it opens the passage, and its length: a longer sentence more often holds an answer; its cost is for the caller to
    weigh. An embedder that fails is left out.

    Args:
        query: the last question.
        texts: passages.
        spans: each passage's sentences.
        passage_scores: `Ranking.scores`.
        titles: of the passages.
        embedder: as for `rank`.
        context: as for `rank`.
    """
    evidence, _ = gather(query, texts, spans, titles=titles, embedder=embedder, context=context)
    related = evidence.related if evidence.related is not None else np.zeros_like(evidence.lexical)
    cue = answer_cue(query)
    found: list[list[float]] = []
    for i, own in enumerate(spans):
        values = []
        for k, span in enumerate(own):
            flat = evidence.starts[i] + k
            sentence = texts[i][span.start : span.end]
            held = _CUE * (0.5 if cue is None else float(cue(sentence)))
            opens = _OPENING if k == 0 else 0.0
            length = _LENGTH * _length_share(sentence)
            weighed = LEXICAL * evidence.lexical[flat] + RELATED * related[flat] + _PASSAGE * passage_scores[i]
            values.append(round(float(weighed + held + opens + length) / _TOTAL, SCORE_DIGITS))
        found.append(values)
    return found


def _length_share(sentence: str) -> float:
    """0 for a dozen letters, 1 from some 300 on, by the logarithm of UTF-8 bytes."""
    size = len(sentence.encode("utf-8", "surrogatepass"))
    return min(max(math.log(max(size, 1) / 30) / 2.5, 0.0), 1.0)

"""How useful each sentence is for the question: what the trimmer chooses by."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from budget.cues import answer_cue
from budget.index import indexed
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
    own = [indexed(*one) for one in zip(texts, titles or [None] * len(texts), spans, strict=True)]
    starts = evidence.starts
    held = [0.5 if cue is None else float(holds) for one in own for holds in (one.cued(cue) if cue else one.sentences)]
    opens = np.zeros_like(evidence.lexical)
    opens[[start for start, end in pairwise(starts) if end > start]] = _OPENING
    lengths = np.array([share for one in own for share in one.length_shares])
    passages = _PASSAGE * np.repeat(np.asarray(passage_scores, dtype=np.float64), np.diff(starts))
    weighed = LEXICAL * evidence.lexical + RELATED * related + passages
    total = (weighed + _CUE * np.array(held) + opens + _LENGTH * lengths) / _TOTAL
    values = [round(value, SCORE_DIGITS) for value in total.tolist()]
    return [values[start:end] for start, end in pairwise(starts)]

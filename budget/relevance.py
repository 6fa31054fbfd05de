"""What speaks for each sentence of each passage: terms, meaning, and the kind of answer that is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from budget.bm25 import bm25, count_terms
from budget.embed import embed_checked, relatedness
from budget.ports import Embedder, ScorerUnavailable
from budget.query import Query, resolve
from budget.sentences import Span
from budget.types import Message

MAX_EMBEDDED_BYTES = 32 * 1024
"""UTF-8 bytes that one request may embed, some four a token: it bounds what a cold request costs. Passages with the
best lexical evidence come first. The bound never depends on what is cached, so that the same request plans the same."""

MAX_PASSAGE_BYTES = 8 * 1024
"""Of one passage, its lexically best sentences."""

SCORE_DIGITS = 4
"""Scores are rounded before they are compared: the last bits of float arithmetic never decide an order."""

LEXICAL = 1.5
"""Weight of a BM25 share against relatedness: such shares are smaller, since no passage repeats a term without end."""

RELATED = 1.0

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All sentences of all passages, flat. Every share is in 0..1.

    Attributes:
        starts: position of each passage's first sentence, and the number of sentences at the end.
        passage_lexical: (passages,) BM25 of the passage, title included.
        lexical: (sentences,) BM25 of the sentence, title included.
        related: (sentences,) relatedness of meaning, 0 where not embedded; None without an embedder.
        vectors: (passages, d) mean of the embedded sentences, unit length or zero; None without an embedder.
    """

    starts: list[int]
    passage_lexical: Array
    lexical: Array
    related: Array | None
    vectors: NDArray[np.float32] | None

    def best(self, values: Array) -> Array:
        """(passages,) the best of each passage's sentences; 0 for one without any."""
        pairs = zip(self.starts, self.starts[1:], strict=False)
        return np.array([values[a:b].max() if b > a else 0.0 for a, b in pairs])


def gather(
    question: str,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    *,
    titles: Sequence[str | None] | None = None,
    embedder: Embedder | None = None,
    context: Sequence[Message] = (),
    lexical_only: bool = False,
) -> tuple[Evidence, str | None]:
    """Weighs every sentence; the second value says why meaning is left out, where it is."""
    query = resolve(question, context)
    titles = titles or [None] * len(texts)
    sentences = [
        [headed(title, text[s.start : s.end]) for s in own]
        for text, title, own in zip(texts, titles, spans, strict=True)
    ]
    starts = [0, *np.cumsum([len(own) for own in sentences]).tolist()]
    passages = [count_terms(headed(title, text)) for text, title in zip(texts, titles, strict=True)]
    lexical = np.array(bm25(query.weights, [count_terms(s) for own in sentences for s in own]))
    evidence = Evidence(starts, np.array(bm25(query.weights, passages)), lexical, None, None)
    if lexical_only or not texts:
        return evidence, None
    if embedder is None:
        return evidence, "no embedder is configured"
    try:
        related, vectors = _meanings(query, evidence, sentences, embedder)
    except ScorerUnavailable as error:
        return evidence, str(error)
    return replace(evidence, related=related, vectors=vectors), None


def headed(title: str | None, text: str) -> str:
    """A sentence under its passage's title, which says what "it" and "she" are."""
    return f"{title}: {text}" if title else text


def _meanings(
    query: Query, evidence: Evidence, sentences: list[list[str]], embedder: Embedder
) -> tuple[Array, NDArray[np.float32]]:
    """Relatedness by sentence and the mean vector by passage, of what may be embedded."""
    wanted = np.mean([embed_checked(embedder, [t])[0] for t in query.embedded], axis=0)
    cosines = np.full(len(evidence.lexical), -1.0, dtype=np.float32)
    vectors = np.zeros((len(sentences), len(wanted)), dtype=np.float32)
    for passage, chosen in _embedded(evidence, sentences):
        own = embed_checked(embedder, [sentences[passage][i] for i in chosen])
        cosines[[evidence.starts[passage] + i for i in chosen]] = own @ wanted
        mean = own.mean(axis=0)
        vectors[passage] = mean / max(float(np.linalg.norm(mean)), 1e-12)
    return np.asarray(relatedness(embedder, cosines), dtype=np.float64), vectors


def _embedded(evidence: Evidence, sentences: list[list[str]]) -> list[tuple[int, list[int]]]:
    """Which sentences of which passages to embed, within the bounds; the first passage always."""
    chosen: list[tuple[int, list[int]]] = []
    left = MAX_EMBEDDED_BYTES
    strength = np.round(evidence.passage_lexical + evidence.best(evidence.lexical), 6)
    for passage in np.argsort(-strength, kind="stable").tolist():
        picked, size = _best_sentences(evidence, sentences[passage], evidence.starts[passage])
        if chosen and size > left:
            continue
        if picked:
            chosen.append((passage, picked))
            left -= size
    return chosen


def _best_sentences(evidence: Evidence, own: list[str], start: int) -> tuple[list[int], int]:
    """Positions within one passage, in text order, and their bytes: all, or the lexically best that fit."""
    sizes = [len(s.encode("utf-8", "surrogatepass")) for s in own]
    total = sum(sizes)
    if total <= MAX_PASSAGE_BYTES:
        return list(range(len(own))), total
    picked: list[int] = []
    total = 0
    for i in sorted(range(len(own)), key=lambda i: (-round(evidence.lexical[start + i], 6), i)):
        if total + sizes[i] <= MAX_PASSAGE_BYTES or not picked:
            picked.append(i)
            total += sizes[i]
    return sorted(picked), total

"""Sentence embedders: lazily loaded, thread-safe, cached by content.

One call is one unit of work. The same texts in the same order give the same bits, whatever was asked before, because a
call is never batched with another; float32 kernels round differently for other batch shapes. Ask for texts that belong
together, such as the sentences of one passage, in one call.
"""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budget.cache import BoundedCache
from budget.ports import Embedder, ScorerUnavailable

Vectors = NDArray[np.float32]

MAX_WINDOWS = 8
"""Of one text. A longer text is embedded by this many windows, evenly spread over it."""

_UNRELATED = (
    "The recipe needs two eggs.",
    "Her train left at noon.",
    "Whales breathe air.",
    "The court adjourned.",
    "Install the driver first.",
    "Copper conducts heat well.",
    "这道菜要先放盐。",
    "昨晚的比赛推迟了。",
    "请先安装驱动程序。",
    "他在银行工作。",
    "鲸鱼是哺乳动物。",
    "明天可能会下雨。",
)


def relatedness(embedder: Embedder, cosines: Vectors) -> Vectors:
    """Cosines as 0..1, where 0 is what this embedder gives texts that have nothing to do with each other.

    Embedders differ in that floor (near 0 for some, 0.7 and more for others), so that bare cosines of two of them
    cannot be compared, nor fused with other scores.
    """
    known = embed_checked(embedder, _UNRELATED)
    floor = float(np.median((known @ known.T)[np.triu_indices(len(known), 1)]))
    return np.asarray(np.clip((cosines - floor) / max(1.0 - floor, 1e-6), 0.0, 1.0), dtype=np.float32)


def embed_checked(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """`embedder.embed(texts)`, with whatever goes wrong in it as ScorerUnavailable."""
    try:
        vectors = np.asarray(embedder.embed(texts), dtype=np.float32)
    except ScorerUnavailable:
        raise
    except Exception as error:  # a plug-in's own failure must not fail the request
        raise ScorerUnavailable(f"{embedder.name}: {type(error).__name__}: {error}") from error
    if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise ScorerUnavailable(
            f"{embedder.name}: vectors of shape {vectors.shape} for {len(texts)} texts, or not finite"
        )
    return vectors


class CachedEmbedder(ABC):
    """Embeds through a model that is loaded at first use, and keeps what it embedded.

    Args:
        name: for reports.
        max_bytes: bound of the cache.
    """

    def __init__(self, name: str, max_bytes: int = 64 * 1024 * 1024) -> None:
        self.name = name
        self._cache: BoundedCache[Vectors] = BoundedCache(max_bytes)
        self._lock = threading.Lock()
        self._model: Any = None
        self._failure: str | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """(len(texts), d), rows of unit length, read-only.

        Raises:
            ScorerUnavailable: the model cannot be loaded; the message says how to get it.
        """
        key = _digest(texts)
        vectors = self._cache.get(key)
        if vectors is None:
            with self._lock:
                self._ensure_loaded()
                vectors = self._embed([t.encode("utf-8", "replace").decode() for t in texts])
            vectors.setflags(write=False)
            self._cache.put(key, vectors, vectors.nbytes + 200)
        return vectors

    def _ensure_loaded(self) -> None:
        """Loads the model once. A failure is remembered: trying again would cost every request the wait."""
        if self._failure is None and self._model is None:
            try:
                self._model = self._load()
            except Exception as error:  # whatever stops a model from loading, the planner goes on without it
                self._failure = f"{self.name}: {error}"
        if self._failure is not None:
            raise ScorerUnavailable(self._failure)

    def _embed(self, texts: Sequence[str]) -> Vectors:
        """Each text as the mean of its windows' vectors."""
        if not texts:
            return np.zeros((0, 1), np.float32)
        windows = [_spread(self._windows(t)) for t in texts]
        flat = self._encode([w for own in windows for w in own])
        starts = np.cumsum([0, *map(len, windows[:-1])])
        total = np.add.reduceat(flat, starts, axis=0)
        norms = np.linalg.norm(total, axis=1, keepdims=True)
        return np.asarray(total / np.maximum(norms, 1e-12), dtype=np.float32)

    @abstractmethod
    def _load(self) -> Any:
        """The model, ready to encode."""

    @abstractmethod
    def _windows(self, text: str) -> list[str]:
        """The text in pieces that the model reads whole; at least one."""

    @abstractmethod
    def _encode(self, windows: Sequence[str]) -> Vectors:
        """(len(windows), d), one row a window."""


def _spread(windows: list[str]) -> list[str]:
    """At most MAX_WINDOWS of them, evenly spread."""
    if len(windows) <= MAX_WINDOWS:
        return windows
    return [windows[i * len(windows) // MAX_WINDOWS] for i in range(MAX_WINDOWS)]


def _digest(texts: Sequence[str]) -> bytes:
    """A key for these texts in this order; lengths keep them apart."""
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = ",".join(str(len(d)) for d in data).encode()
    return hashlib.blake2b(lengths + b":" + b"".join(data), digest_size=16).digest()

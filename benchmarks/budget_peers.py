"""LangChain's compressor pipeline and LlamaIndex's sentence optimizer, in an interpreter of their own.

    python3 -m venv PEERS && PEERS/bin/pip install torch langchain-classic langchain-community llama-index-core \
        sentence-transformers

JSON on standard input: `{"minilm": folder, "ratios": [..], "records": [{"question", "texts": [..]}]}`; on standard
output `{"versions", "texts": {method: [[texts by rank, for each ratio], for each record]}}`. Both embed with
all-MiniLM-L6-v2.
"""

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline, EmbeddingsFilter
from langchain_community.document_transformers import EmbeddingsRedundantFilter
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_text_splitters import RecursiveCharacterTextSplitter
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.postprocessor import SentenceEmbeddingOptimizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.utils import globals_helper
from sentence_transformers import SentenceTransformer

PACKAGES = ("langchain-classic", "langchain-community", "langchain-text-splitters", "llama-index-core")
SEPARATORS = ["\n\n", "\n", "。", "！", "？", ". ", "! ", "? ", "；", "，", " ", ""]
PIECE_CHARS = 300
BATCH = 10
_CJK = re.compile("[\u3400-\u9fff]")
_CJK_SENTENCE = re.compile("[^。！？；!?]+[。！？；!?]*[」』”’）]*")


class MiniLM(Embeddings):
    """LangChain's interface over sentence-transformers, each text embedded once."""

    def __init__(self, folder: str) -> None:
        self._model = SentenceTransformer(folder, device="cpu")
        self._known: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of unit length, in order."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            vectors = self._model.encode(new, normalize_embeddings=True, show_progress_bar=False)
            self._known.update(zip(new, vectors.tolist(), strict=True))
        return [self._known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """A question's vector."""
        return self.embed_documents([text])[0]


class LlamaMiniLM(BaseEmbedding):
    """LlamaIndex's interface over the same."""

    inner: Any

    def _get_query_embedding(self, query: str) -> list[float]:
        return self.inner.embed_query(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self.inner.embed_query(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self.inner.embed_query(text)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self.inner.embed_documents(texts)


def main() -> None:
    job = json.load(sys.stdin)
    minilm = MiniLM(job["minilm"])
    llama = LlamaMiniLM(inner=minilm)
    found: dict[str, list[list[list[str]]]] = {}
    for number, record in enumerate(job["records"]):
        if number % BATCH == 0:
            minilm.embed_documents(list(everything(job["records"][number : number + BATCH])))
        question, texts = record["question"], record["texts"]
        by_rank = ranked(minilm, question, texts)
        for name, answer in (
            ("LangChain compressor", [compressed(minilm, question, texts)] * len(job["ratios"])),
            ("LangChain compressor, split", [compressed(minilm, question, texts, split=True)] * len(job["ratios"])),
            ("LlamaIndex optimizer", [optimized(llama, question, by_rank, ratio) for ratio in job["ratios"]]),
            ("LlamaIndex optimizer, joined", [joined(llama, question, by_rank, ratio) for ratio in job["ratios"]]),
        ):
            found.setdefault(name, []).append(answer)
        if number % BATCH == BATCH - 1:
            print(f"      peers: {number + 1} of {len(job['records'])} records", file=sys.stderr, flush=True)
    json.dump({"versions": {name: version(name) for name in PACKAGES}, "texts": found}, sys.stdout)


def everything(records: list[dict[str, Any]]) -> Iterator[str]:
    """All that will be embedded of some records: together it takes much less time."""
    for record in records:
        yield from (record["question"], *record["texts"])
        for text in record["texts"]:
            yield from cut(text)
            yield from splitter().split_text(text)


def ranked(minilm: MiniLM, question: str, texts: list[str]) -> list[str]:
    """Texts by similarity to the question, as a vector store would hand them over."""
    scores = np.array(minilm.embed_documents(texts)) @ np.array(minilm.embed_query(question))
    return [texts[i] for i in np.argsort(-scores, kind="stable")]


def compressed(minilm: MiniLM, question: str, texts: list[str], *, split: bool = False) -> list[str]:
    """Redundant texts out, the rest (or pieces of it) by similarity; the budget is the caller's to fill."""
    steps = [EmbeddingsRedundantFilter(embeddings=minilm), EmbeddingsFilter(embeddings=minilm, k=10**6)]
    pipeline = DocumentCompressorPipeline(transformers=[splitter(), *steps] if split else steps)
    documents = [Document(page_content=text) for text in texts]
    return [one.page_content for one in pipeline.compress_documents(documents, question)]


def optimized(llama: LlamaMiniLM, question: str, texts: list[str], ratio: float) -> list[str]:
    """Each passage cut to its best sentences, the ratio of them; passages too short for that stay whole."""
    optimizer = SentenceEmbeddingOptimizer(
        embed_model=llama, percentile_cutoff=ratio, tokenizer_fn=cut, context_before=0, context_after=0
    )
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts if cut(text)]
    return [one.node.get_content() for one in optimizer.postprocess_nodes(nodes, QueryBundle(question))]


def joined(llama: LlamaMiniLM, question: str, texts: list[str], ratio: float) -> list[str]:
    """The best sentences of all passages as one text, the ratio of them, by similarity."""
    return optimized(llama, question, ["\n\n".join(texts)], ratio)


def splitter() -> RecursiveCharacterTextSplitter:
    """LangChain's usual splitter, with Chinese stops too."""
    return RecursiveCharacterTextSplitter(
        chunk_size=PIECE_CHARS, chunk_overlap=0, separators=SEPARATORS, keep_separator="end"
    )


@cache
def cut(text: str) -> list[str]:
    """Sentences: LlamaIndex's own tokenizer, which knows no Chinese, and the Chinese stops."""
    pieces = _CJK_SENTENCE.findall(text) if _CJK.search(text) else globals_helper.punkt_tokenizer.tokenize(text)
    return [piece for piece in pieces if piece.strip()]


if __name__ == "__main__":
    main()

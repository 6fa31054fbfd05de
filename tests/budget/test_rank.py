import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budget.bm25 import bm25, count_terms, idf
from budget.cues import answer_cue
from budget.diversity import diversified
from budget.ports import ScorerUnavailable
from budget.query import resolve
from budget.rank import Ranking, rank
from budget.sentence_rank import sentence_scores
from budget.sentences import sentences
from budget.types import Message
from policies.schema import Rank

LEXICAL = Rank(method="bm25", diversity=0.0)
TEXTS = [
    "Our stores are open daily from nine to six.",
    "Returns are accepted within 30 days. Keep the receipt.",
    "The loading bay is behind the building.",
]


class Letters:
    """A real if crude embedder: counts of letters, so that texts with the same letters are close."""

    name = "letters"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def embed(self, texts):
        self.calls.append(list(texts))
        rows = np.zeros((len(texts), 64), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            np.add.at(row, [ord(c) % 64 for c in text], 1)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


class Returns:
    """A scorer and embedder that gives what it is told, or raises it."""

    name = "told"

    def __init__(self, value) -> None:
        self.value = value

    def embed(self, texts):
        return self._give(texts)

    def score(self, query, passages):
        return self._give(passages)

    def _give(self, texts):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value(texts) if callable(self.value) else self.value


def ask(query: str, texts=TEXTS, policy: Rank = LEXICAL, **given) -> Ranking:
    """Ranks texts, by terms alone unless another policy is given."""
    return rank(query, texts, policy=policy, **given)


def test_idf_and_bm25_by_hand() -> None:
    """One matching term of two documents of equal length, against the formula written out."""
    assert idf(2, 1) == pytest.approx(math.log(2.0))
    documents = [count_terms("fox fox"), count_terms("hen hen")]
    assert bm25({"fox": 1.0}, documents) == pytest.approx([2 * 2.2 / (2 + 1.2) / 2.2, 0.0])
    assert bm25({"fox": 1.0, "hen": 0.0}, documents)[0] == pytest.approx(2 / 3.2)
    assert bm25({}, documents) == [0.0, 0.0]
    assert bm25({"fox": 1.0}, []) == []


def test_the_right_passage_first(case) -> None:
    """The passage that speaks of the question comes first, in English and in Chinese."""
    given = case(25)
    assert ask(given["question"], [p["text"] for p in given["passages"]][:2]).order[0] == 0
    zh = ["本店每天九点到十八点营业。", "商品签收后七天内可以无理由退货。", "停车场在楼后。"]
    assert ask("退货期限是几天？", zh).order[0] == 1


def test_ties_in_input_order(case) -> None:
    """Passages that nothing tells apart keep their order, every time."""
    given = case(31)
    texts = [p["text"] for p in given["passages"]]
    rankings = [ask(given["question"], texts, Rank(), caller_scores=[0.5] * 12, embedder=Letters()) for _ in range(5)]
    assert all(r == rankings[0] for r in rankings)
    assert ask(given["question"], texts, caller_scores=[0.5] * 12).order == list(range(12))


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (ScorerUnavailable("model not there; pip install x"), "pip install x"),
        (RuntimeError("out of memory"), "RuntimeError: out of memory"),
        ([], "for 12 texts"),
        (lambda texts: np.full((len(texts), 4), np.nan), "not finite"),
        (lambda texts: np.ones((len(texts) + 1, 4)), "not finite"),
    ],
)
def test_embedder_that_fails(broken, said: str) -> None:
    """Without vectors the ranking is lexical and says why; it is not the order of input."""
    found = ask("How many days for returns?", policy=Rank(), embedder=Returns(broken))
    assert (found.order[0], found.method) == (1, "bm25")
    assert "told" in found.fallback or "pip" in found.fallback
    if said != "for 12 texts":
        assert said in found.fallback


def test_no_embedder_is_said() -> None:
    """A policy that wants one and has none gets lexical ranking and is told so; `bm25` wants none."""
    assert ask("returns", policy=Rank()).fallback == "no embedder is configured"
    assert ask("returns").fallback is None
    assert ask("returns", policy=Rank(), embedder=Letters()).method == "hybrid"
    assert ask("returns", policy=Rank(method="embedding"), embedder=Letters()).method == "embedding"


@pytest.mark.parametrize("broken", [[], [1.0], [float("nan")] * 3, ScorerUnavailable("off"), RuntimeError("boom")])
def test_cross_encoder_that_fails(broken) -> None:
    """A cross-encoder that gives no score a passage leaves the ranking as it was, with the reason."""
    policy = Rank(method="bm25", cross_encoder="ms-marco", diversity=0.0)
    found = ask("returns", policy=policy, cross_encoder=Returns(broken))
    assert found.fallback
    assert (found.order, found.method) == (ask("returns").order, "bm25")


def test_cross_encoder_reorders() -> None:
    """Its scores count most, on whatever scale."""
    policy = Rank(method="bm25", cross_encoder="ms-marco", diversity=0.0)
    liking = Returns(lambda texts: [-900.0 + 100 * ("bay" in t) for t in texts])
    found = ask("returns and bay", policy=policy, cross_encoder=liking)
    assert (found.order[0], found.method, found.fallback) == (2, "bm25+cross_encoder", None)


def test_caller_scores() -> None:
    """Blended, alone, or ignored; on any scale; without any, the fallback is said."""
    told = [900.0, -5.0, None]
    assert ask("bay", caller_scores=told).order[0] == 2
    assert ask("nothing known", caller_scores=[1.0, 3.0, 2.0], policy=LEXICAL).order == [0, 1, 2]
    only = Rank(use_caller_scores="only")
    assert ask("bay", caller_scores=told, policy=only) == Ranking([1.0, 0.0, 0.5], [0, 2, 1], "caller")
    none = ask("bay", caller_scores=[None] * 3, policy=Rank(method="caller"), embedder=Letters())
    assert (none.method, none.fallback, none.order[0]) == ("hybrid", "the caller gave no scores", 2)
    ignored = Rank(method="bm25", use_caller_scores="ignore", diversity=0.0)
    assert ask("bay", caller_scores=told, policy=ignored) == ask("bay")
    assert ask("bay", caller_scores=[float("nan"), float("inf"), 1.0]).order[0] == 2


def test_follow_up_keeps_its_subject() -> None:
    """A question of a few words ranks by the turns that it leans on; the newest weigh most."""
    texts = [
        "In 2019 revenue of Globex fell.",
        "In 2019 revenue of Acme grew to 5 million.",
        "Acme was founded in 1950.",
    ]
    turns = [
        Message("user", "Tell me of Globex."),
        Message("assistant", "Globex makes pipes."),
        Message("user", "What was the revenue of Acme in 2018?"),
        Message("assistant", "It was 4 million."),
    ]
    assert ask("and in 2019?", texts, context=turns).order[0] == 1
    assert ask("when was Acme founded?", texts, context=turns).order[0] == 2
    zh = ["2019年华星公司收入下降。", "2019年天河公司收入增长。"]
    asked = [Message("user", "天河公司2018年的收入是多少？"), Message("assistant", "四百万。")]
    assert ask("那2019年呢？", zh, context=asked).order[0] == 1


def test_resolve_weighs_turns() -> None:
    """Terms of the question count whole, those of earlier turns less the older they are, tool output not at all."""
    turns = [Message("user", "alpha"), Message("user", "beta"), Message("tool", "gamma"), Message("assistant", "delta")]
    query = resolve("epsilon beta", turns)
    assert query.weights == {"epsilon": 1.0, "beta": 1.0, "alpha": 0.25, "delta": 0.2}
    assert query.embedded == ("epsilon beta", "beta\nepsilon beta")
    assert resolve("x", ()).embedded == ("x",)


def test_title_tells_whom_it_is_about() -> None:
    """A sentence that only says "he" is found through its passage's title."""
    texts = ["He was born in 1950 in Bern.", "He was born in 1960 in Oslo."]
    titles = ["John Smith", "Erik Hansen"]
    assert ask("When was Erik Hansen born?", texts, titles=titles).order[0] == 1
    assert ask("When was Erik Hansen born?", texts, Rank(), titles=titles, embedder=Letters()).order[0] == 1


def test_long_passage_by_its_best_part() -> None:
    """What answers the question at the end of a very long passage counts as much as at its start."""
    filler = "The committee met again and adopted the minutes of its last meeting. " * 300
    texts = ["The weather was mild in spring.", filler + "The refund period is 30 days."]
    found = ask("refund period?", texts, Rank(diversity=0.0), embedder=Letters())
    assert found.order[0] == 1
    embedder = Letters()
    ask("refund period?", [filler * 40 + "The refund period is 30 days."], Rank(), embedder=embedder)
    assert sum(len(t) for call in embedder.calls for t in call) < 20_000
    assert any("refund period is" in t for call in embedder.calls for t in call)


def test_diversity_steps_back_from_repeats() -> None:
    """With diversity, another subject comes before a second passage on the first; without it, not."""
    vectors = np.eye(3, dtype=np.float32)[[0, 0, 1, 2]]
    scores = [0.9, 0.8, 0.6, 0.0]
    order = [0, 1, 2, 3]
    assert diversified(order, scores, vectors, 0.2) == [0, 1, 2, 3]
    assert diversified(order, scores, vectors, 0.3) == [0, 2, 1, 3]
    assert diversified(order, scores, vectors, 1.0) == [0, 2, 1, 3]
    assert diversified([1, 0], [0.5, 0.5], vectors[:2], 0.5) == [1, 0]


def test_nothing_to_rank() -> None:
    """No passages give no scores, and no model is asked."""
    embedder = Letters()
    assert ask("q", [], Rank(), embedder=embedder) == Ranking([], [], "hybrid")
    assert embedder.calls == []


@pytest.mark.parametrize(
    ("question", "holds", "lacks"),
    [
        ("When was it built?", "It was built in 1889.", "It is tall."),
        ("How many people live there?", "Some 400 people do.", "People live there."),
        ("Who wrote it?", "It was written by Jane Austen.", "it was written long ago."),
        ("Where is it?", "It lies in Bern.", "It is old."),
        ("何时建成？", "建成于1889年。", "它很高。"),
        ("有多少人？", "共有四百人。", "人们住在那里。"),
        ("在哪里？", "位于北京。", "很老。"),
    ],
)
def test_answer_cues(question: str, holds: str, lacks: str) -> None:
    """Dates, numbers, names and places are told from sentences without, in both languages."""
    cue = answer_cue(question)
    assert cue is not None
    assert cue(holds)
    assert not cue(lacks)


def test_no_cue_where_none_is_asked() -> None:
    """A question of another kind has no cue."""
    assert answer_cue("Explain the process.") is None
    assert answer_cue("为什么天是蓝的？") is None


def test_sentence_that_answers_is_worth_most() -> None:
    """The sentence with the terms and the kind of answer leads, and a better passage lifts its sentences."""
    text = "Acme was founded by friends. Acme was founded in 1950 in Bern. It sells pipes."
    spans = [sentences(text), sentences("Pipes are long.")]
    scores = sentence_scores(
        "When was Acme founded?", [text, "Pipes are long."], spans, passage_scores=[0.5, 0.1], embedder=Letters()
    )
    assert scores[0].index(max(scores[0])) == 1
    assert [len(s) for s in scores] == [3, 1]
    lifted = sentence_scores("When was Acme founded?", [text, "Pipes are long."], spans, passage_scores=[0.5, 0.9])
    assert lifted[1][0] > scores[1][0]


@settings(max_examples=60, deadline=None)
@given(
    st.text(max_size=30), st.lists(st.text(max_size=60), max_size=6), st.sampled_from(["hybrid", "bm25", "embedding"])
)
def test_scores_are_shares(query: str, texts: list[str], method) -> None:
    """Whatever the texts, scores are in 0..1 and order them, ties in input order, and the same again gives the same."""
    policy = Rank(method=method, diversity=0.0)
    found = ask(query, texts, policy, embedder=Letters())
    assert all(0.0 <= s <= 1.0 for s in found.scores)
    assert found.order == sorted(range(len(texts)), key=lambda i: (-found.scores[i], i))
    assert ask(query, texts, policy, embedder=Letters()) == found
    spans = [sentences(t) for t in texts]
    own = sentence_scores(query, texts, spans, passage_scores=found.scores, embedder=Letters())
    assert [len(s) for s in own] == [len(s) for s in spans]
    assert all(0.0 <= v <= 1.0 for s in own for v in s)


@pytest.mark.parametrize(("name", "least"), [("rag_en", 0.75), ("rag_zh", 0.55)])
def test_gold_passage_first_on_real_questions(records, name: str, least: float) -> None:
    """Terms alone put a gold passage first in most real questions."""
    hits = []
    for record in records(name, 60):
        passages = record["passages"]
        found = ask(record["question"], [p["text"] for p in passages], titles=[p["title"] for p in passages])
        hits.append(passages[found.order[0]]["gold"])
    assert np.mean(hits) >= least


@pytest.mark.parametrize("name", ["multiturn_en", "multiturn_zh_composed"])
def test_history_helps_on_real_dialogues(records, name: str) -> None:
    """With the turns before it, the last question ranks gold passages no worse, and more of them first."""

    def hits(with_history: bool) -> int:
        total = 0
        for record in records(name, 50):
            passages = record["passages"]
            turns = [Message(t["role"], t["content"]) for t in record["history"]] if with_history else []
            texts, titles = [p["text"] for p in passages], [p.get("title") for p in passages]
            total += passages[ask(record["question"], texts, titles=titles, context=turns).order[0]]["gold"]
        return total

    assert hits(True) >= hits(False) + 1

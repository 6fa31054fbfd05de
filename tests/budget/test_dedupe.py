import re
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from budget.dedupe import Deduped, dedupe
from budget.ports import ScorerUnavailable
from budget.sentences import sentences
from budget.text import normalise
from budget.types import Document
from policies.schema import Dedupe

EN = (
    "The Oklahoma Sooners represent the University of Oklahoma. They play in the Big 12 Conference since 1996. "
    "Their home is the Lloyd Noble Center in Norman. The team won the title in 1939 under Bruce Drake."
)
ZH = (
    "哥连臣角火葬场是香港一个火葬场，位于大潭峡，于1962年启用，邻近柴湾区内多个坟场。由食物环境卫生署管理。"
    "署方分两阶段重建火葬场，在原址重建10个新火化炉，预计2014年12月完成。新火化炉将采用煤气作为燃料。"
)
BOTH = pytest.mark.parametrize("text", [EN, ZH], ids=["en", "zh"])


def run(*texts: str | Document, policy: Dedupe = Dedupe(), **given) -> Deduped:  # noqa: B008
    """Dedupes texts, or documents, given in order."""
    documents = [t if isinstance(t, Document) else Document(i, t) for i, t in enumerate(texts)]
    return dedupe(documents, policy, **given)


def fates(found: Deduped) -> dict[int, tuple[str, int | None]]:
    """Reason and original by dropped index."""
    return dict(found.dropped)


@BOTH
def test_same_text_once(text: str) -> None:
    """White space, width, case of quotes, zero-width characters and Unicode form do not make a text another one."""
    wide = text.translate({c: c + 0xFEE0 for c in range(0x30, 0x3A)})
    spaced = text.replace("，", "，\u3000").replace(". ", ".\n ")
    found = run(text, wide, spaced, text + "\u200b", text)
    assert [c.index for c in found.candidates] == [0]
    assert fates(found) == dict.fromkeys((1, 2, 3, 4), ("exact_duplicate", 0))


@BOTH
def test_plain_spelling_survives(text: str) -> None:
    """Of two spellings the one without superfluous space and odd widths is kept, wherever it stands."""
    odd = text.translate({c: c + 0xFEE0 for c in range(0x30, 0x3A)}) + "\n\n\n"
    assert run(odd, text).candidates[0].text == text


@BOTH
@pytest.mark.parametrize("mark", ["", "...", "…", "……", " […]"])
@pytest.mark.parametrize("share", [0.45, 0.6, 0.85])
def test_truncated_copy_goes(text: str, mark: str, share: float) -> None:
    """A beginning of a passage is dropped for the whole, even inside a word and with a cut mark, in either order."""
    short = text[: int(len(text) * share)] + mark
    assert fates(run(short, text)) == {0: ("near_duplicate", 1)}
    assert fates(run(text, short)) == {1: ("near_duplicate", 0)}


@BOTH
def test_page_around_a_copy(text: str) -> None:
    """A copy with a page's lines around goes, the clean text stays; so does a truncated one with a page around."""
    wrapped = f"Home > Docs > Page\n{text}\n© All rights reserved. Privacy"
    other = f"更新时间：3月12日\n\n{text}\n\n分享到：微信 · 邮件"
    cut = f"首页 > 正文\n\n{text[:90]}...\n\nWe use cookies. Accept"
    found = run(wrapped, other, cut, text)
    assert [c.index for c in found.candidates] == [3]
    assert set(fates(found).values()) == {("near_duplicate", 3)}
    assert len(run(wrapped, other).candidates) == 1


@BOTH
def test_passage_with_more_to_say_survives(text: str) -> None:
    """What contains another and adds a sentence of its own is the one kept."""
    more = text + (" He died in 1990 in Paris." if text is EN else "他于1990年在巴黎逝世。")
    assert fates(run(text, more)) == {0: ("near_duplicate", 1)}


@BOTH
def test_missing_sentence_inside(text: str) -> None:
    """A copy that lacks whole sentences in the middle is a copy."""
    spans = sentences(text)
    short = text[: spans[1].start] + text[spans[2].start :]
    assert fates(run(text, short)) == {1: ("near_duplicate", 0)}


CHANGES = [
    (EN, "1939", "1938"),
    (EN, "Big 12", "Big 8"),
    (EN, "1996", "96"),
    (EN, "Norman", "Tulsa"),
    (EN, "Bruce Drake", "Bruce Drakes"),
    (EN, "Oklahoma Sooners", "Kansas Jayhawks"),
    (EN, "The team won", "The team never won"),
    (EN, "represent", "do not represent"),
    (EN, "in 1939", "in May 1939"),
    (EN, "title", "cup"),
    (ZH, "1962", "1965"),
    (ZH, "10个", "100个"),
    (ZH, "12月", "11月"),
    (ZH, "大潭峡", "大浪湾"),
    (ZH, "香港", "澳门"),
    (ZH, "将采用", "将不采用"),
    (ZH, "煤气", "柴油"),
    (ZH, "两阶段", "三阶段"),
]


@pytest.mark.parametrize(("text", "old", "new"), CHANGES, ids=range(len(CHANGES)))
def test_look_alike_stays(text: str, old: str, new: str) -> None:
    """A text with another number, date, name or negation is kept, also when it is cut or has a page around it."""
    other = text.replace(old, new, 1)
    assert other != text
    assert not run(text, other).dropped
    assert not run(f"Home > Page\n{other}\n© All rights reserved", text).dropped
    cut = other[: other.index(new) + len(new) + 12]
    if len(cut) < len(text):
        assert not run(text, cut).dropped


@pytest.mark.parametrize(
    ("text", "new"), [(EN, "zebra"), (EN, "7"), (EN, "Zoe"), (ZH, "鼠"), (ZH, "七"), (ZH, "不")], ids=range(6)
)
def test_no_word_can_be_changed(text: str, new: str) -> None:
    """Whichever word or character of a passage another one replaces, the two are no copies."""
    pieces = re.findall(r"[\u4e00-\u9fff]|\w+", text)
    places = list(re.finditer(r"[\u4e00-\u9fff]|\w+", text))
    for piece, place in zip(pieces, places, strict=True):
        if piece.lower() not in {"the", "了", "的", new}:
            assert not run(text, text[: place.start()] + new + text[place.end() :]).dropped, place


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Max load of the steel platform is 5", "Max load of the steel platform is 50 kg."),
        ("The upper price limit is 3", "The upper price limit is 3.50 euros a month."),
        ("适用于所有在校学生和教师的优惠政策", "不适用于所有在校学生和教师的优惠政策。"),
        ("eligible for the full refund of all fees", "not eligible for the full refund of all fees"),
        ("Max load is 5 kg.", "Max speed is 3 m/s."),
    ],
)
def test_short_statement_is_not_a_cut(a: str, b: str) -> None:
    """A short text that stops in the longer one's number, or begins behind its negation, says something else."""
    assert not run(a, b).dropped
    assert not run(b, a).dropped


def test_ids_and_titles(case) -> None:
    """A repeated id makes no copy of another text; equal texts under two titles are about two things."""
    passages = case(27)["passages"]
    found = run(*[Document(i, p["text"], p["id"]) for i, p in enumerate(passages)])
    assert len(found.candidates) == len(passages)
    price = "The price is 5 euros a month, and the contract runs for one year."
    assert not run(Document(0, price, title="Plan A"), Document(1, price, title="Plan B")).dropped
    assert run(Document(0, price, title="Plan A"), Document(1, price, title="Plan A | Shop")).dropped
    assert run(Document(0, price, title="Plan A"), Document(1, price)).dropped


def test_copies_never_add_up(case) -> None:
    """Five copies leave one candidate, with the best of their scores and no more."""
    passages = case(25)["passages"]
    found = run(*[Document(i, p["text"], p["id"], score=p["score"]) for i, p in enumerate(passages)])
    assert [(c.index, c.score) for c in found.candidates] == [(0, 0.8), (1, 0.5)]
    best = run(Document(0, EN, score=0.1), Document(1, EN[:120], score=0.7)).candidates
    assert [(c.index, c.score) for c in best] == [(0, 0.7)]


def test_blank_passages(case) -> None:
    """What holds no ink is dropped as empty."""
    texts = [p["text"] for p in case(29)["passages"]]
    assert fates(run(*texts, "\u200b\u3000\n")) == dict.fromkeys((0, 1, 3), ("empty", None))


@BOTH
def test_windows_are_joined(text: str) -> None:
    """Three overlapping windows, in any order, become the text they were cut from, under the best scored of them."""
    n = len(text)
    cuts = [text[: n // 2], text[n // 4 : 3 * n // 4], text[n // 2 - n // 8 :]]
    for order in permutations(range(3)):
        windows = [Document(i, cuts[at], score=0.9 if at == 1 else 0.5) for i, at in enumerate(order)]
        found = dedupe(windows, Dedupe())
        assert [c.text for c in found.candidates] == [text]
        middle = order.index(1)
        assert fates(found) == {i: ("overlap_merged", middle) for i in range(3) if i != middle}


def test_windows_keep_the_later_text_and_its_offsets() -> None:
    """A cut mark at the seam is left out; every piece of the joined text is at its offsets in its own passage."""
    first, second = EN[:130] + "...", "..." + EN[70:]
    candidate = run(first, second).candidates[0]
    assert candidate.text == EN
    assert "".join([first, second][p.document][p.start : p.end] for p in candidate.pieces) == EN
    spans = candidate.spans([(100, 150)])
    assert "".join([first, second][d][a:b] for d, own in spans.items() for a, b in own) == EN[100:150]


def test_windows_of_different_spelling() -> None:
    """Windows whose shared part is spaced or spelled differently are joined without loss."""
    first, second = ZH[:60], ZH[30:].replace("，", "， ").replace("1", "１")
    joined = run(first, second).candidates
    assert len(joined) == 1
    assert normalise(joined[0].text).replace(" ", "") == normalise(ZH).replace(" ", "")


def test_windows_with_a_changed_number_are_not_joined() -> None:
    """Where the shared part differs in one number the windows stay apart."""
    assert not run(EN[:130], EN[70:].replace("12", "10")).dropped


def test_history_is_not_repeated() -> None:
    """A passage that a kept turn already holds is dropped; one that says more, or is pinned, is not."""
    shown = f"You asked for the rules. {EN} Anything else?"
    assert fates(run(EN, ZH, history=[shown])) == {0: ("already_in_history", None)}
    assert fates(run(EN[:150], EN, history=[EN[:120]])) == {0: ("near_duplicate", 1)}
    assert not run(EN, history=[EN[:120]]).dropped
    assert not run(Document(0, EN, pinned=True), history=[shown]).dropped
    assert not run(EN.replace("1939", "1940"), history=[shown]).dropped


def test_pinned_copies() -> None:
    """A pinned passage is never dropped for one that is not, and never merged; of equals the pinned one stays."""
    assert fates(run(Document(0, EN), Document(1, EN, pinned=True))) == {0: ("exact_duplicate", 1)}
    assert not run(Document(0, EN), Document(1, EN[:100], pinned=True)).dropped
    assert not run(Document(0, EN[:130]), Document(1, EN[70:], pinned=True)).dropped


def test_tiers_can_be_off() -> None:
    """Each tier only works where the policy has it."""
    texts = (EN, EN, EN[:120], ZH[:60], ZH[30:])
    off = Dedupe(exact=False, near=None, semantic=None, merge_overlaps=False)
    assert not run(*texts, policy=off).dropped
    only_exact = Dedupe(near=None, semantic=None, merge_overlaps=False)
    assert fates(run(*texts, policy=only_exact)) == {1: ("exact_duplicate", 0)}
    only_merge = Dedupe(exact=False, near=None, semantic=None)
    assert fates(run(*texts, policy=only_merge)) == {4: ("overlap_merged", 3)}


class Alike:
    """An embedder for which texts with the same first letter mean the same."""

    name = "alike"

    def embed(self, texts):
        return np.eye(256, dtype=np.float32)[[ord(t[0].lower()) % 256 for t in texts]]


class Broken:
    name = "broken"

    def embed(self, texts):
        raise ScorerUnavailable("gone")


def test_paraphrases() -> None:
    """The same in other words is dropped; other numbers, names or negations, and look-alikes of one word, are kept."""
    said = "Refunds take about one month after purchase."
    assert fates(run(said, "Receive your money back within weeks.", embedder=Alike())) == {1: ("semantic_duplicate", 0)}
    for other in (
        "Receive your money back within 3 weeks.",
        "Receive your money back from Paris within weeks.",
        "Receive no money back within weeks.",
        "Refunds take about one month after delivery.",
    ):
        assert not run(said, other, embedder=Alike()).dropped
    longer = run("Receive your money back. Cats sleep.", said, "Zebras run.", embedder=Alike())
    assert fates(longer) == {1: ("semantic_duplicate", 0)}
    assert not run(said, "Receive your money back within weeks.", embedder=Broken()).dropped
    assert not run("dogs chase cats", "doors cats chase dogs", embedder=Alike()).dropped


TEXTS = st.sampled_from([*(EN[s.start : s.end] for s in sentences(EN)), *(ZH[s.start : s.end] for s in sentences(ZH))])
PASSAGE = st.one_of(
    st.lists(TEXTS, min_size=1, max_size=4).map(" ".join),
    st.tuples(st.sampled_from([EN, ZH]), st.integers(0, 80), st.integers(60, 220)).map(
        lambda t: t[0][t[1] : t[1] + t[2]]
    ),
    st.text(max_size=40),
)


def documents(texts: list[str]) -> list[Document]:
    """Texts as documents without scores."""
    return [Document(i, t) for i, t in enumerate(texts)]


@settings(max_examples=150, deadline=None)
@given(st.lists(PASSAGE, max_size=8))
def test_each_passage_once(texts: list[str]) -> None:
    """Every passage is a candidate or dropped for one; pieces are slices of it; the same again gives the same."""
    found = dedupe(documents(texts), Dedupe())
    kept = [c.index for c in found.candidates]
    assert sorted([*kept, *found.dropped]) == list(range(len(texts)))
    assert kept == sorted(kept)
    assert all(of in kept for reason, of in found.dropped.values() if reason != "empty")
    for c in found.candidates:
        assert c.text == "".join(texts[p.document][p.start : p.end] for p in c.pieces)
    assert dedupe(documents(texts), Dedupe()) == found


@settings(max_examples=150, deadline=None)
@given(st.lists(PASSAGE, max_size=8))
def test_no_sentence_is_lost(texts: list[str]) -> None:
    """All that a passage says is in some candidate."""
    found = dedupe(documents(texts), Dedupe())
    left = [normalise(c.text).replace(" ", "") for c in found.candidates]
    for text in texts:
        for span in sentences(text):
            said = normalise(text[span.start : span.end]).replace(" ", "").strip(".…[]")
            assert any(said in one for one in left)


@settings(max_examples=150, deadline=None)
@given(st.lists(PASSAGE, max_size=8))
def test_idempotent(texts: list[str]) -> None:
    """What is left has no copies left in it."""
    once = [c.text for c in dedupe(documents(texts), Dedupe()).candidates]
    assert [c.text for c in dedupe(documents(once), Dedupe()).candidates] == once


@settings(max_examples=100, deadline=None)
@given(st.lists(PASSAGE, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_order_of_equal_copies_does_not_matter(texts: list[str], random) -> None:
    """Shuffled copies of the same texts leave the same texts."""
    copies = texts * 2
    shuffled = list(copies)
    random.shuffle(shuffled)
    assume(shuffled != copies)
    left = [
        Counter(c.text for c in dedupe(documents(order), Dedupe(merge_overlaps=False)).candidates)
        for order in (copies, shuffled)
    ]
    assert left[0] == left[1]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_recall_on_real_copies(records, lang: str) -> None:
    """Copies of every kind are found, look-alikes never, passages that are no copies stay, and no sentence is lost."""
    total: Counter[str] = Counter()
    caught: Counter[str] = Counter()
    for record in records(f"neardup_{lang}", 25):
        passages = record["passages"]
        found = dedupe(
            [Document(i, p["text"], p["id"], p.get("title"), p.get("score")) for i, p in enumerate(passages)], Dedupe()
        )
        family = [p.get("dup_of") or p["id"] for p in passages]
        left = normalise(" ".join(c.text for c in found.candidates)).replace(" ", "")
        for i, passage in enumerate(passages):
            kind = passage.get("dup_kind") or "own"
            total[kind] += 1
            of = found.dropped.get(i, (None, None))[1]
            assert of is None or family[of] == family[i]
            caught[kind] += i in found.dropped or any(v[1] == i for v in found.dropped.values())
            if kind == "own":
                said = (passage["text"][s.start : s.end] for s in sentences(passage["text"]))
                assert all(normalise(s).replace(" ", "") in left for s in said)
    del total["own"]
    assert {kind: caught[kind] / n for kind, n in total.items() if caught[kind] < 0.98 * n} == {}


@pytest.mark.parametrize("name", ["rag_en", "rag_zh"])
def test_distinct_passages_stay(records, name: str) -> None:
    """Real retrieval results without copies lose nothing."""
    for record in records(name, 40):
        assert not dedupe(documents([p["text"] for p in record["passages"]]), Dedupe()).dropped

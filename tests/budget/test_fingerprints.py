import random
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from budget.align import align
from budget.cache import BoundedCache
from budget.fingerprints import GRAM, WINDOW, anchors, comparable, comparison_key, similar_pairs

RUN = st.text("abcdefg 北京0", min_size=GRAM + WINDOW, max_size=80)
SIDE = st.text("hijklm上海9", max_size=60)


def test_key_leaves_out_what_does_not_count() -> None:
    """Spaces stay only between two words of an alphabet: beside marks and Chinese they differ from copy to copy."""
    assert comparison_key("In  1962 , (as said)\n北 京。") == comparison_key("in 1962,(As said)北京。")
    assert comparison_key("10 20") != comparison_key("1020")
    assert comparison_key(" \u200b\n") == b""


@settings(max_examples=200, deadline=None)
@given(RUN, SIDE, SIDE, SIDE, SIDE)
def test_a_long_run_is_always_found(run: str, a: str, b: str, c: str, d: str) -> None:
    """Two texts that share a run of GRAM + WINDOW - 1 bytes share a fingerprint, and aligning them finds the run."""
    first, second = comparable(a + run + b), comparable(c + run + d)
    shared = comparison_key(run)
    if shared not in first.key or shared not in second.key or len(shared) < GRAM + WINDOW - 1:
        return
    points = anchors(first, second)
    assert points
    matches = align(first.key, second.key, points)
    assert max(m.length for m in matches) >= GRAM
    for m in matches:
        assert first.key[m.a : m.a_end] == second.key[m.b : m.b_end]
    for before, after in pairwise(matches):
        assert before.a_end <= after.a
        assert before.b_end <= after.b


def test_pairs_by_share() -> None:
    """Only texts that share enough are pairs, and a footer on every page makes no pair of two pages."""
    words = random.Random(0)
    pages = [
        " ".join(f"w{words.randrange(10**6)}" for _ in range(60)) + ". The usual footer of each page of this site."
        for _ in range(60)
    ]
    texts = sorted(map(comparable, [*pages, pages[7][:-10]]), key=lambda c: -len(c.key))
    pairs = similar_pairs(texts, 0.5)
    assert [(texts[a].key, texts[b].key) for a, b in pairs] == [
        (comparable(pages[7]).key, comparable(pages[7][:-10]).key)
    ]
    assert similar_pairs([], 0.5) == []
    assert similar_pairs([comparable("short")] * 2, 0.5) == []


def test_near_linear_in_texts() -> None:
    """Ten times the passages, all with one footer, take far less than a hundred times the time."""

    def cpu_s(num: int) -> float:
        texts = [comparable(f"{n} " * 200 + "The usual footer of each page of this site. " * 3) for n in range(num)]
        start = time.thread_time()
        similar_pairs(texts, 0.08)
        return time.thread_time() - start

    cpu_s(10)
    assert cpu_s(1000) < 40 * max(cpu_s(100), 0.002)


def test_cache_is_bounded() -> None:
    """The least recently used entries leave; an entry over the bound is not kept; a key is counted once."""
    cache: BoundedCache[str] = BoundedCache(max_bytes=10)
    for key in ("a", "b", "c"):
        cache.put(key, key, 4)
    assert [cache.get(k) for k in ("a", "b", "c")] == [None, "b", "c"]
    cache.get("b")
    cache.put("d", "d", 4)
    assert [cache.get(k) for k in ("b", "c", "d")] == ["b", None, "d"]
    cache.put("d", "D", 5)
    assert cache.num_bytes == 9
    cache.put("e", "e", 11)
    assert cache.get("e") is None
    assert len(cache) == 2


def test_room_knows_no_torch(tmp_path: Path) -> None:
    """Deduplication and ranking load without torch: it comes with the embedder that needs it, at first use."""
    code = "import sys, budget.dedupe, budget.rank, budget.sentence_rank, budget.encoders; exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0

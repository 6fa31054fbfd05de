"""Conversations for `budget_quality.py`: labelled turns, planted and corrected facts, a workload on a cache."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from benchmarks.budget_common import BENCH, Sheet, ask, context_policy, records, shown_documents
from budget.history import classify
from budget.plan import plan
from budget.ports import Ports
from budget.types import Message, Plan, PlanRequest
from engine.cache import KVCache
from engine.config import EngineConfig

FACTS = {
    "en": (
        "My order number is {n}.", "Never mention prices.", "I prefer window seats.", "My name is Kim Doe {d}.",
        "The delivery date is March {d}.", "I am allergic to peanuts.", "Please answer in French.",
        "My budget is {n} euros.", "Do not call me before noon.", "We are a group of {d} people.",
        "My email is kim{n}@example.org.", "I live at {n} Mill Road.", "Our server runs version {d}.4.{d}.",
        "My daughter is {d} years old.", "The contract ends on {d} June 2026.", "I only eat vegetarian food.",
        "Always use metric units.", "Our company has {n} employees.", "I work night shifts.",
        "The serial number is SN-{n}.",
    ),
    "zh": (
        "我的订单号是{n}。", "请不要提价格。", "我喜欢靠窗的座位。", "我叫李小{d}。", "送货日期是3月{d}日。",
        "我对花生过敏。", "请用英文回答。", "我的预算是{n}元。", "中午之前别给我打电话。", "我们一共{d}个人。",
        "我的邮箱是li{n}@example.org。", "我住在中山路{n}号。", "我们的服务器版本是{d}.4.{d}。", "我女儿今年{d}岁。",
        "合同到2026年6月{d}日为止。", "我只吃素。",
        "请始终使用公制单位。", "我们公司有{n}名员工。", "我上夜班。", "序列号是SN-{n}。",
    ),
}  # fmt: skip
CORRECTIONS = {
    "en": (
        ("My order number is {n}.", "Sorry, my order number is {m}."),
        ("The delivery date is March {d}.", "Correction: the delivery date is April {d}."),
        ("My budget is {n} euros.", "Actually, my budget is {m} euros."),
        ("We are a group of {d} people.", "We are now a group of {k} people."),
        ("My email is kim{n}@example.org.", "My email is kim{m}@example.org."),
        ("I prefer window seats.", "Actually I prefer aisle seats now."),
        ("The meeting is on Monday.", "The meeting has been moved to Thursday."),
        ("I live at {n} Mill Road.", "I made a mistake, I live at {m} Mill Road."),
    ),
    "zh": (
        ("我的订单号是{n}。", "说错了，我的订单号是{m}。"),
        ("送货日期是3月{d}日。", "更正：送货日期是4月{d}日。"),
        ("我的预算是{n}元。", "其实我的预算是{m}元。"),
        ("我们一共{d}个人。", "我们现在一共{k}个人。"),
        ("我的邮箱是li{n}@example.org。", "我的邮箱是li{m}@example.org。"),
        ("我喜欢靠窗的座位。", "其实我喜欢靠走道的座位。"),
        ("会议在周一。", "会议改到周四了。"),
        ("我住在中山路{n}号。", "不对，我住在中山路{m}号。"),
    ),
}
LAST = {"en": "What was it again?", "zh": "刚才说的是什么？"}
SYSTEM = "You are a helpful assistant."
NUM_FACTS, NUM_CORRECTED, NUM_EXCHANGES, SHARE = 8, 4, 20, 0.25
NAMESPACE = ("benchmark",)
ANSWER_SETS = (("rag_en", 50), ("rag_zh", 50), ("neardup_en", 25), ("neardup_zh", 25))


def history_labels(sheet: Sheet) -> dict[str, Any]:
    """User turns of labelled dialogues, classed."""
    found: dict[str, Any] = {}
    for lang in ("en", "zh"):
        pairs: Counter[tuple[str, str]] = Counter()
        for dialogue in (one for one in records("history_labels") if one["lang"] == lang):
            turns = [Message(turn["role"], turn["content"]) for turn in dialogue["turns"]]
            for n, (turn, said) in enumerate(zip(dialogue["turns"], turns, strict=True)):
                if said.role == "user":
                    pairs[turn["label"], classify(said, turns[n - 1] if n else None)] += 1
        facts = sum(count for (label, _), count in pairs.items() if label == "fact")
        small = sum(count for (label, _), count in pairs.items() if label == "smalltalk")
        called = sum(count for (_, kind), count in pairs.items() if kind == "small_talk")
        hit = pairs["smalltalk", "small_talk"]
        sheet.at_least(f"history {lang}: facts recognised", pairs["fact", "fact"] / facts, 0.95, f"of {facts}")
        sheet.at_most(f"history {lang}: facts as small talk", pairs["fact", "small_talk"] / facts, 0.005)
        sheet.at_least(f"history {lang}: small talk precision", hit / max(called, 1), 0.90, f"of {called}")
        sheet.at_least(f"history {lang}: small talk recall", hit / small, 0.75, f"of {small}")
        found[lang] = {f"{label} as {kind}": count for (label, kind), count in sorted(pairs.items())}
    return found


def planted_facts(sheet: Sheet, ports: Ports, seeds: int) -> dict[str, Any]:
    """Facts among real dialogue turns, at a quarter of the tokens; then facts that are corrected later."""
    found: dict[str, Any] = {}
    for lang in ("en", "zh"):
        whole, lost = 0, Counter[str]()
        newest, stale = 0, Counter[str]()
        for seed in range(seeds):
            drawn = random.Random(seed)
            facts = [text.format(**_values(drawn)) for text in drawn.sample(FACTS[lang], NUM_FACTS)]
            shown = _shown(_quarter(lang, facts, drawn, ports))
            gone = [fact for fact in facts if fact not in shown]
            whole += not gone
            lost.update(gone)
            old, new = _corrected(lang, drawn)
            shown = _shown(_quarter(lang, old + new, drawn, ports))
            wrong = [fact for fact in new if fact not in shown] + [fact for fact in old if _stands(fact, new, shown)]
            newest += not wrong
            stale.update(wrong)
        sheet.at_least(f"planted {lang}: conversations with 8 of 8 facts verbatim", whole / seeds, 1.0, f"of {seeds}")
        sheet.at_least(f"corrected {lang}: conversations with the newest only", newest / seeds, 1.0, f"of {seeds}")
        found[lang] = {"whole": whole, "lost": lost.most_common(20)}
        found[lang] |= {"newest_only": newest, "wrong": stale.most_common(20)}
    return found


def _values(drawn: random.Random) -> dict[str, int]:
    """Numbers for one conversation's templates: n and its correction m, d and its correction k."""
    bounds = {"n": (1000, 5000), "m": (5000, 9000), "d": (2, 28), "k": (30, 60)}
    return {name: drawn.randrange(*own) for name, own in bounds.items()}


def _corrected(lang: str, drawn: random.Random) -> tuple[list[str], list[str]]:
    values = _values(drawn)
    pairs = [(a.format(**values), b.format(**values)) for a, b in drawn.sample(CORRECTIONS[lang], NUM_CORRECTED)]
    return [old for old, _ in pairs], [new for _, new in pairs]


def _stands(old: str, new: Sequence[str], shown: str) -> bool:
    """Whether an old fact is shown for itself, not as a part of a newer sentence."""
    for sentence in new:
        shown = shown.replace(sentence, "")
    return old in shown


def _quarter(lang: str, facts: Sequence[str], drawn: random.Random, ports: Ports) -> Plan:
    """A conversation of 40 real turns, some user turns replaced by the facts in order, planned at `SHARE`.

    The facts stand before the turns that would be kept as recent anyway.
    """
    turns = [turn for one in _dialogues() if one["lang"] == lang for turn in one["turns"]]
    said = {role: [turn["content"] for turn in turns if turn["role"] == role] for role in ("user", "assistant")}
    places = sorted(drawn.sample(range(NUM_EXCHANGES - 2), len(facts)))
    history = [{"role": "system", "content": SYSTEM}]
    for n in range(NUM_EXCHANGES):
        own = facts[places.index(n)] if n in places else drawn.choice(said["user"])
        history.append({"role": "user", "content": own})
        history.append({"role": "assistant", "content": drawn.choice(said["assistant"])})
    context = context_policy()
    request = ask(LAST[lang], context=context, history=history)
    total = plan(request, ports).report.tokens_before
    return plan(ask(LAST[lang], context=context, history=history, max_prompt_tokens=int(total * SHARE)), ports)


def _shown(planned: Plan) -> str:
    return "\n".join(message.content for message in planned.messages)


@cache
def _dialogues() -> list[dict[str, Any]]:
    return records("history_labels")


def cache_order(sheet: Sheet, ports: Ports) -> dict[str, Any]:
    """Prompts served in order over an ideal prefix cache, passages by relevance and by what is cached."""
    file = BENCH / "rag_documents.jsonl"
    if not file.is_file():
        raise SystemExit(f"no {file}: set TIDEGATE_BENCH to the folder with the workloads")
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    served = {
        order: served_in_order([_workload_request(row, order) for row in rows], ports)
        for order in ("relevance", "cache_aware")
    }
    for what, goal in (("prompt", 1.4), ("document", 1.8)):
        before, after = (served[order][f"cached_{what}_tokens"] for order in ("relevance", "cache_aware"))
        sheet.at_least(f"cached {what} tokens, against relevance order", after / before, goal, f"{before} to {after}")
    kept = {order: _answers_kept(ports, order) for order in served}
    for name, _ in ANSWER_SETS:
        line = f"retention {name} at 50% in cache-aware order, against relevance order"
        sheet.at_least(line, kept["cache_aware"][name], kept["relevance"][name])
    return {"requests": len(rows), **served, "answers_kept": kept}


def _workload_request(row: dict[str, Any], order: str) -> PlanRequest:
    *history, last = row["messages"]
    context = context_policy()
    return ask(last["content"], row["documents"], context=context, history=history, order=order)


class IdealCache:
    """The engine's prefix cache with room for everything."""

    def __init__(self, ports: Ports, num_blocks: int = 100_000) -> None:
        self._cache = KVCache(num_blocks, EngineConfig.__dataclass_fields__["block_size"].default)
        self.ports = replace(ports, probe=lambda ids: self._cache.probe(NAMESPACE, ids))

    def serve(self, ids: Sequence[int]) -> int:
        """Files a prompt; returns how many of its tokens were there."""
        lease = self._cache.admit(NAMESPACE, ids, self._cache.blocks_for(len(ids)))
        if lease is None:
            raise RuntimeError("the ideal cache is full")
        cached = lease.num_shared * self._cache.block_size
        self._cache.allocate(lease, len(ids))
        self._cache.commit(lease, len(ids))
        self._cache.release(lease)
        return cached


def served_in_order(requests: Sequence[PlanRequest], ports: Ports) -> dict[str, Any]:
    """Tokens of all prompts, and how many of them, and of their documents sections, were cached."""
    ideal = IdealCache(ports)
    total: Counter[str] = Counter()
    for request in requests:
        planned = plan(request, ideal.ports)
        cached = ideal.serve(planned.prompt_token_ids)
        total["prompt_tokens"] += len(planned.prompt_token_ids)
        total["cached_prompt_tokens"] += cached
        total["document_tokens"] += sum(d.tokens_after for d in planned.report.documents)
        total["moved"] += sum(d.moved_for_cache != 0 for d in planned.report.documents)
        start = 0
        for segment in planned.segments:
            own = ports.counter.encode_control if segment.control else ports.counter.encode
            end = start + len(own(segment.text))
            if segment.section == "documents":
                total["cached_document_tokens"] += max(min(end, cached) - start, 0)
            start = end
    return dict(total)


def _answers_kept(ports: Ports, order: str) -> dict[str, float]:
    """Shares of answers kept at 50 % while a cache fills."""
    from benchmarks.budget_quality import holds, own_tokens

    shares = {}
    for name, num in ANSWER_SETS:
        ideal, hits, rows = IdealCache(ports), 0, records(name)[:num]
        for row in rows:
            budget = own_tokens(row, ports) // 2
            request = ask(
                row["question"], row["passages"], context=context_policy(), max_document_tokens=budget, order=order
            )
            planned = plan(request, ideal.ports)
            ideal.serve(planned.prompt_token_ids)
            hits += holds(shown_documents(planned), row["answers"])
        shares[name] = round(hits / len(rows), 4)
    return shares

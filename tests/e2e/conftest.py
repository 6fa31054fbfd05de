"""A real gateway with the real SmolLM2, one for the whole session, reached over real HTTP."""

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

ROOT = Path(__file__).parents[2]
DEV_KEY = "tg-end-to-end-development-key"
READY_TIMEOUT_S = 240.0
"""The first start converts the model, and a busy machine compiles every library first."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway process and how to reach it."""

    url: str
    key: str
    process: subprocess.Popen[bytes]
    folder: Path
    """Its working directory."""
    log: Path

    def wait_ready(self) -> None:
        """Until `/readyz` says 200; a gateway that exits instead fails the test with its log."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        pytest.fail(f"the gateway is not ready; its log:\n{self.log.read_text()[-4000:]}")

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(signum)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            pytest.fail("the gateway did not stop within 30 s")


StartGateway = Callable[..., Gateway]


def _environment(**variables: str) -> dict[str, str]:
    """Ours without any TIDEGATE_ setting; models are converted once for the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE_")}
    cache = os.environ.get("TIDEGATE_CACHE", str(ROOT / ".tidegate" / "models"))
    return env | {"PYTHONPATH": str(ROOT), "TIDEGATE_CACHE": cache, "NO_COLOR": "1"} | variables


@pytest.fixture(scope="session")
def environment() -> Callable[..., dict[str, str]]:
    """Builds the environment of a `tidegate` process."""
    return _environment


@pytest.fixture(scope="session")
def start_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """Starts gateways, each in a folder of its own; those that still run at the end are killed."""
    started: list[Gateway] = []

    def start(*args: str, **variables: str) -> Gateway:
        folder = tmp_path_factory.mktemp("gateway")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "gateway.cli", "serve", "--port", str(port), *args]
        log = folder / "gateway.log"
        env = _environment(**{"TIDEGATE_DEV_KEY": DEV_KEY, **variables})
        with log.open("wb") as sink:
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=sink, stderr=subprocess.STDOUT)
        started.append(Gateway(f"http://127.0.0.1:{port}", DEV_KEY, process, folder, log))
        return started[-1]

    yield start
    for gateway in started:
        if gateway.process.poll() is None:
            gateway.process.kill()
            gateway.process.wait()


@pytest.fixture(scope="session")
def gateway(start_gateway: StartGateway) -> Gateway:
    """The session's gateway, ready."""
    started = start_gateway()
    started.wait_ready()
    return started


@pytest.fixture(scope="session")
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    """A plain HTTP client with the development key."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def client(gateway: Gateway) -> Iterator[OpenAI]:
    """The official client, unchanged; it does not retry, so that an error is seen as it is."""
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=gateway.key, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def records() -> Callable[[str], list[Record]]:
    """Reads a data set by its name; skips where the data are not there."""
    folder = Path(os.environ.get("TIDEGATE_DATA", ROOT.parent / "shared" / "data"))

    def read(name: str) -> list[Record]:
        path = folder / f"{name}.jsonl.gz"
        if not path.is_file():
            pytest.skip(f"{path} is not there: set TIDEGATE_DATA to the folder of the data sets")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return read

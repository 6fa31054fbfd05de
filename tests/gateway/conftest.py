"""A gateway over real HTTP: uvicorn on a free port, the real engine loop over the fake runner, the real planner."""

import asyncio
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from openai import OpenAI

from budget.plan import plan as real_plan
from budget.ports import Ports
from budget.types import PromptMessage, Segment
from engine.config import EngineConfig
from engine.fake import CONTROL_TOKENS, FakeRunner, FakeVocabulary
from engine.loop import EmbeddedEngine
from gateway.admission import Admission
from gateway.app import create_app
from gateway.logs import configure_logging
from gateway.metrics import Metrics
from gateway.models import LoadedModel, ModelSlot
from gateway.planner import Planner
from gateway.server import server_config
from gateway.services import Services
from gateway.store import SqliteLedger
from policies.keys import hash_key
from policies.load import load_text
from policies.revisions import ActivePolicies

KEYS = {name: f"tg-{name}-key" for name in ("dev", "plain", "other", "chatless", "expired")}
POLICY = f"""
version: 1
models:
  chat: {{id: fake, max_output_tokens: 2000}}
defaults:
  limits: {{request: {{max_bytes: 200KiB, max_documents: 20, max_messages: 40}}}}
teams:
  dev:
    keys: [{{hash: "{hash_key(KEYS["dev"])}", admin: true}}]
  support:
    keys:
      - {{hash: "{hash_key(KEYS["plain"])}", app: helpdesk}}
      - {{hash: "{hash_key(KEYS["chatless"])}", app: helpdesk, models: [chat]}}
      - {{hash: "{hash_key(KEYS["expired"])}", expires: 2020-01-31}}
    apps: {{helpdesk: {{}}}}
  other:
    keys: [{{hash: "{hash_key(KEYS["other"])}"}}]
"""
START_TIMEOUT_S = 10.0
_CONTROL = re.compile("|".join(re.escape(name) for name in CONTROL_TOKENS))


class ByteTokenizer:
    """The fake vocabulary as the planner's counter and renderer: a byte a token, `<|start|>role` and `<|end|>`."""

    method = "exact"
    separator_side = "leading"

    def __init__(self, vocabulary: FakeVocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, text: str) -> Sequence[int]:
        """Bytes."""
        return self._vocabulary.encode(text)

    def count(self, text: str) -> int:
        """Bytes."""
        return len(text.encode())

    def encode_control(self, text: str) -> Sequence[int]:
        """Bytes, and control tokens where they are spelled."""
        ids, at = [], 0
        for match in _CONTROL.finditer(text):
            ids += [*self.encode(text[at : match.start()]), self._vocabulary.control(match.group())]
            at = match.end()
        return ids + list(self.encode(text[at:]))

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Each byte spans its character."""
        return [(n, n + 1) for n, character in enumerate(text) for _ in character.encode()]

    def render(self, messages: Sequence[PromptMessage], tools: Sequence[Mapping[str, Any]] = ()) -> list[Segment]:
        """ChatML in the fake's control tokens; tool calls as JSON."""
        segments = []
        for message in messages:
            segments.append(Segment(f"<|start|>{message.role}\n", True, "template"))
            segments += [Segment(part.text, False, part.section) for part in message.parts]
            if message.tool_calls:
                segments.append(Segment(json.dumps(list(message.tool_calls)), False, "history"))
            segments.append(Segment("<|end|>\n", True, "template"))
        return [*segments, Segment("<|start|>assistant\n", True, "template")]


@dataclass(slots=True)
class Gateway:
    """A running gateway and the parts that a test looks into."""

    url: str
    services: Services
    runner: FakeRunner
    server: uvicorn.Server
    client: httpx.Client

    def http(self, key: str = "dev", **options: Any) -> httpx.Client:
        """A plain client with this key of `KEYS`."""
        headers = {"authorization": f"Bearer {KEYS.get(key, key)}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20, verify=False, **options)

    def openai(self, key: str = "dev") -> OpenAI:
        """The official client; it does not retry, so that an error is seen as it is."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=KEYS.get(key, key), max_retries=0, timeout=20)

    def post(self, body: Any, key: str = "dev", path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
        """One request."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {KEYS.get(key, key)}", "content-type": "application/json"}
        return self.client.post(path, content=content, headers=headers | options.pop("headers", {}), **options)

    def get(self, path: str) -> httpx.Response:
        """One GET without a key."""
        return self.client.get(path)

    def metric(self, name: str) -> float:
        """The sum of a metric's samples; `name` may go on with labels, `name{team="dev"`."""
        page = self.get("/metrics").text
        found = [line for line in page.splitlines() if re.match(re.escape(name) + r"[ ,{}]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def wait_until(self, condition: Callable[[], bool], what: str, timeout_s: float = 5.0) -> None:
        """Poll; the test fails if it does not come true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            time.sleep(0.01)


StartGateway = Callable[..., Gateway]


@pytest.fixture(scope="session")
def log_buffer() -> io.StringIO:
    """Where all log lines of the run go."""
    buffer = io.StringIO()
    configure_logging("info", json=True, stream=buffer)
    return buffer


@pytest.fixture
def logs(log_buffer: io.StringIO) -> Callable[[], list[dict[str, Any]]]:
    """The log lines of this test, decoded."""
    start = len(log_buffer.getvalue())
    return lambda: [json.loads(line) for line in log_buffer.getvalue()[start:].splitlines()]


@contextmanager
def serving(
    policy: str = POLICY,
    policy_edit: Callable[[str], str] = str,
    plan: Callable[..., Any] = real_plan,
    clock: Callable[[], float] = time.time,
    store: str = ":memory:",
    config: Mapping[str, Any] | None = None,
    load_gate: threading.Event | None = None,
    wait: bool = True,
    drain_s: float = 5.0,
    fail_load: Exception | None = None,
    on_fatal: Callable[[Exception], None] = lambda error: None,
    **runner_options: Any,
) -> Iterator[Gateway]:
    """A gateway for as long as the context lasts."""
    runner = FakeRunner(**{"num_blocks": 512, **runner_options})
    engine = EmbeddedEngine(
        EngineConfig(model="fake", **(config or {})), lambda: (runner, runner.vocabulary.token_bytes)
    )
    tokenizer = ByteTokenizer(runner.vocabulary)

    async def load() -> LoadedModel:
        if load_gate is not None:
            await asyncio.to_thread(load_gate.wait)
        if fail_load is not None:
            raise fail_load
        await engine.start()
        return LoadedModel(engine, engine.model, Ports(counter=tokenizer, renderer=tokenizer))

    metrics = Metrics()
    services = Services(
        models={"chat": ModelSlot("chat", load)},
        policies=ActivePolicies(load_text(policy_edit(policy))),
        admission=Admission(SqliteLedger(store, clock), SqliteLedger(":memory:", clock), metrics),
        planner=Planner(plan=plan),
        metrics=metrics,
        clock=clock,
        on_fatal=on_fatal,
    )
    server = uvicorn.Server(
        server_config(create_app(services), host="127.0.0.1", port=0, timeout_graceful_shutdown=drain_s)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not server.started:
        assert thread.is_alive(), "the server stopped while it started"
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    client = httpx.Client(base_url=url, timeout=20, verify=False, limits=httpx.Limits(max_connections=200))
    gateway = Gateway(url, services, runner, server, client)
    if wait:
        gateway.wait_until(lambda: gateway.get("/readyz").status_code == 200, "ready")
    try:
        yield gateway
    finally:
        if load_gate is not None:
            load_gate.set()
        client.close()
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive(), "the server does not stop"
        assert gateway.runner.closed or fail_load, "the engine was not closed"


@pytest.fixture
def start(log_buffer: io.StringIO) -> Callable[..., Any]:
    """`serving`, as a fixture."""
    return serving


@pytest.fixture(scope="module")
def gateway(log_buffer: io.StringIO) -> Iterator[Gateway]:
    """One gateway with the defaults for all tests of a file."""
    with serving() as running:
        yield running


@pytest.fixture
def policy_text() -> str:
    """The policy set that `serving` starts with."""
    return POLICY


@pytest.fixture
def ask() -> Callable[..., dict[str, Any]]:
    """Builds a request's body."""

    def build(content: str = "Say hi", **fields: Any) -> dict[str, Any]:
        return {"model": "chat", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}

    return build

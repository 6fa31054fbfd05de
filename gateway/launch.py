"""Starting and stopping the server process: everything that can be tried without the model is tried before it loads."""

import contextlib
import errno
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import version

import msgspec
import uvicorn

from engine.errors import EngineError
from gateway.app import create_app
from gateway.keys import DevKey, development_key
from gateway.logs import configure_logging
from gateway.server import server_config
from gateway.services import Services
from gateway.settings import Settings
from gateway.wiring import DEFAULT_POLICY, DEV_TEAM, build_services
from policies.load import load

BACKLOG = 2048
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StartFailed(Exception):
    """The gateway cannot start; the message is for the operator, one line for each problem."""


def launch(settings: Settings) -> None:
    """Serve until a stop signal; then let running requests finish for `settings.drain` seconds.

    Raises:
        StartFailed: a taken port, a model that cannot be loaded, too little memory.
        PolicyError: the policy set is refused, with every problem.
        SettingsError: a setting that cannot be served.
    """
    is_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    configure_logging(settings.log_level, json=is_json)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its start and stop lines repeat ours
    with contextlib.closing(listen(settings.host, settings.port)) as listener, _stop_signals_exit_cleanly():
        key = _development_key(settings)
        if key is not None:
            settings = msgspec.structs.replace(settings, dev_key=key.text)
        services = build_services(settings)
        _announce(settings, services, listener, key)
        _run(settings, services, listener)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        StartFailed: the port is taken or may not be used, or the host is not ours.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)  # localhost: 127.0.0.1
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise StartFailed(f"host {host!r} cannot be resolved: {error.strerror}; pass another with --host") from None
    except OSError as error:
        raise StartFailed(_bind_problem(host, port, error)) from None


def _bind_problem(host: str, port: int, error: OSError) -> str:
    where = f"port {port} on {host}"
    if error.errno == errno.EADDRINUSE:
        return f"{where} is taken by another process; stop it, or pass another port with --port"
    if error.errno == errno.EACCES:
        return f"{where} needs more rights than this process has; pass one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine; pass another with --host"
    return f"{where} cannot be used: {error.strerror}"


@contextlib.contextmanager
def _stop_signals_exit_cleanly() -> Iterator[None]:
    """Exit code 0 on a stop signal: before uvicorn takes them over, and when it raises them again at its end."""

    def leave(*_: object) -> None:
        raise SystemExit(0)

    before = {number: signal.signal(number, leave) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _development_key(settings: Settings) -> DevKey | None:
    """The key for the team `dev`; None where the policy set has no such team and none is given.

    Raises:
        PolicyError: the policy set is refused.
        StartFailed: the key cannot be kept.
    """
    teams = load(settings.policy or DEFAULT_POLICY).document.teams
    if settings.dev_key is None and DEV_TEAM not in teams:
        return None
    try:
        return development_key(settings.dev_key, settings.data_dir)
    except OSError as error:
        raise StartFailed(f"the development key cannot be kept: {error}; set TIDEGATE_DEV_KEY") from None


def _announce(settings: Settings, services: Services, listener: socket.socket, key: DevKey | None) -> None:
    """What an operator wants to see first; the key only where it was made just now."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    revision = services.policies.current().revision
    print(f"Tidegate {version('tidegate')} on http://{shown}:{port}, policy revision {revision}", flush=True)
    if key is not None and key.made_in is not None:
        print(f"Development key, kept in {key.made_in}: {key.text}", flush=True)


def _run(settings: Settings, services: Services, listener: socket.socket) -> None:
    failures: list[Exception] = []
    server = uvicorn.Server(
        server_config(
            create_app(services),
            loop="uvloop" if sys.platform != "win32" else "asyncio",
            backlog=BACKLOG,
            timeout_graceful_shutdown=math.ceil(settings.drain),
        )
    )

    def end_process(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    services.on_fatal = end_process
    server.run(sockets=[listener])
    for error in failures:
        if isinstance(error, EngineError | OSError):
            raise StartFailed(" ".join(str(error).split())) from None
        raise error

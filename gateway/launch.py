"""Starting and stopping the server process: everything that can fail is tried before the port answers."""

import errno
import math
import signal
import socket
import sys
from types import FrameType

import uvicorn

from gateway.server import server_config
from gateway.settings import Settings

BACKLOG = 2048


class StartFailed(Exception):
    """The gateway cannot start; the message is for the operator, one line for each problem."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        StartFailed: the port is taken or may not be used, or the host is not ours.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
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

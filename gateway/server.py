"""How the app is served: uvicorn, with connections on which a client that does not read is soon noticed."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.client import ABORT_EXTENSION

KEEP_ALIVE_S = 75
"""Longer than clients and balancers keep an idle connection, so that none is closed just as it is used again."""
UNSENT_BYTES = 16 * 1024
"""Bytes that may wait for a client in the kernel and in the transport, each: some hundred stream chunks."""


class StreamingProtocol(HttpToolsProtocol):
    """HTTP/1.1 with small write buffers, and `abort` handed to the app as an ASGI extension."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound what a slow reader can leave unsent.

        A kernel buffer grows to megabytes on a fast network: a whole answer would fit, and no write would ever wait.
        """
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_NOTSENT_LOWAT") and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        """Add our extension to each request's scope."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT_EXTENSION: self.transport.abort}  # type: ignore[dict-item]


def server_config(app: Any, **options: Any) -> uvicorn.Config:
    """A uvicorn configuration for the gateway; `options` are uvicorn's own and win."""
    defaults: dict[str, Any] = {
        "http": StreamingProtocol,
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "timeout_keep_alive": KEEP_ALIVE_S,
    }
    return uvicorn.Config(app, **{**defaults, **options})

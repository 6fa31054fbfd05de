"""The client's side of one exchange: reading its body, seeing it leave, writing to it. Over the bare ASGI triple."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from gateway.errors import ClientGone, ClientStalled, InvalidRequest, RequestTooLarge

T = TypeVar("T")
Headers = Mapping[str, str]
ABORT_EXTENSION = "tidegate.abort"
ABORT_WAIT_S = 1.0


class Client:
    """One client, from its headers to the last byte.

    Attributes:
        gone: resolves when the client closes the connection, once `watch` was called.
        status: of the response, once its status line is out.
        idle_s: how long one read or write may wait for the client; None waits for ever.
    """

    def __init__(
        self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.status: int | None = None
        self.idle_s: float | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._abort: Callable[[], None] | None = (scope.get("extensions") or {}).get(ABORT_EXTENSION)
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None

    async def read_body(self, max_bytes: int) -> bytes:
        """The whole body. A body over the limit is refused as soon as that is known, and not kept.

        Raises:
            RequestTooLarge: by the declared or by the received length.
            InvalidRequest: nothing arrived for `idle_s`.
            ClientGone: the connection closed before the body was complete.
        """
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > max_bytes:
            raise _too_large(int(declared), max_bytes)
        body = bytearray()
        while True:
            message = await self._next_message(len(body))
            if message["type"] == "http.disconnect":
                raise ClientGone("the client hung up while its request was read")
            body += message["body"]
            if len(body) > max_bytes:
                raise _too_large(len(body), max_bytes)
            if not message.get("more_body"):
                return bytes(body)

    def watch(self) -> None:
        """From here on `gone` tells when the client leaves. Only after the body was read."""
        self._watcher = asyncio.create_task(self._watch())

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the client leaves; at once, one turn of the loop later, if it has left."""
        self.gone.add_done_callback(lambda _: callback())

    async def wait_for(self, awaitable: Awaitable[T], until: float | None = None) -> T:
        """The awaitable's result; it is cancelled when the client leaves or `until` (`time.monotonic()`) passes.

        Raises:
            ClientGone: the client left first.
            TimeoutError: the instant passed first.
        """
        work = asyncio.ensure_future(awaitable)
        timeout = None if until is None else max(0.0, until - time.monotonic())
        try:
            both: set[asyncio.Future[Any]] = {work, self.gone}
            await asyncio.wait(both, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise ClientGone("the client hung up") if self.gone.done() else TimeoutError
        finally:
            work.cancel()

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers."""
        self.status = status
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._write({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of the body.

        Raises:
            ClientStalled: the client has not read for `idle_s`.
        """
        await self._write({"type": "http.response.body", "body": data, "more_body": more})

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        await self.start(status, {**headers, "content-length": str(len(body))})
        await self.write(body, more=False)

    async def abort(self) -> None:
        """Drop the connection and what is buffered for it: a client that does not read would keep both."""
        if self._abort is not None:
            self._abort()
            with suppress(TimeoutError):
                async with asyncio.timeout(ABORT_WAIT_S):
                    await asyncio.shield(self.gone)

    def release(self) -> None:
        """Stop watching; the exchange is over."""
        if self._watcher is not None:
            self._watcher.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.gone.done():
            self.gone.set_result(None)

    async def _next_message(self, num_bytes: int) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.idle_s):
                message: dict[str, Any] = await self._receive()
                return message
        except TimeoutError:
            problem = f"the body stopped after {num_bytes:,} bytes; nothing came for {self.idle_s:g} s"
            raise InvalidRequest(problem) from None

    async def _write(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self.idle_s):
                await self._send(message)
        except TimeoutError:
            raise ClientStalled(f"the client read nothing for {self.idle_s:g} s") from None


def _too_large(num_bytes: int, max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body has {num_bytes:,} bytes or more; the policy allows {max_bytes:,} (limits.request.max_bytes). "
        "Send fewer or shorter documents."
    )

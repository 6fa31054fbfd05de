"""Server-sent events as OpenAI sends them. What does not change from chunk to chunk is encoded once."""

import msgspec
from msgspec import UNSET, UnsetType

from gateway.client import Client
from gateway.error_table import error_body
from gateway.exchange import Exchange
from gateway.job import Job
from gateway.reply import completion_id, completion_usage, send_error, shown
from gateway.report import fit_stream
from gateway.schemas import BudgetReport, ChatCompletionChunk, ChoiceDelta, ChunkChoice, CompletionUsage

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()
_MARK = "\x00"
# Line ends to clients that split on all of Unicode's; JSON leaves them as they are.
_LINE_ENDS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}


class StreamReply:
    """Headers leave with the first token, so whatever fails before that still has its own status.

    After that an error is an event of its own, `data: {"error": ...}`, and the stream ends without a finish reason
    and without `[DONE]`: OpenAI's clients raise it.
    """

    def __init__(self, client: Client, exchange: Exchange, job: Job) -> None:
        self._client = client
        options = job.ask.stream_options
        self._with_usage = bool(options and options.include_usage)
        self._id, self._created, self._model = completion_id(exchange), exchange.created, job.model_ref.name
        delta = self._event(ChoiceDelta(content=_MARK))
        self._before, self._after = delta.split(_encoder.encode(_MARK))

    async def text(self, exchange: Exchange, text: str) -> None:
        """Send a piece of the answer, in front of the first one the headers and the role."""
        data = self._before + _on_one_line(_encoder.encode(text)) + self._after if text else b""
        if self._client.status is None:
            data = await self._begin(exchange) + data
        if data:
            await self._client.write(data)

    async def finish(self, exchange: Exchange, report: BudgetReport | None) -> None:
        """Send the finish chunk, the usage chunk where it was asked for, and `[DONE]`."""
        assert exchange.finish is not None
        data = await self._begin(exchange) if self._client.status is None else b""
        sent = fit_stream(shown(exchange, report))
        if self._with_usage:
            data += self._event(ChoiceDelta(), exchange.finish.reason)
            data += self._chunk([], usage=completion_usage(exchange.usage), report=sent)
        else:
            data += self._event(ChoiceDelta(), exchange.finish.reason, sent)
        await self._client.write(data + DONE, more=False)

    async def fail(self, exchange: Exchange, error: Exception, report: BudgetReport | None) -> None:
        """Send the error: with its status if nothing was sent yet, else as the last event."""
        if self._client.status is None:
            await send_error(self._client, exchange, error, report)
            return
        body = error_body(error, exchange.request_id, fit_stream(shown(exchange, report)))
        await self._client.write(b"data: " + _on_one_line(body) + b"\n\n", more=False)

    async def _begin(self, exchange: Exchange) -> bytes:
        await self._client.start(200, exchange.headers() | HEADERS)
        return self._event(ChoiceDelta(role="assistant", content=""))

    def _event(self, delta: ChoiceDelta, reason: str | None = None, report: BudgetReport | UnsetType = UNSET) -> bytes:
        return self._chunk([ChunkChoice(delta=delta, finish_reason=reason)], report=report)

    def _chunk(
        self, choices: list[ChunkChoice], usage: CompletionUsage | None = None, report: BudgetReport | UnsetType = UNSET
    ) -> bytes:
        chunk = ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage if self._with_usage else UNSET,
            budget_report=report,
        )
        return b"data: " + _on_one_line(_encoder.encode(chunk)) + b"\n\n"


def _on_one_line(json: bytes) -> bytes:
    for character, escaped in _LINE_ENDS.items():
        json = json.replace(character.encode(), escaped)
    return json

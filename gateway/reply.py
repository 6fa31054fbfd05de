"""How an exchange is answered: as one JSON object, as a plan, or (see `gateway.stream`) as events."""

from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from engine.request import Usage
from gateway.client import Client
from gateway.error_table import error_body, error_headers, kind_of
from gateway.exchange import Exchange
from gateway.job import planned_messages
from gateway.report import summary_of
from gateway.schemas import (
    AssistantMessage,
    BudgetReport,
    ChatCompletion,
    Choice,
    CompletionUsage,
    PlanResponse,
    PromptTokensDetails,
)

JSON_HEADERS = {"content-type": "application/json"}
_encoder = msgspec.json.Encoder()


class Reply(Protocol):
    """Takes the answer's text as it comes, and ends it one way or the other."""

    async def text(self, exchange: Exchange, text: str) -> None:
        """More of the answer; the first call may have no text yet."""
        ...

    async def finish(self, exchange: Exchange, report: BudgetReport | None) -> None:
        """The answer is complete."""
        ...

    async def fail(self, exchange: Exchange, error: Exception, report: BudgetReport | None) -> None:
        """There will be no (more) answer."""
        ...


class JsonReply:
    """`chat.completion` at the end, or an error with its status."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def text(self, exchange: Exchange, text: str) -> None:
        """Kept until the end."""
        exchange.text.append(text)

    async def finish(self, exchange: Exchange, report: BudgetReport | None) -> None:
        """Send the completion."""
        assert exchange.job is not None
        assert exchange.finish is not None
        completion = ChatCompletion(
            id=completion_id(exchange),
            created=exchange.created,
            model=exchange.job.model_ref.name,
            choices=[
                Choice(message=AssistantMessage(content="".join(exchange.text)), finish_reason=exchange.finish.reason)
            ],
            usage=completion_usage(exchange.usage),
            budget_report=shown(exchange, report),
        )
        await self._client.respond(200, exchange.headers() | JSON_HEADERS, _encoder.encode(completion))

    async def fail(self, exchange: Exchange, error: Exception, report: BudgetReport | None) -> None:
        """Send the error with its status."""
        await send_error(self._client, exchange, error, report)


class PlanReply(JsonReply):
    """`budget.plan`: the messages that would be sent."""

    async def finish(self, exchange: Exchange, report: BudgetReport | None) -> None:
        """Send the plan. The report is what the route is for, so it is not left out."""
        assert exchange.job is not None
        assert exchange.plan is not None
        assert report is not None
        report = summary_of(report) if exchange.job.detail == "summary" else report
        planned = PlanResponse(messages=planned_messages(exchange.plan), budget_report=report)
        await self._client.respond(200, exchange.headers() | JSON_HEADERS, _encoder.encode(planned))


async def send_error(client: Client, exchange: Exchange, error: Exception, report: BudgetReport | None) -> None:
    """An error response, for an exchange that has sent nothing yet."""
    headers = exchange.headers() | error_headers(error) | JSON_HEADERS
    body = error_body(error, exchange.request_id, shown(exchange, report))
    await client.respond(kind_of(error).status, headers, body)


def shown(exchange: Exchange, report: BudgetReport | None) -> BudgetReport | UnsetType:
    """The report as this caller gets it; unset where it is not sent."""
    detail = exchange.job.detail if exchange.job else "none"
    if report is None or detail == "none":
        return UNSET
    return summary_of(report) if detail == "summary" else report


def completion_id(exchange: Exchange) -> str:
    """OpenAI's id of the answer."""
    return f"chatcmpl-{exchange.ulid}"


def completion_usage(usage: Usage) -> CompletionUsage:
    """OpenAI's usage object; the same numbers whether streamed or not."""
    return CompletionUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.output_tokens,
        total_tokens=usage.prompt_tokens + usage.output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens or 0),
    )

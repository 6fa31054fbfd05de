"""From bytes to a `ChatRequest`: every wrong body is one `InvalidRequest` that names the field."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.schemas import ChatMessage, ChatRequest
from policies.schema import RequestLimits

T = TypeVar("T")
MAX_STOPS = 16
MAX_STOP_CHARS = 512
MAX_STOP_TOKEN_IDS = 64
MAX_USER_CHARS = 512
INT64 = range(-(2**63), 2**63)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_decoder = msgspec.json.Decoder(ChatRequest)
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|required) field `(?P<field>[^`]*)`")

# What OpenAI's API has and this gateway has not yet, with the values that ask for nothing of it.
UNSUPPORTED: Mapping[str, Callable[[Any], bool]] = {
    "tools": lambda value: not value,
    "tool_choice": lambda value: value == "none",
    "functions": lambda value: not value,
    "function_call": lambda value: value == "none",
    "response_format": lambda value: value == {"type": "text"},
    "n": lambda value: value == 1,
    "best_of": lambda value: value == 1,
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "logit_bias": lambda value: not value,
    "frequency_penalty": lambda value: value == 0,
    "presence_penalty": lambda value: value == 0,
    "modalities": lambda value: value == ["text"],
    "audio": lambda _: False,
    "prediction": lambda _: False,
    "web_search_options": lambda _: False,
    "structured_outputs": lambda _: False,
    "guided_json": lambda _: False,
    "guided_regex": lambda _: False,
    "guided_choice": lambda _: False,
    "guided_grammar": lambda _: False,
}


def check_headers(headers: Mapping[str, str]) -> None:
    """The body must be plain JSON; no content type at all counts as JSON.

    Raises:
        InvalidRequest: it says that it is something else.
    """
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise InvalidRequest(f"the body's content-type is {kind!r}; send application/json", param="content-type")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise InvalidRequest(
            f"content-encoding {encoding!r} is not supported; send the body as it is", param="content-encoding"
        )


def decode_chat(body: bytes, limits: RequestLimits) -> ChatRequest:
    """The request that `body` holds. Of a repeated key the last one counts.

    Raises:
        InvalidRequest: not JSON, not UTF-8, a wrong type or value, or something that is not supported.
        RequestTooLarge: more messages or documents than `limits` allows.
    """
    request = decode_object(body, _decoder)
    _check_counts(request, limits)
    _check_supported(request)
    _check_sampling(request)
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")
    return request


def decode_object(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """What the decoder makes of a body; a byte order mark is ignored.

    Raises:
        InvalidRequest: the body is not JSON, or not of the decoder's type.
    """
    body = body.removeprefix(BYTE_ORDER_MARK)
    if not body.strip():
        raise InvalidRequest("the body is empty; send a JSON object")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        _refuse_value(str(error))
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON in UTF-8 (a lone surrogate is no character): {error}") from None


def text_of(message: ChatMessage) -> str:
    """A message's text: parts are joined as they are; absent content is empty."""
    if isinstance(message.content, list):
        return "".join(part.text or "" for part in message.content)
    return message.content or ""


def _refuse_value(complaint: str) -> NoReturn:
    """Turn msgspec's "Expected `int`, got `str` - at `$.max_tokens`" into an error with a `param`."""
    match = _PLACE.match(complaint)
    what, path = (match["what"], match["path"]) if match else (complaint, None)
    param = (path or "$").removeprefix("$").removeprefix(".")
    if field := _FIELD.search(what):
        param = f"{param}.{field['field']}" if param else field["field"]
    raise InvalidRequest(f"{param or 'the body'}: {what[:1].lower()}{what[1:]}", param=param or None)


def _check_counts(request: ChatRequest, limits: RequestLimits) -> None:
    if not request.messages:
        raise InvalidRequest("messages is empty; send at least one message", param="messages")
    for name, items, bound in (
        ("messages", request.messages, limits.max_messages),
        ("documents", request.documents or (), limits.max_documents),
    ):
        if len(items) > bound:
            raise RequestTooLarge(
                f"{len(items):,} {name} in one request; the policy allows {bound:,} (limits.request.max_{name})",
                param=name,
            )


def _check_supported(request: ChatRequest) -> None:
    for name, asks_nothing in UNSUPPORTED.items():
        value = getattr(request, name)
        if value is not None and not asks_nothing(value):
            raise InvalidRequest(f"{name} is not supported yet; leave it out", param=name)


def _check_sampling(request: ChatRequest) -> None:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{len(stops)} stop strings; at most {MAX_STOPS} are allowed", param="stop")
    if any(not 0 < len(stop) <= MAX_STOP_CHARS for stop in stops):
        raise InvalidRequest(f"a stop string must have 1 to {MAX_STOP_CHARS} characters", param="stop")
    stop_ids = request.stop_token_ids or []
    if len(stop_ids) > MAX_STOP_TOKEN_IDS or any(token_id not in range(2**31) for token_id in stop_ids):
        raise InvalidRequest(f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} token ids", param="stop_token_ids")
    if request.seed is not None and request.seed not in INT64:
        raise InvalidRequest("seed must fit in 64 bits", param="seed")
    if request.user is not None and len(request.user) > MAX_USER_CHARS:
        raise InvalidRequest(f"user has over {MAX_USER_CHARS} characters", param="user")


def _check_message(message: ChatMessage, param: str) -> None:
    for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type != "text":
            problem = f"a content part of type {part.type[:100]!r} is not supported; send text"
            raise InvalidRequest(problem, param=f"{param}.content[{index}].type")
        if part.text is None:
            raise InvalidRequest("a text part has no text", param=f"{param}.content[{index}].text")
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"a {message.role} message needs content", param=f"{param}.content")
    for index, call in enumerate(message.tool_calls or () if message.role == "assistant" else ()):
        _check_tool_call(call, f"{param}.tool_calls[{index}]")
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidRequest("a tool message needs the id of its call", param=f"{param}.tool_call_id")


def _check_tool_call(call: Mapping[str, Any], param: str) -> None:
    if not isinstance(call.get("id"), str) or call.get("type", "function") != "function":
        raise InvalidRequest("a tool call needs an `id` and the type `function`", param=param)
    function = call.get("function")
    if not isinstance(function, dict) or not all(isinstance(function.get(k), str) for k in ("name", "arguments")):
        problem = "a tool call's function needs `name` and `arguments`, both strings"
        raise InvalidRequest(problem, param=f"{param}.function")

"""`Dialect`: one model API in both directions.

    our prompt, tools, sampling ── native_prompt, native_tool, request_body ──► request to a model
    Response ◄───────────────────── check_payload, response_of ──────────────── response of the model

    messages, tools ◄────────────── read_request ────────────────────────────── request of a program
    Response ────────────────────── response_body, events ────────────────────► response to the program
    error ───────────────────────── error_body, error_event ──────────────────► response to the program

Requests of a program come from code that a model may have written: every defect is an `UnusableRequest`, whose text
is returned to the program. Chat completions' messages are the common format of both directions.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from verifiers.errors import (
    AuthenticationError,
    BadRequestError,
    Error,
    OverlongPromptError,
    RateLimitError,
)
from verifiers.messages import normalize_messages
from verifiers.types import Response, ResponseMessage, Usage

RawMessage = dict[str, Any]


class UnusableRequest(Error, ValueError):
    """A program's request that cannot become a turn; its text gives the reason to the program."""


class AgentRequest(NamedTuple):
    """One model call of an agent."""

    messages: Any
    """Messages in OpenAI's chat format, or the bare text of a text completion."""
    tools: list[dict[str, Any]]
    """Functions in OpenAI's chat format."""
    is_streamed: bool
    wants_usage: bool
    """Whether a stream of chat completions ends with the token counts."""


class Dialect(ABC):
    """One model API: its names, and its requests and responses in both directions. All methods are pure."""

    name: ClassVar[str]
    """Also the `client_type` of the API's client."""
    path: ClassVar[str]
    """Path below the base URL."""
    prompt_key: ClassVar[str] = "messages"
    """Name of the prompt in a request."""
    length_key: ClassVar[str] = "max_tokens"
    """Name of the maximum number of tokens in the completion."""
    has_tools: ClassVar[bool] = True
    """Whether the API supports tools."""
    key_header: ClassVar[str] = "Authorization"
    headers: ClassVar[dict[str, str]] = {}
    """Headers that the API requires with every request."""
    sdk_method: ClassVar[str]
    """Method of the SDK's client that calls the API."""
    sdk_type: ClassVar[tuple[str, str]]
    """Module and name of the SDK's response class."""

    @property
    def route(self) -> str:
        """Path below a version, for example `/chat/completions`."""
        return f"/{self.path.removeprefix('v1/')}"

    # --- our requests to a model, and its responses ---

    @abstractmethod
    def native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        """Return messages in the API's format, and keys to add to the body."""

    @abstractmethod
    def native_tool(self, tool: Any) -> Any:
        """Return a tool definition in the API's format."""

    def request_body(
        self,
        prompt: Any,
        model: str,
        sampling: dict[str, Any],
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request. `sampling`: arguments under their names in chat completions."""
        body = {"model": model, self.prompt_key: prompt, **extra}
        if tools and self.has_tools:
            body["tools"] = tools
        body.update(sampling)
        return body

    @abstractmethod
    def check_payload(self, payload: Any) -> None:
        """Raise InvalidModelResponseError or EmptyModelResponseError if a response is unusable."""

    @abstractmethod
    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format, without checking whether it is empty."""

    # --- requests of a program, and our responses ---

    @abstractmethod
    def chat_messages(self, body: Mapping[str, Any]) -> Any:
        """Return the messages of a program's request in OpenAI's chat format. Raise UnusableRequest, or any error of
        reading a dict.
        """

    @abstractmethod
    def response_body(self, response: Response) -> dict[str, Any]:
        """Return the body of a response to a program."""

    @abstractmethod
    def events(self, response: Response, wants_usage: bool = False) -> list[bytes]:
        """Return a whole response as server-sent events, including the last one."""

    def read_request(self, body: Any) -> AgentRequest:
        """Read the decoded JSON of a program's request. Raise UnusableRequest."""
        if not isinstance(body, Mapping):
            raise UnusableRequest(f"The body must be a JSON object, not {type(body).__name__}.")
        if body.get("n") not in (None, 1):
            raise UnusableRequest(
                f"Only one response per request: n must be 1, not {body['n']!r:.50}."
            )
        try:
            messages = self.chat_messages(body)
            if not messages:
                raise UnusableRequest("There are no messages in the request.")
            normalize_messages(messages, field_name="messages")
            tools = [tool for raw in items(body.get("tools"), "tools") for tool in _chat_tools(raw)]
        except UnusableRequest:
            raise
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise UnusableRequest(
                f"The request is not valid for {self.name}: {type(error).__name__}: {error}"
            ) from error
        options = body.get("stream_options")
        wants_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
        return AgentRequest(messages, tools, bool(body.get("stream")), wants_usage)

    def error_body(self, error: BaseException) -> dict[str, Any]:
        """Return the body that reports an error to a program; this is OpenAI's format."""
        code = "context_length_exceeded" if isinstance(error, OverlongPromptError) else None
        kind = type(error).__name__
        return {
            "error": {"message": text_of_error(error), "type": kind, "param": None, "code": code}
        }

    def error_event(self, error: BaseException) -> bytes:
        """Return an error in the middle of a stream, which then has no regular end."""
        return event(self.error_body(error))


# ------------------------------------------------------------------------------------------------ shared by dialects


def response_from(
    payload: Mapping[str, Any], message: dict[str, Any], usage: Usage | None, created: int
) -> Response:
    """Return a `Response` of these parts, with the payload's id and model."""
    return Response.of(
        {
            "id": payload.get("id") or "",
            "created": created,
            "model": payload.get("model") or "",
            "usage": usage,
            "message": ResponseMessage.of(message),
        }
    )


def completion_body(response: Response, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a response of chat or text completions with one choice."""
    finish = {"finish_reason": finish_reason(response)}
    return {
        "id": response.id,
        "object": kind,
        "created": response.created,
        "model": response.model,
        "choices": [{**choice, **finish}],
        "usage": None if response.usage is None else dict(response.usage),
    }


def content_to_text(content: Any) -> str:
    """Return the text of content that may be in parts, joined without a separator."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def finish_reason(response: Response) -> str:
    """Return the finish reason in OpenAI's terms."""
    message = response.message
    return message.finish_reason or ("tool_calls" if message.tool_calls else "stop")


def chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call in OpenAI's chat format."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def items(value: Any, name: str) -> Sequence[Any]:
    """Return a list from a program's request; None counts as empty. Raise UnusableRequest."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnusableRequest(f"{name} must be a list, not {type(value).__name__}.")
    return value


def an_object(value: Any, name: str) -> Mapping[str, Any]:
    """Return an object from a program's request. Raise UnusableRequest."""
    if not isinstance(value, Mapping):
        raise UnusableRequest(f"{name} must be an object, not {value!r:.100}.")
    return value


def plain_content(parts: list[RawMessage]) -> Any:
    """Return a single text part as plain text, so that prompts are equal in every format that a program uses."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _chat_tools(raw: Any) -> list[dict[str, Any]]:
    """Return a tool of any API in OpenAI's chat format; an empty list for a tool that a provider runs."""
    tool = an_object(raw, "a tool")
    inner = tool.get("function")
    if isinstance(inner, Mapping):
        tool = inner
    elif tool.get("type", "custom") not in ("function", "custom") or (
        "parameters" not in tool and "input_schema" not in tool
    ):
        return []
    if not isinstance(tool["name"], str) or not tool["name"]:
        raise UnusableRequest(f"A tool needs a name, not {tool['name']!r:.50}.")
    function: dict[str, Any] = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get("parameters") or tool.get("input_schema") or {},
    }
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return [{"type": "function", "function": function}]


# -------------------------------------------------------------------------------------------------------------- errors


def error_status(error: BaseException) -> int:
    """Return the HTTP status for an error: the SDKs derive the exception from it, and whether to retry."""
    match error:
        case UnusableRequest() | OverlongPromptError() | BadRequestError():
            return 400
        case AuthenticationError():
            return 401
        case RateLimitError():
            return 429
        case _:
            return 500


def text_of_error(error: BaseException) -> str:
    """Return the message of an error, or its class if it has none."""
    return str(error) or type(error).__name__


# -------------------------------------------------------------------------------------------------- server-sent events

DONE = b"data: [DONE]\n\n"
"""End of a stream in OpenAI's older APIs."""


def framed(data: bytes, name: str | None = None) -> bytes:
    """Return one server-sent event with this data on one line."""
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, data)


def event(data: Any, name: str | None = None) -> bytes:
    """Return one server-sent event with a JSON value."""
    return framed(json.dumps(data).encode(), name)

"""`ScriptedClient`: a model client whose replies are given in advance; `run` plays an environment with it."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from verifiers.clients.client import Client
from verifiers.configs import ClientConfig
from verifiers.envs.environment import Environment
from verifiers.errors import AuthorError
from verifiers.messages import content_text, normalize_messages
from verifiers.types import (
    Messages,
    Response,
    ResponseMessage,
    ResponseTokens,
    RolloutOutput,
    SamplingArgs,
    Tool,
    ToolCall,
    Usage,
)

LOGPROB = -0.25
"""The logprob of every scripted token."""

_call_numbers = count()


class ScriptExhausted(AuthorError, AssertionError):
    """A scripted client received more requests than it has replies."""


class Request(NamedTuple):
    """One request as the client received it."""

    prompt: Messages
    model: str
    sampling_args: SamplingArgs
    tools: list[Tool] | None
    state: Any
    """The rollout's state; None outside of a rollout."""


@dataclass(frozen=True)
class Reply:
    """A reply with all its properties. Plain text is the short form of `Reply(text)`."""

    text: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    reasoning: str | None = None
    finish_reason: str | None = None
    """By default "tool_calls" if there are some, else "stop"; "length" marks the reply as truncated."""
    usage: Usage | None = None
    """By default the counts of the client's own tokens (bytes)."""
    tokens: ResponseTokens | None = None
    """Token ids of the reply. By default, the ids of a client with `token_ids=True`."""
    after: asyncio.Event | None = None
    """The reply is returned once this event is set. If it is never set, the model does not respond."""


Script = (
    str
    | Reply
    | Response
    | ToolCall
    | Sequence[ToolCall]
    | BaseException
    | type[BaseException]
    | Callable[[Messages], Any]
)
"""An entry of a script. A callable receives the prompt and returns, or awaits, any other entry."""


def call(name: str, *, id: str | None = None, **arguments: Any) -> ToolCall:
    """Return a tool call with these arguments. For text that is not valid JSON use `ToolCall(...)` itself."""
    return ToolCall(
        id=id or f"call_{next(_call_numbers)}", name=name, arguments=json.dumps(arguments)
    )


class ScriptedClient(Client[None, Messages, Response, Tool]):
    """Returns the replies of a script, in the order of the requests. Can be used in place of any client.

    `replies` is a list of replies, or one callable that replies to every request. After the last reply, `then` is
    returned if it is given; otherwise ScriptExhausted is raised. With `token_ids=True` responses carry token ids: the
    UTF-8 bytes of the conversation, so that the ids of a later turn begin with those of the turns before it.
    """

    def __init__(
        self,
        replies: Iterable[Script] | Callable[[Messages], Any] = (),
        *,
        then: Script | None = None,
        token_ids: bool = False,
    ) -> None:
        super().__init__(None)
        if isinstance(replies, str):
            raise TypeError(f"replies must be a list of replies; got the text {replies!r}.")
        self._replies: list[Script] = [] if callable(replies) else list(replies)
        self._then: Script | None = replies if callable(replies) else then
        self._token_ids = token_ids
        self.requests: list[Request] = []
        """Every request, in the order of arrival."""
        self._waiting: list[tuple[int, asyncio.Event]] = []
        self.in_flight = 0
        """Number of requests in progress."""
        self.most_in_flight = 0
        """Maximum number of requests that were in progress at once."""

    @property
    def prompts(self) -> list[Messages]:
        """The prompt of every request."""
        return [request.prompt for request in self.requests]

    @property
    def replies_left(self) -> int:
        """Number of replies that were not used."""
        return max(0, len(self._replies) - len(self.requests))

    async def asked(self, count: int = 1) -> None:
        """Wait until `count` requests have arrived, to cancel or stop at that moment."""
        if len(self.requests) < count:
            arrived = asyncio.Event()
            self._waiting.append((count, arrived))
            await arrived.wait()

    def _announce(self) -> None:
        for wanted, arrived in self._waiting:
            if len(self.requests) >= wanted:
                arrived.set()

    def _next_reply(self) -> Script:
        requested = len(self.requests)
        if requested <= len(self._replies):
            return self._replies[requested - 1]
        if self._then is None:
            raise ScriptExhausted(
                f"The model received {requested} requests, but its script has {len(self._replies)} replies. "
                "Add replies, or set `then=` to a reply for all further requests."
            )
        return self._then

    async def get_native_response(
        self,
        prompt: Messages,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Tool] | None = None,
        **kwargs: Any,
    ) -> Response:
        """Return the next reply of the script."""
        self.requests.append(
            Request(list(prompt), model, dict(sampling_args), tools, kwargs.get("state"))
        )
        self._announce()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._response(self._next_reply(), prompt, model)
        finally:
            self.in_flight -= 1

    async def _response(self, script: Any, prompt: Messages, model: str) -> Response:
        # Every real client yields to the event loop; a script that never does would hide races.
        await asyncio.sleep(0)
        while callable(script) and not isinstance(script, type):
            script = script(list(prompt))
            if inspect.isawaitable(script):
                script = await script
        if isinstance(script, BaseException) or (
            isinstance(script, type) and issubclass(script, BaseException)
        ):
            raise script
        if isinstance(script, Response):
            return script
        reply = _reply(script)
        if reply.after is not None:
            await reply.after.wait()
        return self._as_response(reply, prompt, model)

    def _as_response(self, reply: Reply, prompt: Messages, model: str) -> Response:
        tokens = reply.tokens or _tokens(prompt, reply)
        usage = reply.usage or Usage(
            prompt_tokens=len(tokens.prompt_ids),
            completion_tokens=len(tokens.completion_ids),
            total_tokens=len(tokens.prompt_ids) + len(tokens.completion_ids),
        )
        finish_reason = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
        fields: dict[str, Any] = {
            "content": reply.text,
            "finish_reason": finish_reason,
            "is_truncated": finish_reason == "length",
        }
        if reply.reasoning is not None:
            fields["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            fields["tool_calls"] = list(reply.tool_calls)
        if self._token_ids or reply.tokens is not None:
            fields["tokens"] = tokens
        number = len(self.requests)
        return Response(
            id=f"scripted-{number}",
            created=number,
            model=model,
            usage=usage,
            message=ResponseMessage(**fields),
        )

    def setup_client(self, config: ClientConfig) -> None:
        """Do nothing: there is no connection."""

    async def to_native_tool(self, tool: Tool) -> Tool:
        """Return a tool unchanged."""
        return tool

    async def to_native_prompt(self, messages: Messages) -> tuple[Messages, dict[str, Any]]:
        """Return prompts unchanged."""
        return normalize_messages(messages, field_name="prompt"), {}

    async def raise_from_native_response(self, response: Response) -> None:
        """Accept any reply, including an empty one."""

    async def from_native_response(self, response: Response) -> Response:
        """Return a reply unchanged: it is a response already."""
        return response

    async def close(self) -> None:
        """Do nothing: there is no connection."""


def _reply(script: Any) -> Reply:
    if isinstance(script, Reply):
        return script
    if isinstance(script, str):
        return Reply(script)
    if isinstance(script, ToolCall):
        return Reply(tool_calls=[script])
    if isinstance(script, list | tuple) and all(isinstance(one, ToolCall) for one in script):
        return Reply(tool_calls=script)
    raise TypeError(
        f"A scripted reply must be text, a Reply, tool calls, an exception or a callable; got {script!r:.200}"
    )


def _rendered(messages: Messages) -> str:
    """Return a conversation as text; its bytes are the token ids."""
    return "".join(f"<{m['role']}>{_body(m)}</>" for m in messages)


def _body(message: Any) -> str:
    calls = "".join(f"[{c['name']} {c['arguments']}]" for c in message.get("tool_calls") or ())
    return f"{content_text(message.get('content'))}{calls}"


def _tokens(prompt: Messages, reply: Reply) -> ResponseTokens:
    said = _body({"content": reply.text, "tool_calls": reply.tool_calls})
    prompt_ids = list(f"{_rendered(prompt)}<assistant>".encode())
    completion_ids = list(f"{said}</>".encode())
    return ResponseTokens(
        prompt_ids=prompt_ids,
        prompt_mask=[0] * len(prompt_ids),
        completion_ids=completion_ids,
        completion_mask=[1] * len(completion_ids),
        completion_logprobs=[LOGPROB] * len(completion_ids),
    )


async def run(
    env: Environment, client: Any, *, n: int = 1, rollouts_per_example: int = 1, **options: Any
) -> list[RolloutOutput]:
    """Play the first `n` evaluation rows and return their outputs in order.

    Plays one rollout at a time, so that scripted replies reach the rollouts in order. `options` are those of
    `Environment.evaluate`, such as `max_concurrent`.
    """
    results = await env.evaluate(
        client,
        options.pop("model", "scripted"),
        num_examples=n,
        rollouts_per_example=rollouts_per_example,
        **{"max_concurrent": 1, **options},
    )
    return results.outputs

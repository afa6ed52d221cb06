"""`ScriptedClient`: a model client whose replies are written down in advance."""

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
    """A scripted client was asked more often than it has replies."""


class Request(NamedTuple):
    """One request as the client received it."""

    prompt: Messages
    model: str
    sampling_args: SamplingArgs
    tools: list[Tool] | None
    state: Any
    """The rollout's state, None outside of a rollout."""


@dataclass(frozen=True)
class Reply:
    """A reply with everything that can be said about it; plain text is the short form of `Reply(text)`."""

    text: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    reasoning: str | None = None
    finish_reason: str | None = None
    """By default "tool_calls" when there are some, else "stop"; "length" marks the reply as truncated."""
    usage: Usage | None = None
    """By default the counts of the client's own tokens (bytes)."""
    tokens: ResponseTokens | None = None
    """Token ids of the reply; by default those of the client when it was made with `token_ids=True`."""
    after: asyncio.Event | None = None
    """The reply is given once this is set. Never set, it is a model that does not answer."""


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
"""What may stand in a script. A callable is given the prompt and returns, or awaits, any of the others."""


def call(name: str, *, id: str | None = None, **arguments: Any) -> ToolCall:
    """A tool call with these arguments; text that is not valid JSON can be given with `ToolCall(...)` itself."""
    return ToolCall(
        id=id or f"call_{next(_call_numbers)}", name=name, arguments=json.dumps(arguments)
    )


class ScriptedClient(Client[None, Messages, Response, Tool]):
    """Answers with the replies of a script, in the order of the requests. Accepted wherever a client is.

    `replies` is a list of replies, or one callable that answers every request. After the last reply `then` is the
    answer, if given; otherwise ScriptExhausted is raised. With `token_ids=True` responses carry token ids: the UTF-8
    bytes of the conversation, so the ids of a later turn begin with those of the turns before it.
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
            raise TypeError(f"replies is a list of replies; got the text {replies!r}.")
        self._replies: list[Script] = [] if callable(replies) else list(replies)
        self._then: Script | None = replies if callable(replies) else then
        self._token_ids = token_ids
        self.requests: list[Request] = []
        """Every request, in the order of arrival."""
        self._waiting: list[tuple[int, asyncio.Event]] = []
        self.in_flight = 0
        """Requests being answered."""
        self.most_in_flight = 0
        """Most requests that were being answered at once."""

    @property
    def prompts(self) -> list[Messages]:
        """The prompt of every request."""
        return [request.prompt for request in self.requests]

    @property
    def replies_left(self) -> int:
        """How many replies were not needed."""
        return max(0, len(self._replies) - len(self.requests))

    async def asked(self, count: int = 1) -> None:
        """Wait until `count` requests have arrived in all, to cancel or stop something at that very moment."""
        if len(self.requests) < count:
            arrived = asyncio.Event()
            self._waiting.append((count, arrived))
            await arrived.wait()

    def _announce(self) -> None:
        for wanted, arrived in self._waiting:
            if len(self.requests) >= wanted:
                arrived.set()

    def _next_reply(self) -> Script:
        asked = len(self.requests)
        if asked <= len(self._replies):
            return self._replies[asked - 1]
        if self._then is None:
            raise ScriptExhausted(
                f"The model was asked {asked} times, but its script has {len(self._replies)} replies. "
                "Add replies, or say with `then=` what it answers from there on."
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
        """The next reply of the script."""
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
        # Every real client yields to the event loop; a script that does not would hide races.
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
        """There is nothing to connect to."""

    async def to_native_tool(self, tool: Tool) -> Tool:
        """Tools are recorded as they are."""
        return tool

    async def to_native_prompt(self, messages: Messages) -> tuple[Messages, dict[str, Any]]:
        """Prompts are recorded as they are."""
        return normalize_messages(messages, field_name="prompt"), {}

    async def raise_from_native_response(self, response: Response) -> None:
        """A script may say anything, nothing included."""

    async def from_native_response(self, response: Response) -> Response:
        """Replies are responses already."""
        return response

    async def close(self) -> None:
        """There is nothing to close."""


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
        f"A scripted reply is text, a Reply, tool calls, an exception or a callable; got {script!r:.200}"
    )


def _rendered(messages: Messages) -> str:
    """A conversation as the text whose bytes are its token ids."""
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
    """Outputs of the first `n` evaluation rows, in their order.

    One rollout at a time, so that scripted replies meet the rollouts in order; `max_concurrent` and the other options
    of `Environment.evaluate` may be given.
    """
    results = await env.evaluate(
        client,
        options.pop("model", "scripted"),
        num_examples=n,
        rollouts_per_example=rollouts_per_example,
        **{"max_concurrent": 1, **options},
    )
    return results.outputs

"""The contract of model clients, checked against the endpoint of a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from verifiers.clients import resolve_client
from verifiers.clients.client import Client
from verifiers.concurrency import run_sync
from verifiers.testing.environment_contract import ContractBroken
from verifiers.types import Response, SamplingArgs, Tool, UserMessage

PATIENCE_S = 120.0
"""Maximum time for the endpoint's responses to one check, in seconds."""
_FINISH_REASONS = ("stop", "length", "tool_calls", None)


@dataclass(frozen=True)
class _Subject:
    client: Client[Any, Any, Any, Any]
    model: str
    sampling_args: SamplingArgs

    async def ask(self, text: str = "Say hello.", **options: Any) -> Response:
        return await self.client.get_response(
            [UserMessage(content=text)], self.model, self.sampling_args, **options
        )


def check_client(
    client: Any, model: str = "scripted", sampling_args: SamplingArgs | None = None
) -> None:
    """Raise ContractBroken if a client breaks its contract. Sends about ten short questions to its endpoint."""
    problems = run_sync(lambda: client_problems(client, model, sampling_args))
    if problems:
        raise ContractBroken(problems)


async def client_problems(
    client: Any, model: str = "scripted", sampling_args: SamplingArgs | None = None
) -> list[str]:
    """Return the problems that `check_client` raises, as a list of sentences; empty if there are none."""
    subject = _Subject(resolve_client(client), model, sampling_args or {"max_tokens": 8})
    problems: list[str] = []
    for promise in PROMISES:
        try:
            async with asyncio.timeout(PATIENCE_S):
                problems += [sentence async for sentence in promise(subject)]
        except TimeoutError:
            problems.append(f"The endpoint did not respond within {PATIENCE_S:g} s.")
        except Exception as error:  # noqa: BLE001 - a client under check may raise anything
            problems.append(f"{type(error).__name__} was raised: {error}")
        if problems:
            break  # later checks would repeat the same problem
    return problems


async def _answers_are_responses(subject: _Subject) -> AsyncIterator[str]:
    response = await subject.ask()
    if not isinstance(response, Response):
        yield f"get_response must return a vf.Response; it returned a {type(response).__name__}."
        return
    message = response.message
    if message.content is not None and not isinstance(message.content, str | list):
        yield f"The content of a response must be text; it is a {type(message.content).__name__}."
    if message.finish_reason not in _FINISH_REASONS:
        yield f"finish_reason must be one of {_FINISH_REASONS}; it is {message.finish_reason!r}."
    usage = response.usage
    if usage is not None and usage.total_tokens < usage.prompt_tokens + usage.completion_tokens:
        yield f"The usage does not add up: {usage!r}"
    tokens = message.tokens
    if tokens is not None:
        lengths = {
            len(tokens.completion_ids),
            len(tokens.completion_mask),
            len(tokens.completion_logprobs),
        }
        if len(lengths) > 1 or len(tokens.prompt_ids) != len(tokens.prompt_mask):
            yield f"Token ids, masks and logprobs must have equal lengths; they have {sorted(lengths)}."


async def _arguments_stay_as_they_are(subject: _Subject) -> AsyncIterator[str]:
    prompt = [{"role": "user", "content": "Say hello."}]
    before = deepcopy((prompt, subject.sampling_args))
    await subject.client.get_response(prompt, subject.model, subject.sampling_args)  # type: ignore[arg-type]  # authors pass plain dicts
    if (prompt, subject.sampling_args) != before:
        yield "get_response changed the prompt or the sampling arguments that it received."


async def _tools_are_accepted(subject: _Subject) -> AsyncIterator[str]:
    parameters: dict[str, object] = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    }
    tool = Tool(name="echo", description="Says it again.", parameters=parameters)
    response = await subject.ask(tools=[tool])
    for call in response.message.tool_calls or []:
        if not isinstance(call.arguments, str):
            yield f"The arguments of a tool call must be JSON text; they are {call.arguments!r:.100}."


async def _many_requests_at_once(subject: _Subject) -> AsyncIterator[str]:
    async with asyncio.TaskGroup() as tasks:
        asking = [tasks.create_task(subject.ask(f"Say {number}.")) for number in range(6)]
    responses = [task.result() for task in asking]
    if any(one is other for one in responses for other in responses if one is not other):
        yield "Concurrent requests returned the same response object."


async def _a_cancelled_request_ends(subject: _Subject) -> AsyncIterator[str]:
    asking = asyncio.ensure_future(subject.ask())
    await asyncio.sleep(0)
    asking.cancel()
    [result] = await asyncio.gather(asking, return_exceptions=True)
    if not isinstance(result, asyncio.CancelledError | Response):
        yield f"A cancelled request must raise CancelledError; it returned {result!r:.150}."
    await subject.ask()


async def _closing_twice_is_harmless(subject: _Subject) -> AsyncIterator[str]:
    await subject.client.close()
    await subject.client.close()
    await subject.ask()
    await subject.client.close()
    return
    yield  # an asynchronous generator without items: this check reports its problem by raising


PROMISES: tuple[Callable[[_Subject], AsyncIterator[str]], ...] = (
    _answers_are_responses,
    _arguments_stay_as_they_are,
    _tools_are_accepted,
    _many_requests_at_once,
    _a_cancelled_request_ends,
    _closing_twice_is_harmless,
)

"""Rollouts of `RLMEnv`, in real sandboxes or with a worker whose replies are written down."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import verifiers as vf
from verifiers.envs.experimental.rlm_env import RLMEnv, RLMExecResult
from verifiers.testing import ScriptedClient, call

QUESTION = "How many lines?"
SMALL: dict[str, Any] = {"sandbox_memory_gb": 0.25, "sandbox_disk_size_gb": 0.05}


def row(**info: Any) -> dict[str, Any]:
    return {
        "prompt": [{"role": "user", "content": QUESTION}],
        "answer": "42",
        "example_id": 0,
        "info": info,
    }


def make(cls: type[RLMEnv] = RLMEnv, **options: Any) -> RLMEnv:
    options.setdefault("repl_language", "python")
    return cls(**{"dataset": [row()], **SMALL, **options})


def code(*pieces: str, language: str = "python") -> list[Any]:
    """Replies of a model that runs these pieces of code."""
    return [call(f"call_{language}_repl", code=piece) for piece in pieces]


def done(content: str = "42") -> Any:
    return code(f"answer['content'] = {content!r}; answer['ready'] = True")[0]


def root_and_subs(
    root: Iterable[Any], sub: Callable[[Any], Any] | str = "sub"
) -> Callable[[Any], Any]:
    """A model that plays the root from a script and answers as a sub-LLM by `sub`."""
    replies = iter(root)

    def reply(prompt: Any) -> Any:
        if prompt[0]["role"] != "system":
            return next(replies)
        return sub(prompt) if callable(sub) else sub

    return reply


async def play(
    env: RLMEnv, replies: Any, *, model: str = "root-model", **info: Any
) -> tuple[vf.State, ScriptedClient]:
    """Play one rollout; return its state and the client."""
    client = replies if isinstance(replies, ScriptedClient) else ScriptedClient(replies)
    async with asyncio.timeout(100):
        state = await env.rollout(row(**info), client, model, {"temperature": 0.5})
    return state, client


@asynccontextmanager
async def opened(env: RLMEnv) -> AsyncIterator[RLMEnv]:
    """Close the environment at the end; nothing may be left of its rollouts."""
    try:
        yield env
    finally:
        left = (set(env._executor.active_sandboxes), dict(env.active_rollouts))
        async with env:
            pass
    assert left == (set(), {})


def results(state: vf.State) -> list[Any]:
    """What the model saw of its tool calls."""
    return [m["content"] for m in state["completion"] if m["role"] == "tool"]


OK: dict[str, Any] = {"status": "ok", "stdout": "", "stderr": "", "result": None}
READY = {**OK, "answer": {"ready": True, "content": "42"}}


def with_worker(
    env: RLMEnv, *replies: Any, during: Callable[[Any], Awaitable[object]] | None = None
) -> list[dict[str, Any]]:
    """Replace the sandbox by a worker that gives these replies: dicts, raw text, or exceptions.

    `during` runs in each execution, as code would. Returns the list of the payloads that it receives.
    """
    payloads: list[dict[str, Any]] = []
    left = list(replies)
    executor: Any = env._executor

    async def nothing(state: Any) -> None:
        pass

    async def execute(payload: dict[str, Any], state: Any) -> RLMExecResult:
        payloads.append(payload)
        if during is not None:
            await during(state)
        reply = left.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, str):
            return RLMExecResult(reply, "", 0)
        whole = {"execution_count": len(payloads), "seq": payload["seq"], **reply}
        return RLMExecResult(json.dumps(whole), "", 0)

    async def read_answer(state: Any) -> str:
        return "so far"

    executor.prepare_filesystem = executor.setup = nothing
    executor.execute, executor.read_answer = execute, read_answer
    return payloads


def tool_call(env: RLMEnv, name: Any, args: Any = (), kwargs: Any = None) -> Callable[[Any], Any]:
    """A request of code to `/rlm/tools`. Its status and body are appended to `state["seen"]`."""
    body = {"tool_name": name, "args": list(args) if isinstance(args, tuple) else args}
    body["kwargs"] = {} if kwargs is None else kwargs

    async def send(state: Any) -> None:
        answer = await env._in_rollout(state["rollout_id"], env.answer_tool_request, body)
        state.setdefault("seen", []).append(answer)

    return send

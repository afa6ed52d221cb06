"""`OpenCodeRLMEnv`: an agent whose sub-LLMs are answered beside the rollout."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from open_code_sandbox import ROWS, SMALL, WithProgram

import verifiers as vf
from verifiers.envs.experimental.opencode_env import OpenCodeEnv
from verifiers.envs.experimental.opencode_rlm_env import OpenCodeRLMEnv, OpenCodeRLMMonitorRubric
from verifiers.errors import ModelError
from verifiers.testing import Reply, ScriptedClient, call

STUB = "#!/bin/sh\n"


class Played(WithProgram, OpenCodeRLMEnv):
    """The image has the programs of the plugin, and the plugin itself."""

    async def post_sandbox_setup(self, state: Any) -> None:
        await super().post_sandbox_setup(state)
        sandbox_id = state["sandbox_id"]
        for name in ("curl", "git", "unzip", "jq", "bun"):
            await self.put_program(sandbox_id, name, STUB)
        await self.upload_bundle(sandbox_id, {"package.json": "{}"}, self.plugin_install_path)


def usage(prompt_tokens: int, completion_tokens: int) -> vf.Usage:
    total = prompt_tokens + completion_tokens
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    return vf.Usage(reasoning_tokens=0, total_tokens=total, **counts)


def is_sub(prompt: Any) -> bool:
    return prompt[-1]["content"].startswith("part ")


PARTS = ["part 0", "part 1", "part 2"]


async def play(env: OpenCodeRLMEnv, model: Any) -> tuple[vf.RolloutOutput, ScriptedClient]:
    client = ScriptedClient(model)
    async with env:
        results = await env.evaluate(
            client, "model-1", state_columns=["trajectory", "agent_logs", "usage"]
        )
    [output] = results["outputs"]
    return output, client


@pytest.mark.parametrize("in_trajectory", [False, True])
async def test_sub_llms_are_answered_at_once_and_counted_apart(in_trajectory: bool) -> None:
    all_asked = asyncio.Barrier(len(PARTS))

    async def model(prompt: Any) -> Any:
        if is_sub(prompt):
            async with asyncio.timeout(30):
                await all_asked.wait()  # no sub-LLM is answered before all have asked
            return Reply(f"{prompt[-1]['content']}!", usage=usage(10, 3))
        if prompt[-1]["role"] == "user":
            return Reply(tool_calls=[call("subagents", prompts=PARTS)], usage=usage(100, 20))
        return Reply("Done.", usage=usage(200, 5))

    output, client = await play(
        Played(
            dataset=ROWS,
            system_prompt="Be brief.",
            sub_model="small",
            include_sub_llm_in_trajectory=in_trajectory,
            max_turns=3,
            **SMALL,
        ),
        model,
    )

    assert (output["error"], output["stop_condition"]) == (None, "agent_completed")
    assert output["agent_logs"] == "offers bash subagents\nsays Done."
    assert sorted(r.model for r in client.requests) == ["model-1", "model-1", *["small"] * 3]
    assert [tool.name for r in client.requests if r.model == "small" for tool in r.tools or []] == (
        ["bash"] * 3
    )
    metrics = output["metrics"]
    assert [
        metrics[f"main_{name}"] for name in ("turns", "prompt_tokens", "completion_tokens")
    ] == [
        2.0,
        300.0,
        25.0,
    ]
    assert [
        metrics[f"sub_llm_{name}"] for name in ("turns", "prompt_tokens", "completion_tokens")
    ] == [3.0, 30.0, 9.0]
    assert [message["role"] for message in output["prompt"]] == ["system", "user"]
    assert [message["role"] for message in output["completion"]] == [
        "assistant",
        "tool",
        "assistant",
    ]
    assert json.loads(output["completion"][1]["content"]) == [f"{part}!" for part in PARTS]
    extras = [step["extras"] for step in output["trajectory"]]
    sub = {"is_sub_llm_call": True, "agent_role": "model-1"}
    assert extras == ([{}, sub, sub, sub, {}] if in_trajectory else [{}, {}])


async def test_a_sub_llm_that_fails_is_an_answer_to_the_agent_and_no_error_of_the_rollout() -> None:
    def model(prompt: Any) -> Any:
        if is_sub(prompt):
            return ModelError("overloaded")
        return call("subagents", prompts=PARTS[:1]) if len(prompt) == 1 else "Done."

    output, _ = await play(Played(dataset=ROWS, system_prompt=None, **SMALL), model)
    assert (output["error"], output["metrics"]["sub_llm_turns"]) == (None, 0.0)
    assert output["completion"][1]["content"] == '["failed: 500"]'


# -------------------------------------------------------------------------------------------- command and variables


def test_the_command_installs_the_plugin_before_it_runs_opencode() -> None:
    env = OpenCodeRLMEnv(dataset=ROWS)
    position = -1
    for text in (
        "apt-get install -y curl git unzip jq",
        "bun.sh/install",
        "git clone --branch main https://github.com/snimu/oc.git /tmp/opencode-rlm",
        "cd /tmp/opencode-rlm && bun install",
        "cat > ~/.config/opencode/opencode.json << EOFCONFIG",
        "opencode run",
    ):
        assert env.run_command.find(text) > position, text
        position = env.run_command.find(text)
    own = OpenCodeRLMEnv(
        dataset=ROWS, plugin_repo="a/b", plugin_branch="next", plugin_install_path="/p"
    )
    assert "git clone --branch next https://github.com/a/b.git /p" in own.run_command
    assert json.loads(own.build_opencode_config())["plugin"] == ["file:///p"]
    assert OpenCodeRLMEnv.__mro__[1] is OpenCodeEnv
    assert OpenCodeRLMEnv.DEFAULT_PLUGIN_INSTALL_PATH == "/tmp/opencode-rlm"


async def test_the_plugin_learns_its_limits_and_no_model_from_variables() -> None:
    env = OpenCodeRLMEnv(dataset=ROWS, sub_model="small", sub_llm_max_turns=3, sub_timeout_ms=4)
    state: Any = {"interception_base_url": "http://x/v1", "model": "m"}
    variables = await env.build_env_vars(state)
    rlm = {name: value for name, value in variables.items() if name.startswith("RLM_")}
    assert rlm == {
        "RLM_SUBAGENT_VIA_TOOL_LOOP": "true",
        "RLM_SUB_MAX_TURNS": "3",
        "RLM_SUB_TIMEOUT": "4",
    }


# ------------------------------------------------------------------------------------- hooks with plain values


async def test_the_counters_are_added_to_the_state_of_the_base() -> None:
    env = OpenCodeRLMEnv(dataset=ROWS)
    state: Any = {"sub_llm_turns": 7}
    with mock.patch.object(OpenCodeEnv, "setup_state", mock.AsyncMock()) as base:
        await env.setup_state(state)
    base.assert_awaited_once_with(state)
    assert state == {
        "sub_llm_turns": 7,
        "sub_llm_prompt_tokens": 0,
        "sub_llm_completion_tokens": 0,
        "_sub_llm_tasks": set(),
    }


@pytest.mark.parametrize(
    ("intercept", "is_sub_llm"),
    [
        ({"headers": {"x-rlm-role": "sub"}}, True),
        ({"headers": {"x-rlm-role": "main"}, "model": "sub"}, False),
        ({"headers": {}}, False),
        ({}, False),
    ],
)
def test_only_the_header_makes_a_request_one_of_a_sub_llm(
    intercept: Mapping[str, Any], is_sub_llm: bool
) -> None:
    assert OpenCodeRLMEnv._is_sub_llm_request(intercept) is is_sub_llm


def response(used: vf.Usage | None = None) -> vf.Response:
    message = vf.ResponseMessage(content="ok", finish_reason="stop")
    return vf.Response(id="r", created=0, model="m", message=message, usage=used)


def test_tokens_of_sub_llms_add_up_in_a_plain_state() -> None:
    env = OpenCodeRLMEnv(dataset=ROWS)
    assert env._extract_token_counts(response()) == (0, 0)
    assert env._extract_token_counts(response(usage(3, 4))) == (3, 4)
    state: dict[str, Any] = {}
    for used in (usage(3, 4), None, usage(1, 1)):
        env._update_sub_metrics(state, response(used))
    assert state == {
        "sub_llm_turns": 3,
        "sub_llm_prompt_tokens": 4,
        "sub_llm_completion_tokens": 5,
    }


async def test_metrics_are_readable_from_a_plain_state() -> None:
    rubric = OpenCodeRLMMonitorRubric()
    steps = [
        {"response": response(usage(1, 2)), "extras": {}},
        {"response": response(usage(10, 20)), "extras": {"is_sub_llm_call": True}},
        {"response": response(usage(100, 200)), "extras": {"is_sub_llm_call": False}},
        {"response": response()},
    ]
    state = {"trajectory": steps, "sub_llm_turns": 2, "sub_llm_prompt_tokens": 3}
    found = {f.__name__: await f(state) for f in rubric.funcs}  # type: ignore[misc]
    assert found == {
        "main_turns": 3.0,
        "main_prompt_tokens": 101.0,
        "main_completion_tokens": 202.0,
        "sub_llm_turns": 2.0,
        "sub_llm_prompt_tokens": 3.0,
        "sub_llm_completion_tokens": 0.0,
    }
    empty = [await f({}) for f in rubric.funcs]  # type: ignore[misc]
    assert empty == [0.0] * 6
    assert all(type(value) is float for value in [*empty, *found.values()])


async def test_requests_that_still_run_are_cancelled_in_a_cleanup_of_priority_1() -> None:
    env = OpenCodeRLMEnv(dataset=ROWS)
    task = asyncio.ensure_future(asyncio.Event().wait())
    await env.cancel_sub_llm_tasks({"_sub_llm_tasks": {task}})  # type: ignore[arg-type]
    assert task.cancelled()
    await env.cancel_sub_llm_tasks({})  # type: ignore[arg-type]
    assert OpenCodeRLMEnv.cancel_sub_llm_tasks.cleanup_priority == 1  # type: ignore[attr-defined]


async def test_the_prompt_of_a_rollout_is_that_of_its_first_main_step() -> None:
    env = OpenCodeRLMEnv(dataset=ROWS)
    state: Any = {
        "trajectory": [{"extras": {"is_sub_llm_call": True}}],
        "prompt": [],
        "trajectory_id": "t",
    }
    first = [vf.UserMessage(content="main")]
    await env.add_model_response(state, first, response())
    await env.add_model_response(state, [vf.UserMessage(content="later")], response())
    assert state["prompt"] == first
    assert len(state["trajectory"]) == 3


async def test_a_request_is_answered_with_the_tools_it_offers() -> None:
    env = OpenCodeRLMEnv(dataset=ROWS, sub_model="small", include_sub_llm_in_trajectory=True)
    client = ScriptedClient([Reply("sub answer", usage=usage(3, 4))])
    state = await env.init_state(env.get_dataset()[0], client, "model-1")
    parameters = {"type": "object", "properties": {}}
    intercept = {
        "messages": [{"role": "user", "content": "part"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": parameters},
            }
        ],
        "model": "role",
        "stream": False,
        "headers": {"x-rlm-role": "sub"},
        "response_future": asyncio.get_running_loop().create_future(),
    }
    await env._handle_sub_llm_request(state, "req_1", intercept)
    answered = await intercept["response_future"]
    assert answered.message.content == "sub answer"
    [request] = client.requests
    assert ([tool.name for tool in request.tools or []], request.model) == (["f"], "small")
    [step] = state["trajectory"]
    assert step["extras"] == {"is_sub_llm_call": True, "agent_role": "role"}
    assert step["trajectory_id"] == state["trajectory_id"]
    assert [message["content"] for message in [*step["prompt"], *step["completion"]]] == [
        "part",
        "sub answer",
    ]


@pytest.mark.parametrize("how", ["server", "method"])
async def test_requests_of_a_callers_own_server_are_told_apart(how: str) -> None:
    """A server that has only `intercepts`, a replaced poll, and a plain state."""
    env = OpenCodeRLMEnv(dataset=ROWS)
    released = asyncio.Event()
    handled: list[str] = []

    async def handle(state: Any, request_id: str, intercept: Any) -> None:
        await released.wait()
        handled.append(request_id)

    messages = [{"role": "user", "content": "main"}]
    server = mock.Mock(
        intercepts={
            "sub": {"messages": [], "tools": [], "headers": {"x-rlm-role": "sub"}},
            "main": {"messages": messages, "tools": [], "headers": {}},
        }
    )
    if how == "server":
        env._interception_server = server
    else:
        env._require_interception_server = lambda: server  # type: ignore[method-assign]
    env._handle_sub_llm_request = handle  # type: ignore[method-assign]
    polled = mock.AsyncMock(side_effect=["sub", "main", None])
    env._poll_next_request = polled  # type: ignore[method-assign]
    state: Any = {"trajectory": [], "_sub_llm_tasks": set(), "model": "m"}

    assert await env.get_prompt_messages(state) == messages
    assert (state["current_request_id"], handled) == ("main", [])
    ending = asyncio.ensure_future(env.get_prompt_messages(state))
    released.set()
    assert await ending == []  # the agent has ended, and its sub-LLMs have been answered
    assert (handled, state["_sub_llm_tasks"]) == (["sub"], set())

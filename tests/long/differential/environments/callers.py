"""Calls of trainers and scripts: `run_rollout`, `run_group`, `generate`, `rollout`; rubrics and tools as objects."""

from __future__ import annotations

import os
from typing import Any

from datasets import Dataset

import verifiers as vf
from differential.cases import call, calls, case
from verifiers.clients import resolve_client
from verifiers.utils.save_utils import state_to_output, states_to_outputs


def exact(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def single(**options: Any) -> vf.Environment:
    rows = [{"question": f"Say {n}.", "answer": str(n), "info": {"n": n}} for n in range(2)]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact]), **options
    )


def config() -> vf.ClientConfig:
    return vf.ClientConfig(
        api_base_url=os.environ["SCRIPTED_URL"], api_key_var="SCRIPTED_KEY", max_retries=0
    )


def model() -> str:
    return os.environ["SCRIPTED_MODEL"]


def shown(output: Any) -> dict[str, Any]:
    keys = "example_id reward metrics answer info completion is_completed is_truncated stop_condition token_usage error"
    return {key: output.get(key) for key in keys.split()}


async def rollouts_and_groups(env: Any) -> Any:
    rows = [dict(row) for row in env.get_dataset()]
    one = await env.run_rollout(rows[0], config(), model(), {})
    client = resolve_client(config())
    group = await env.run_group([rows[1], rows[1]], client, model(), {"temperature": 0.5})
    generated = await env.generate(rows, client=client, model=model(), max_concurrent=1)
    state = await env.rollout(rows[0], client, model(), {})
    await env.rubric.score_rollout(state)
    states = [await env.rollout(row, client, model(), {}) for row in rows]
    await env.rubric.score_group(states)
    return {
        "run_rollout": shown(one),
        "run_group": [shown(output) for output in group],
        "generate": [shown(output) for output in generated["outputs"]],
        "rollout": shown(state_to_output(state)),
        "group": [shown(output) for output in states_to_outputs(states)],
        "advantages": [state["advantage"] for state in states],
    }


@case(["0"], probe=rollouts_and_groups)
def called_by_a_trainer() -> vf.Environment:
    return single()


async def state_of_a_rollout(env: Any) -> Any:
    """What a trainer reads of a finished state."""
    [row] = [dict(row) for row in env.get_dataset(n=1)]
    state = await env.rollout(row, resolve_client(config()), model(), {"max_tokens": 9})
    step = state["trajectory"][0]
    return {
        "keys": sorted(
            set(state["trajectory"][0]) & {"prompt", "completion", "response", "tokens"}
        ),
        "prompt": [message.role for message in state["prompt"]],
        "completion": [message.content for message in state["completion"]],
        "step": [step["completion"][0].role, step["response"].usage.completion_tokens],
        "finish": step["response"].message.finish_reason,
        "values": [state["answer"], state["info"], state["model"], state["example_id"]],
        "sampling": state["sampling_args"].get("max_tokens"),
        "done": [state["is_completed"], state["stop_condition"], state["error"]],
        "tools": [tool.name for tool in state["tool_defs"] or []],
    }


@case(["0"], probe=state_of_a_rollout)
def finished_state() -> vf.Environment:
    return single(system_prompt="Say it.")


async def response_of_the_model(env: Any) -> Any:
    [row] = [dict(row) for row in env.get_dataset(n=1)]
    state = await env.init_state(row, resolve_client(config()), model(), {})
    response = await env.get_model_response(state, [vf.UserMessage(content="Say 0.")])
    message = response.message
    return [
        response.model,
        message.content,
        message.finish_reason,
        message.is_truncated,
        message.tool_calls,
        response.usage.prompt_tokens,
    ]


@case(["0"], probe=response_of_the_model)
def model_called_directly() -> vf.Environment:
    return single()


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def tools_called_directly(env: Any) -> Any:
    message = await env.call_tool("double", {"number": 4}, "id")
    env.add_tool(triple)
    names = [tool.name for tool in env.tool_defs]
    env.remove_tool(double)
    return {
        "message": [message.role, message.content, message.tool_call_id],
        "names": names,
        "left": [tool.name for tool in env.tool_defs],
        "map": sorted(env.tool_map),
    }


def triple(number: int) -> int:
    """Triple a number."""
    return 3 * number


@case([calls(call("double", number=2)), "4"], probe=tools_called_directly)
def tools_of_an_environment() -> vf.Environment:
    rows = [{"question": "Double 2.", "answer": "4"}]
    return vf.ToolEnv(
        tools=[double], dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact])
    )


def rubric_names(env: Any) -> Any:
    rubric = vf.Rubric(funcs=[exact], weights=[0.5])
    rubric.add_metric(env_metric)
    group = vf.RubricGroup([rubric, vf.Rubric(funcs=[exact])])
    group.add_reward_func(env_metric, weight=0.25)
    return {
        "rubric": [rubric._get_reward_func_names(), rubric._get_reward_weights()],
        "group": [group._get_reward_func_names(), group._get_reward_weights()],
        "of_env": env.rubric._get_reward_func_names(),
    }


def env_metric(completion: Any) -> float:
    return 1.0


@case(["0"], probe=rubric_names)
def names_and_weights() -> vf.Environment:
    return single()


def messages(env: Any) -> Any:
    """Messages as typed values and as dicts."""
    user = vf.UserMessage(content="a")
    assistant = vf.AssistantMessage(
        content=None, tool_calls=[vf.ToolCall(id="1", name="f", arguments="{}")]
    )
    return {
        "access": [user["role"], user.content, user.get("content"), user.get("missing", "no")],
        "contains": ["content" in user, "missing" in user],
        "calls": [assistant.tool_calls[0].name, assistant["tool_calls"][0]["arguments"]],
        "dump": {k: v for k, v in user.model_dump().items() if v is not None},
        "equal": [user == vf.UserMessage(content="a"), user == vf.UserMessage(content="b")],
        "dict": {k: v for k, v in dict(user).items() if v is not None},
    }


@case(["0"], probe=messages)
def typed_messages_as_values() -> vf.Environment:
    return single()

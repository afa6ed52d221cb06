"""Hooks of environments and rubrics take a plain dict, with only the keys that they need, as the state."""

from collections import UserDict
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import ScriptedClient, call

PROMPT = [{"role": "user", "content": "q"}]
ANSWER = [{"role": "assistant", "content": "a"}]


def step(text: str = "a", **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **fields}
    return {"prompt": PROMPT, "completion": [message], "reward": None, "advantage": None}


def scored_state(**fields: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "completion": ANSWER, "answer": "a", "task": "", "info": {}, **fields}


def is_right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def marks(state: Any, completion: Any) -> float:
    state["mark"] = state.get("mark", 0) + 1
    return 0.5


RUBRICS = {
    "one": lambda: vf.Rubric(funcs=[is_right, marks]),
    "group": lambda: vf.RubricGroup([vf.Rubric(funcs=[is_right]), vf.Rubric(funcs=[marks])]),
    "environments": lambda: (
        vf.EnvGroup([environment(vf.Rubric(funcs=[is_right, marks]))], env_names=["a"]).rubric
    ),
}


class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["heard"] = messages[-1]["content"]
        return [{"role": "user", "content": "more"}]


def environment(rubric: vf.Rubric | None = None, max_turns: int = 2) -> Talk:
    return Talk(
        dataset=[{"question": "q"}], rubric=rubric or vf.Rubric(funcs=[]), max_turns=max_turns
    )


@pytest.mark.parametrize("kind", RUBRICS)
async def test_a_rubric_scores_a_plain_dict_and_writes_into_it(kind: str) -> None:
    state = scored_state(info={"env_id": "a"}, trajectory=[step()])
    await RUBRICS[kind]().score_rollout(state)
    assert (state["reward"], state["mark"]) == (1.5, 1)
    assert {"is_right": 1.0, "marks": 0.5}.items() <= state["metrics"].items()
    assert state["trajectory"][0]["reward"] == 1.5
    assert set(state) == {*scored_state(), "trajectory", "reward", "metrics", "mark"}


@pytest.mark.parametrize("kind", ["one", "group"])
async def test_a_group_of_plain_dicts_gets_advantages(kind: str) -> None:
    states = [scored_state(trajectory=[step()]), scored_state(answer="b"), scored_state()]
    await RUBRICS[kind]().score_group(states)
    assert [state["reward"] for state in states] == [1.5, 0.5, 1.5]
    assert [state["advantage"] for state in states] == pytest.approx([1 / 3, -2 / 3, 1 / 3])
    assert states[0]["trajectory"][0]["advantage"] == states[0]["advantage"]


async def test_a_plain_dict_may_hold_its_row_in_input_and_any_other_key_there() -> None:
    def reads(state: Any, difficulty: int, **kwargs: Any) -> float:
        return float(state["input"]["difficulty"] == difficulty == state["difficulty"])

    row = {"prompt": PROMPT, "answer": "a", "difficulty": 3}
    nested = {"input": row, "completion": ANSWER}
    await vf.Rubric(funcs=[reads, is_right]).score_rollout(nested)
    assert (nested["reward"], nested["input"]) == (2.0, row)
    assert "difficulty" not in nested
    text = scored_state(input="a column")
    column = vf.Rubric(funcs=[lambda state, **_: float(state["input"]["input"] == "a column")])
    await column.score_rollout(text)
    assert (text["reward"], text["input"]) == (1.0, "a column")


async def test_a_rubric_cleans_up_after_a_mapping_of_any_class() -> None:
    class Removes(vf.Rubric):
        @vf.cleanup
        async def remove(self, state: Any) -> None:
            state["seen"] = state.pop("handle")

    state = UserDict(handle=3)
    await vf.RubricGroup([Removes(), vf.Rubric()]).cleanup(state)  # type: ignore[arg-type]  # what is tested
    assert dict(state) == {"seen": 3}


async def test_a_failed_plain_dict_earns_nothing_and_without_scoring_there_is_a_zero() -> None:
    crashed = scored_state(error=vf.SandboxError("gone"))
    await vf.Rubric(funcs=[is_right]).score_rollout(crashed)
    assert crashed["reward"] == 0.0
    plain = scored_state()
    await vf.Rubric(funcs=[is_right]).dummy_score_rollout(plain)
    assert plain["reward"] == 0.0


async def test_stop_conditions_answer_for_a_plain_dict() -> None:
    env = environment()
    held = {
        "has_error": {"error": vf.ModelError("x")},
        "prompt_too_long": {"prompt_too_long": True},
        "max_turns_reached": {"trajectory": [step(), step()]},
        "has_final_env_response": {"final_env_response": ANSWER},
    }
    for name, state in held.items():
        assert await getattr(env, name)(state) is True
        assert await getattr(env, name)({"trajectory": []}) is False
        assert await env.is_completed(state) is True
        assert state["stop_condition"] == name


async def test_the_turns_of_a_plain_dict_are_played_hook_by_hook() -> None:
    env, client = environment(), ScriptedClient(["one", "two"])
    state: dict[str, Any] = {
        **{"prompt": PROMPT, "trajectory": [], "trajectory_id": "t", "client": client},
        **{"model": "m", "sampling_args": {"temperature": 0.5}, "tool_defs": None},
    }
    assert await env.setup_state(state) is state
    for _ in range(2):
        prompt = await env.get_prompt_messages(state)
        response = await env.get_model_response(state, prompt)
        await env.add_model_response(state, prompt, response)
    await env.render_completion(state)
    assert [m["content"] for m in state["completion"]] == ["one", "more", "two"]
    assert state["heard"] == "one"
    assert client.requests[1].sampling_args["temperature"] == 0.5
    assert state["usage_tracker"]["output_tokens"] > 0
    assert env.get_state_usage(state) == dict(state["usage"])


@pytest.mark.parametrize("by_keyword", [False, True])
async def test_a_model_is_asked_for_a_plain_dict_without_its_own_client(by_keyword: bool) -> None:
    client, state = ScriptedClient(then="hi"), {}
    env = environment()
    if by_keyword:
        response = await env.get_model_response(
            state=state, prompt=PROMPT, client=client, model="m"
        )
    else:
        response = await env.get_model_response(state, "text", client, "m", [], {"top_p": 0.5})
    assert response.message.content == "hi"


async def test_tools_are_called_for_a_plain_dict() -> None:
    class Adds(vf.StatefulToolEnv):
        def update_tool_args(
            self, name: str, args: Any, messages: Any, state: Any, **_: Any
        ) -> Any:
            return {**args, "secret": state["secret"]}

    def tell(x: int, secret: str) -> str:
        return secret * x

    env = Adds(dataset=[{"question": "q"}], rubric=vf.Rubric())
    env.add_tool(tell, args_to_skip=["secret"])
    message = vf.AssistantMessage(content="", tool_calls=[call("tell", x=2)])
    state = {"secret": "ab", "trajectory": [{**step(), "completion": [message]}]}
    [answer] = await env.env_response([message], state)
    assert answer["content"] == "abab"
    assert await env.no_tools_called(state) is False
    assert await env.no_tools_called({"trajectory": [step()]}) is True


async def test_hooks_of_an_agent_take_a_plain_dict() -> None:
    env = vf.CliAgentEnv(run_command="run", dataset=[{"question": "q"}], rubric=vf.Rubric())
    variables = await env.build_env_vars({"interception_base_url": "http://h/v1", "model": "m"})  # type: ignore[arg-type]
    assert (variables["OPENAI_BASE_URL"], variables["OPENAI_MODEL"]) == ("http://h/v1", "m")
    assert await env.get_docker_image({}) == env.docker_image
    assert env.get_sandbox_resources({})["timeout_minutes"] > 0
    assert await env.post_sandbox_setup({"sandbox_id": "s"}) is None
    assert await env.post_rollout({"sandbox_id": "s"}) is None  # type: ignore[func-returns-value]
    assert await env.is_completed({"agent_completed": True, "trajectory": []}) is True

    client = ScriptedClient(then="hi")
    state = {"prompt": PROMPT, "trajectory": [], "client": client, "model": "m"}
    ended = await env.get_model_response(state, [])
    assert (ended.message.content, len(client.requests)) == ("", 0)
    response = await env.get_model_response(state, PROMPT)
    state["trajectory_id"] = "t"
    await env.add_model_response(state, [{"role": "user", "content": "of the agent"}], response)
    assert state["prompt"] == [{"role": "user", "content": "of the agent"}]
    assert state["trajectory"][0]["completion"][0]["content"] == "hi"
    await env.rubric.score_rollout({**state, "completion": ANSWER, "timed_out": True})

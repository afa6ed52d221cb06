import json
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import Reply, ScriptedClient, call, run

ROWS = [{"question": "What is 2+2?", "answer": "4"}]


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def fail(text: str) -> str:
    """Always fails."""
    raise ValueError(f"bad {text}")


def picture() -> list[dict[str, Any]]:
    """Show a picture."""
    return [{"type": "image_url", "image_url": {"url": "data:,"}}]


def record() -> dict[str, int]:
    """Give a record."""
    return {"a": 1}


def nothing() -> None:
    """Give nothing."""


TOOLS = [add, fail, picture, record, nothing]


def tool_env(**kwargs: Any) -> vf.ToolEnv:
    return vf.ToolEnv(**{"dataset": ROWS, "tools": TOOLS, **kwargs})


def results(output: vf.RolloutOutput) -> list[Any]:
    return [m["content"] for m in output["completion"] if m["role"] == "tool"]


async def test_calls_are_answered_in_their_order_under_their_ids() -> None:
    calls = [call("add", id="x", a=1, b=5), call("add", id="y", a=1)]
    client = ScriptedClient([calls, "done"])
    [output] = await run(tool_env(), client)
    assert [(m["tool_call_id"], m["content"]) for m in client.prompts[1][-2:]] == [
        ("x", "6"),
        ("y", "3"),
    ]
    assert output["stop_condition"] == "no_tools_called"
    assert output["metrics"] == {
        "num_turns": 2.0,
        "total_tool_calls": 2.0,
        "add_calls": 2.0,
        "fail_calls": 0.0,
        "picture_calls": 0.0,
        "record_calls": 0.0,
        "nothing_calls": 0.0,
    }


async def test_results_of_every_kind_become_content() -> None:
    calls = [call(name) for name in ("picture", "record", "nothing")]
    [output] = await run(tool_env(), ScriptedClient([calls, "done"]))
    assert results(output) == [
        [{"type": "image_url", "image_url": {"url": "data:,"}}],
        "{'a': 1}",
        "None",
    ]


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (call("nope"), "There is no tool 'nope'. Available tools: add, fail"),
        (vf.ToolCall(id="c", name="add", arguments='{"a":'), "not valid JSON"),
        (vf.ToolCall(id="c", name="add", arguments="[1]"), "must be a JSON object; got list"),
        (call("add", zz=1), "unexpected keyword argument 'zz'"),
        (call("fail", text="x"), "bad x"),
    ],
)
async def test_a_mistake_is_shown_to_the_model_and_the_rollout_goes_on(
    made: vf.ToolCall, shown: str
) -> None:
    [output] = await run(tool_env(), ScriptedClient([[made], "done"]))
    assert shown in results(output)[0]
    assert (output["error"], output["stop_condition"]) == (None, "no_tools_called")


async def test_no_arguments_at_all_are_none() -> None:
    empty = vf.ToolCall(id="c", name="nothing", arguments="")
    [output] = await run(tool_env(), ScriptedClient([[empty], "done"]))
    assert results(output) == ["None"]


async def test_errors_are_shown_through_the_formatter() -> None:
    env = tool_env(error_formatter=lambda error: f"Oops: {type(error).__name__}")
    [output] = await run(env, ScriptedClient([[call("fail", text="x")], "done"]))
    assert results(output) == ["Oops: ValueError"]


@pytest.mark.parametrize(
    ("made", "stop", "error"),
    [
        (call("fail", text="x"), ValueError, "ToolCallError"),
        (vf.ToolCall(id="c", name="add", arguments="{"), json.JSONDecodeError, "ToolParseError"),
        (vf.ToolCall(id="c", name="add", arguments="{"), vf.ToolParseError, "ToolParseError"),
        (call("nope"), vf.ToolCallError, "ToolCallError"),
    ],
)
async def test_an_error_that_stops_is_the_rollouts_error(
    made: vf.ToolCall, stop: type[Exception], error: str
) -> None:
    [output] = await run(tool_env(stop_errors=[stop]), ScriptedClient([[made], "done"]))
    assert (output["stop_condition"], output["error"]["error"]) == ("has_error", error)


async def test_the_model_is_told_of_the_tools_and_max_turns_ends_the_calling() -> None:
    client = ScriptedClient(then=[call("add", a=1)])
    [output] = await run(tool_env(max_turns=2), client)
    assert output["stop_condition"] == "max_turns_reached"
    tools = client.requests[0].tools
    assert tools is not None
    assert [tool.name for tool in tools] == ["add", "fail", "picture", "record", "nothing"]
    assert tools[0].description == "Add two numbers."
    assert tools[0].parameters["required"] == ["a", "b"]


async def test_an_overridden_call_tool_may_return_any_result() -> None:
    class Loud(vf.ToolEnv):
        async def call_tool(
            self, tool_name: str, tool_args: Any, tool_call_id: str, **_: Any
        ) -> Any:
            if tool_name == "record":
                return {"role": "tool", "tool_call_id": tool_call_id, "content": "mine"}
            return f"{tool_name}!"

    env = Loud(dataset=ROWS, tools=TOOLS)
    [output] = await run(env, ScriptedClient([[call("add", a=1), call("record")], "done"]))
    assert results(output) == ["add!", "mine"]


async def test_tools_can_be_added_replaced_and_removed() -> None:
    env = tool_env(tools=[add])
    env.add_tool(record)
    assert list(env.tool_map) == ["add", "record"]

    def add_again(a: int) -> int:
        """Add one."""
        return a + 1

    add_again.__name__ = "add"
    env.add_tool(add_again)
    assert [tool.name for tool in env.tool_defs or []] == ["record", "add"]
    env.remove_tool(record)
    client = ScriptedClient([[call("add", a=1)], "done"])
    [output] = await run(env, client)
    assert results(output) == ["2"]
    assert "record_calls" not in output["metrics"]


def test_removing_a_tool_that_is_not_there_says_so() -> None:
    with pytest.raises(ValueError, match=r"There is no tool 'record' to remove"):
        tool_env(tools=[add]).remove_tool(record)


@pytest.mark.parametrize("key", ["tool_defs", "oai_tools", "tools"])
async def test_a_row_may_bring_its_own_tools(key: str) -> None:
    own = {
        "type": "function",
        "function": {"name": "own", "description": "Mine.", "parameters": {"type": "object"}},
    }
    client = ScriptedClient(["done", "done"])
    rows = [{"question": "q", "info": {key: [own]}}, {"question": "q", "info": {key: []}}]
    await run(tool_env(dataset=rows, tools=[add]), client, n=2)
    offered = [[tool.name for tool in request.tools or []] for request in client.requests]
    assert offered == [["own"], ["add"]]


def test_generation_a_reads_and_sets_tools_in_openais_shape() -> None:
    env = tool_env(tools=[add])
    [tool] = env.oai_tools or []
    assert (tool["type"], tool["function"]["name"]) == ("function", "add")
    env.oai_tools = [tool]
    assert env.tool_defs == [vf.Tool(**tool["function"])]


async def test_a_state_reads_its_tools_under_either_name() -> None:
    env = tool_env(tools=[add])
    state = await env.rollout(env.get_dataset()[0], ScriptedClient(["done"]), "m", {})
    assert state["oai_tools"] == state["tool_defs"] == env.tool_defs


# ------------------------------------------------------------------------------------------------ stateful


class Shell(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dataset=ROWS, **kwargs)
        self.add_tool(self.run, args_to_skip=["session"])

    async def run(self, command: str, session: str) -> str:
        """Run a command.

        Args:
            command: What to run.
            session: Where.
        """
        return f"{session}$ {command}"

    async def setup_state(self, state: vf.State) -> None:
        state["session"] = "s1"

    def update_tool_args(
        self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any
    ) -> Any:
        assert messages[-1]["tool_calls"]
        return {**tool_args, "session": state["session"]}


async def test_hidden_arguments_come_from_the_state_and_the_model_does_not_see_them() -> None:
    client = ScriptedClient([[call("run", command="ls")], "done"])
    env = Shell()
    [output] = await run(env, client)
    assert results(output) == ["s1$ ls"]
    tools = client.requests[0].tools
    assert tools is not None
    assert list(tools[0].parameters["properties"]) == ["command"]  # type: ignore[call-overload]
    assert tools[0].parameters["required"] == ["command"]
    assert env.skipped_args == {"run": ["session"]}


async def test_malformed_arguments_are_shown_in_a_stateful_environment_too() -> None:
    wrong = vf.ToolCall(id="c", name="run", arguments="{")
    [output] = await run(Shell(), ScriptedClient([[wrong], "done"]))
    assert "not valid JSON" in results(output)[0]
    assert output["error"] is None


async def test_update_tool_args_may_be_async_and_its_mistakes_reach_the_model() -> None:
    class Async(Shell):
        async def update_tool_args(
            self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any
        ) -> Any:
            if tool_args["command"] == "bad":
                raise KeyError("session")
            return {**tool_args, "session": "async"}

    calls = [call("run", command="ls"), call("run", command="bad")]
    [output] = await run(Async(), ScriptedClient([calls, "done"]))
    assert results(output) == ["async$ ls", "'session'"]


def test_hiding_a_parameter_that_is_not_there_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Shell().add_tool(add, args_to_skip=["sesion"])
    assert "has no parameters ['sesion'] to skip" in caplog.text


async def test_text_beside_tool_calls_does_not_end_the_rollout() -> None:
    reply = Reply("Let me see.", tool_calls=[call("add", a=1)])
    [output] = await run(tool_env(), ScriptedClient([reply, "done"]))
    assert output["metrics"]["num_turns"] == 2.0


async def test_tool_rubric_of_older_environments_counts_calls() -> None:
    rubric = vf.ToolRubric(tools=[add])
    [output] = await run(
        tool_env(tools=[add], rubric=rubric), ScriptedClient([[call("add", a=1)], "done"])
    )
    assert output["metrics"]["add_calls"] == 2.0  # once by ToolRubric, once by the environment

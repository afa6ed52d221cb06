import asyncio
import contextvars
import inspect
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import verifiers as vf
from verifiers.rubrics import watchdog
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


# ----------------------------------------------------------------------------------------- blocking, limits, threads


def spin(until: Callable[[], bool]) -> str:
    """Hold the thread until something is so; 30 s at most, then the test fails by its own assertions."""
    end = time.monotonic() + 30.0
    while not until() and time.monotonic() < end:
        pass
    return "done"


async def test_a_tool_that_holds_the_event_loop_is_reported_once_by_name_and_while_it_runs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "SLOW_S", 0.01)

    def blocks() -> str:
        """Wait for the report."""
        return spin(lambda: any("blocks" in record.message for record in caplog.records))

    env = tool_env(tools=[blocks])
    [output] = await run(env, ScriptedClient([[call("blocks"), call("blocks")], "end"]))
    assert results(output) == ["done", "done"]
    [said] = [r.message for r in caplog.records if "blocked the event loop" in r.message]
    assert said.startswith("Tool 'blocks' blocked the event loop for ")
    assert "tools_in_threads=True" in said


@pytest.mark.parametrize("kind", ["plain", "async that blocks"])
async def test_a_short_hold_is_reported_when_it_ends(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "SLOW_S", 0.0)

    def plain() -> str:
        """Take a moment."""
        return "done"

    async def blocking() -> str:
        """Take a moment."""
        return plain()

    tool = plain if kind == "plain" else blocking
    await run(tool_env(tools=[tool]), ScriptedClient([[call(tool.__name__)], "end"]))
    assert any(f"Tool {tool.__name__!r} blocked" in record.message for record in caplog.records)


async def test_quick_tools_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def waits() -> str:
        """Give way."""
        await asyncio.sleep(0)
        return "done"

    env = tool_env(tools=[add, waits])
    await run(env, ScriptedClient([[call("add", a=1), call("waits")], "end"]))
    assert not [record for record in caplog.records if "blocked" in record.message]


@pytest.mark.parametrize("kind", ["plain", "thread", "async", "async that blocks"])
@pytest.mark.parametrize("rollout_limit_s", [None, 60.0])
async def test_a_tool_that_never_returns_ends_at_its_limit_and_the_rollout_goes_on(
    kind: str, rollout_limit_s: float | None
) -> None:
    def spins() -> str:
        """Never return."""
        while True:
            pass

    async def waits() -> None:
        """Never return."""
        await asyncio.Event().wait()

    async def blocks() -> None:
        """Never return."""
        spins()

    tool = {"async": waits, "async that blocks": blocks}.get(kind, spins)
    env = tool_env(
        tools=[tool],
        tool_timeout_s=0.05,
        tools_in_threads=kind == "thread",
        timeout_seconds=rollout_limit_s,
    )
    [output] = await run(env, ScriptedClient([[call(tool.__name__)], "end"]))
    assert results(output) == [f"Tool {tool.__name__!r} ran longer than 0.05 s and was stopped."]
    assert (output["error"], output["stop_condition"]) == (None, "no_tools_called")


async def test_a_late_tool_can_end_the_rollout_and_the_earlier_limit_counts() -> None:
    async def waits() -> None:
        """Never return."""
        await asyncio.Event().wait()

    env = tool_env(tools=[waits], tool_timeout_s=0.05, stop_errors=[TimeoutError])
    [output] = await run(env, ScriptedClient([[call("waits")], "end"]))
    assert output["error"]["error"] == "ToolTimeout"

    def spins() -> None:
        """Never return."""
        while True:
            pass

    env = tool_env(tools=[spins], tool_timeout_s=60.0, timeout_seconds=0.05)
    [output] = await run(env, ScriptedClient([[call("spins")], "end"]))
    assert output["stop_condition"] == "timeout_reached"


async def test_tools_in_threads_do_not_hold_up_other_rollouts() -> None:
    both = threading.Barrier(2)
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    def meets(text: str) -> str:
        """Wait for the call of the other rollout."""
        both.wait(30)
        return f"{text} {variable.get()} {threading.current_thread() is threading.main_thread()}"

    class Env(vf.ToolEnv):
        async def setup_state(self, state: vf.State) -> None:
            variable.set(state["question"])

    rows = [{"question": "a"}, {"question": "b"}]
    env = Env(tools=[meets], dataset=rows, rubric=vf.Rubric(), tools_in_threads=True)
    client = ScriptedClient(
        lambda prompt: "end" if prompt[-1]["role"] == "tool" else [call("meets", text="x")]
    )
    outputs = await run(env, client, n=2, max_concurrent=2)
    assert sorted(results(output)[0] for output in outputs) == ["x a False", "x b False"]


@pytest.mark.parametrize("error", [ValueError("broken"), StopIteration(1), SystemExit(3)])
@pytest.mark.parametrize("in_threads", [False, True])
async def test_what_a_tool_raises_is_shown_in_either_place(
    error: BaseException, in_threads: bool
) -> None:
    def raises() -> None:
        """Fail."""
        raise error

    env = tool_env(tools=[raises], tools_in_threads=in_threads)
    [output] = await run(env, ScriptedClient([[call("raises")], "end"]))
    assert (output["error"], len(results(output))) == (None, 1)
    if isinstance(error, SystemExit):
        assert results(output) == ["Tool 'raises' called sys.exit(3)."]


@pytest.mark.parametrize("limit_s", [0, -1.0, float("nan")])
def test_a_time_limit_of_tools_must_be_positive(limit_s: float) -> None:
    with pytest.raises(vf.ConfigError, match="tool_timeout_s must be positive"):
        tool_env(tool_timeout_s=limit_s)


def test_a_parameter_without_a_type_is_reported_when_the_tool_is_added(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def search(query, limit: int, page=1):  # type: ignore[no-untyped-def]  # what is tested
        """Search."""

    def undefined(place: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821 - what is tested
        """Look."""

    vf.ToolEnv(tools=[add, search, undefined], dataset=[{"question": "q"}], rubric=vf.Rubric())
    said = [record.message for record in caplog.records if "has no type" in record.message]
    assert [text.partition(",")[0] for text in said[1:]] == [
        "Tool 'undefined' has no type for 'place'"
    ]
    assert said[0].startswith("Tool 'search' has no type for 'query', 'page', so the model")


def test_a_hidden_parameter_needs_no_type(caplog: pytest.LogCaptureFixture) -> None:
    class Env(vf.StatefulToolEnv):
        def update_tool_args(self, *args: Any, **kwargs: Any) -> Any:
            return {}

    def store(text: str, database) -> None:  # type: ignore[no-untyped-def]  # what is tested
        """Keep."""

    Env(dataset=[{"question": "q"}], rubric=vf.Rubric()).add_tool(store, args_to_skip=["database"])
    assert "has no type" not in caplog.text


async def test_filter_signature_hides_arguments_from_the_signature_only():
    from verifiers.envs.stateful_tool_env import filter_signature

    async def edit(self: Any, path: str, state: dict[str, Any], lines: int = 3) -> str:
        """Edit a file."""
        return f"{path} {state} {lines}"

    shown = filter_signature(edit, ["state"])
    assert (shown.__name__, shown.__doc__) == ("edit", "Edit a file.")
    assert str(inspect.signature(shown)) == "(path: str, lines: int = 3) -> str"
    assert set(shown.__annotations__) == {"path", "lines", "return"}
    assert set(edit.__annotations__) == {"self", "path", "state", "lines", "return"}
    assert await shown(None, "p", {"a": 1}) == "p {'a': 1} 3"
    assert filter_signature(edit, []) is edit

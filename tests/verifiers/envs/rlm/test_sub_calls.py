"""Tools that code calls, and sub-LLMs: requests, answers, budgets, steps in the trajectory, and metrics."""

import asyncio
import json
from typing import Any

import pytest
from rlm_rollouts import (
    OK,
    READY,
    code,
    done,
    make,
    play,
    root_and_subs,
    with_worker,
)
from rlm_rollouts import tool_call as tool_request

import verifiers as vf
from verifiers.envs.experimental.rlm_env import (
    RLMEnv,
    RLMMonitorRubric,
    update_rlm_metrics_from_step,
)
from verifiers.testing import Reply, ScriptedClient, call, run


def lookup(key: str, n: int = 3) -> str:
    """Look a key up."""
    if key == "boom":
        raise RuntimeError("bang")
    return key * n


def shout(q: str) -> str:
    """Say it louder."""
    if q == "boom":
        raise RuntimeError("bang")
    return q.upper()


async def asked(
    env: RLMEnv, name: Any, args: Any = (), kwargs: Any = None, replies: Any = ()
) -> Any:
    """Let code call a tool once. Return (status, body), state and client."""
    with_worker(env, READY, during=tool_request(env, name, args, kwargs))
    model = replies if callable(replies) else root_and_subs([done()], replies or "sub")
    state, client = await play(env, model)
    return (state["seen"] or [None])[0], state, client


def chat_request(env: RLMEnv, body: Any) -> Any:
    async def send(state: Any) -> None:
        answer = await env._in_rollout(state["rollout_id"], env.answer_chat_request, body)
        state.setdefault("seen", []).append(answer)

    return send


# ------------------------------------------------------------------------------------------------------ root tools


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "answer"),
    [
        ("lookup", ("ab",), None, (200, {"result": "ababab"})),
        ("lookup", (), {"key": "k", "n": 1}, (200, {"result": "k"})),
        ("lookup", ("boom",), None, (500, {"error": "bang"})),
        ("nope", (), None, (404, {"error": "Tool 'nope' not found"})),
        ("llm_batch", ([],), None, (200, {"result": []})),
    ],
)
async def test_a_root_tool_runs_on_this_side(name: str, args: Any, kwargs: Any, answer: Any):
    assert (await asked(make(root_tools=[lookup]), name, args, kwargs))[0] == answer


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [("lookup", "text", None), ("lookup", (), ["list"]), (7, (), None)],
)
async def test_a_malformed_request_is_refused(name: Any, args: Any, kwargs: Any):
    (status, body), state, _ = await asked(make(root_tools=[lookup]), name, args, kwargs)
    assert (status, list(body)) == (400, ["error"])
    assert state["root_tool_call_count"] == 0


async def test_an_unknown_rollout_is_404_and_a_body_that_is_no_object_is_400():
    env = make()
    assert (await env._in_rollout("x", env.answer_tool_request, {}))[0] == 404
    env.active_rollouts["x"] = env._new_context({})
    assert (await env._in_rollout("x", env.answer_tool_request, [1]))[0] == 400


async def test_a_result_that_is_no_json_is_sent_as_its_repr():
    def made() -> Any:
        return {1, 2}

    assert (await asked(make(root_tools=[made]), "made"))[0] == (200, {"result_repr": "{1, 2}"})


async def test_root_tools_may_be_async_and_find_their_rollout():
    env: Any = None

    async def who() -> str:
        await asyncio.sleep(0)
        return env._root_tool_context_var.get()["state"]["rollout_id"]

    env = make(root_tools=[who])
    answer, state, _ = await asked(env, "who")
    assert answer == (200, {"result": state["rollout_id"]})
    assert env._root_tool_context_var.get() is None


async def test_calls_of_root_tools_are_counted_by_name():
    env = make(root_tools=[lookup])

    async def several(state: Any) -> None:
        for name, args in (("lookup", ("a",)), ("lookup", ("boom",)), ("llm_batch", (["p"],))):
            await tool_request(env, name, args)(state)

    with_worker(env, READY, during=several)
    state, _ = await play(env, root_and_subs([done()]))
    assert state["root_tool_calls"] == {"lookup": 2, "llm_batch": 1}
    assert state["root_tool_call_count"] == 3
    assert set(state["root_tool_times"]) == {"lookup", "llm_batch"}
    for name in ("llm_batch_mean_time_seconds", "root_tool_non_llm_mean_time_seconds"):
        assert state[name] > 0


# --------------------------------------------------------------------------------------------------------- sub-LLMs


async def test_a_batch_asks_fresh_models_and_keeps_the_order():
    env = make(sub_model="small")

    def sub(prompt: Any) -> str:
        return {"p1": "so \\boxed{one} or \\boxed{1}", "p2": "two"}[prompt[-1]["content"]]

    answer, _, client = await asked(
        env, "llm_batch", (["p1", "p2"],), replies=root_and_subs([done()], sub)
    )
    assert answer == (200, {"result": ["1", "two"]})
    subs = client.requests[1:]
    assert [request.model for request in subs] == ["small", "small"]
    assert [request.tools for request in subs] == [None, None]
    assert subs[0].sampling_args == {"temperature": 0.5}
    assert [m["role"] for m in subs[0].prompt] == ["system", "user"]
    assert "5 turns" in subs[0].prompt[0]["content"]
    assert subs[0].state["trajectory"] == []
    assert subs[0].state is not subs[1].state


async def test_prompts_that_are_no_text_are_errors_in_their_place():
    answer, state, _ = await asked(make(), "llm_batch", ([1, {"role": "user"}, "p"],))
    first, second, third = answer[1]["result"]
    assert "index 0 must be text" in first
    assert "index 1 must be text" in second
    assert (third, state["sub_llm_call_count"]) == ("sub", 1)
    answer, _, _ = await asked(make(), "llm_batch", ("no list",))
    assert answer[0] == 500
    assert "expects a list" in answer[1]["error"]


async def test_only_so_many_sub_llms_run_at_once():
    env = make(max_sub_llm_parallelism=2)
    answer, _, client = await asked(env, "llm_batch", ([str(n) for n in range(7)],))
    assert answer[1]["result"] == ["sub"] * 7
    assert client.most_in_flight == 2


async def test_a_failed_call_is_an_error_in_its_place():
    def sub(prompt: Any) -> Any:
        return vf.ModelError("broken") if prompt[-1]["content"] == "bad" else "fine"

    replies = root_and_subs([done()], sub)
    answer, state, _ = await asked(make(), "llm_batch", (["bad", "good"],), replies=replies)
    assert answer == (200, {"result": ["Error in sub-LLM call: broken", "fine"]})
    assert state["sub_llm_call_count"] == 1


async def test_a_stop_error_of_a_call_ends_the_rollout():
    class Mine(Exception):
        pass

    def raising(q: str) -> str:
        """Fail."""
        raise Mine("mine")

    for options, name, args in (
        ({"root_tools": [raising], "stop_errors": [Mine]}, "raising", ("q",)),
        ({"sub_tools": [raising], "stop_errors": [Mine]}, "llm_batch", (["p"],)),
    ):
        env = make(**options)
        answer, state, _ = await asked(
            env, name, args, replies=root_and_subs([done()], lambda _: call("raising", q="x"))
        )
        assert answer == (500, {"error": "mine"})
        assert isinstance(state["error"].__cause__, Mine)
        assert state["stop_condition"] == "has_error"
        assert "final_answer" not in state


async def test_sub_tools_are_called_in_a_loop_that_ends_in_an_answer():
    env = make(sub_tools=[shout], sub_llm_max_turns=2)
    bad = vf.ToolCall(id="c2", name="shout", arguments="{broken")
    turns = iter(
        [
            [call("shout", q="x", id="c1"), bad, call("nope", id="c3"), call("shout", q="boom", id="c4")],
            [call("shout", q="y", id="c5")],
            "\\boxed{Z}",
        ]
    )  # fmt: skip
    answer, state, client = await asked(
        env, "llm_batch", (["p"],), replies=root_and_subs([done()], lambda _: next(turns))
    )
    assert answer == (200, {"result": ["Z"]})
    subs = client.requests[1:]
    assert [[tool.name for tool in request.tools or []] for request in subs] == [
        ["shout"],
        ["shout"],
        [],
    ]
    last = subs[-1].prompt
    tool_texts = [m["content"] for m in last if m["role"] == "tool"]
    assert tool_texts[0] == "X"
    assert tool_texts[1].startswith("Error: ")
    assert "There is no tool 'nope'" in tool_texts[2]
    assert tool_texts[3:] == ["Error: bang", "Y"]
    assert last[-1]["role"] == "user"
    assert "\\boxed{}" in last[-1]["content"]
    assert state["sub_llm_total_tool_calls"] == 5
    assert (state["sub_llm_call_count"], state["sub_llm_total_turns"]) == (1, 3)
    assert state["sub_llm_max_turns_reached_frac"] == 1.0


async def test_sub_tool_defs_may_be_replaced_after_construction():
    env = make(sub_tools=[shout])
    env.sub_tool_defs = [vf.Tool(name="other", description="", parameters={"type": "object"})]
    _, _, client = await asked(env, "llm_batch", (["p"],))
    assert [tool.name for tool in client.requests[1].tools or []] == ["other"]


async def test_a_slow_sub_llm_answers_with_an_error_text():
    env = make()
    env.sub_llm_timeout = 0.01
    answer, state, _ = await asked(
        env, "llm_batch", (["p"],), replies=root_and_subs([done()], lambda _: Reply("x", after=asyncio.Event()))
    )  # fmt: skip
    assert "did not answer within" in answer[1]["result"][0]
    assert state["sub_llm_max_turns_reached_frac"] == 1.0
    assert state["error"] is None


async def test_the_budget_of_sub_llms_stops_new_calls_and_tool_loops():
    env = make(sub_max_completion_tokens=8)

    async def twice(state: Any) -> None:
        for _ in range(2):
            await tool_request(env, "llm_batch", (["a", "b"],))(state)

    with_worker(env, READY, during=twice)
    state, client = await play(env, root_and_subs([done()]))
    assert state["seen"][0][1]["result"] == ["sub", "sub"]
    assert all("budget is used up" in text for text in state["seen"][1][1]["result"])
    assert len(client.requests) == 3

    env = make(sub_max_completion_tokens=2, sub_tools=[shout])
    turns = iter([call("shout", q="x", id="c1"), "\\boxed{early}"])
    answer, state, client = await asked(
        env, "llm_batch", (["p"],), replies=root_and_subs([done()], lambda _: next(turns))
    )
    assert answer[1]["result"] == ["early"]
    last = client.requests[-1]
    assert (last.tools, [m["role"] for m in last.prompt][-3:]) == (
        None,
        ["assistant", "tool", "user"],
    )
    assert "budget" in last.prompt[-2]["content"]
    assert state["sub_llm_max_turns_reached_frac"] == 1.0


async def test_the_end_of_the_rollout_ends_calls_that_still_run():
    env = make(timeout_seconds=0.2)
    never = asyncio.Event()
    with_worker(env, READY, during=tool_request(env, "llm_batch", (["p"],)))
    state, client = await play(env, root_and_subs([done()], lambda _: Reply("late", after=never)))
    assert state["stop_condition"] == "timeout_reached"
    assert client.in_flight == 0
    assert env.active_rollouts == {}


# --------------------------------------------------------------------------------------------- chat completions


async def test_a_chat_request_is_one_sub_llm():
    hi = [{"role": "user", "content": "hi"}]
    for body, batches in (
        ({"messages": hi, "_batch_id": "b", "_request_id": "r"}, 1),
        ({"messages": hi}, 0),
    ):
        env = make()
        with_worker(env, READY, during=chat_request(env, body))
        state, client = await play(env, root_and_subs([done()]))
        status, answer = state["seen"][0]
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "sub")
        assert (state["sub_llm_call_count"], state["sub_llm_batch_count"]) == (1, batches)
        assert client.prompts[1][-1]["content"] == "hi"
    env = make()
    with_worker(env, READY, during=chat_request(env, {"messages": "x"}))
    assert (await play(env, [done()]))[0]["seen"] == [(400, {"error": "messages must be a list"})]


# ------------------------------------------------------------------------------------- trajectory and accounting


async def test_steps_of_sub_llms_stand_before_the_root_step_that_follows():
    env = make(include_sub_llm_in_trajectory=True, max_turns=2)
    with_worker(env, OK, READY, during=tool_request(env, "llm_batch", (["p1", "p2"],)))
    client = ScriptedClient(root_and_subs([*code("1"), done()]), token_ids=True)
    state, _ = await play(env, client)
    own = [step["trajectory_id"] == state["trajectory_id"] for step in state["trajectory"]]
    assert own == [True, False, False, True]
    assert state["stop_condition"] == "max_turns_reached"
    root, first, second, _ = state["trajectory"]
    assert root["extras"] == {}
    extras = first["extras"]
    assert list(extras) == [
        "is_sub_llm_call", "parent_turn", "batch_id", "request_id", "sub_turn_index", "total_sub_turns",
        "timestamp", "tool_call_count",
    ]  # fmt: skip
    assert first["trajectory_id"] == f"{extras['batch_id']}_{extras['request_id']}"
    assert extras["batch_id"] == second["extras"]["batch_id"]
    assert (extras["parent_turn"], extras["sub_turn_index"], extras["total_sub_turns"]) == (1, 0, 1)
    assert first["tokens"]["completion_ids"]
    assert [m["role"] for m in state["completion"]] == ["assistant", "tool", "assistant"]
    assert len(client.prompts[3]) == 3


async def test_the_usage_of_a_rollout_counts_the_root_only():
    env = make()
    with_worker(env, READY, during=tool_request(env, "llm_batch", (["p1", "p2"],)))
    client = ScriptedClient(root_and_subs([done()]))
    state, _ = await play(env, client)
    assert state["usage"]["input_tokens"] == state["root_llm_prompt_tokens"]
    assert state["sub_llm_prompt_tokens"] > 0
    assert (state["main_rlm_turns"], state["main_rlm_prompt_tokens"]) == (
        1,
        state["root_llm_prompt_tokens"],
    )


async def test_limits_of_the_run_include_sub_llms():
    env = make(rubric=vf.Rubric())
    with_worker(env, OK, OK, during=tool_request(env, "llm_batch", (["p" * 5000],)))
    client = ScriptedClient(root_and_subs(code("1", "2")))
    (output,) = await run(env, client, max_total_tokens=6500)
    assert output["stop_condition"] == "max_total_tokens_reached"
    assert output["token_usage"]["input_tokens"] < 5000


METRICS = [
    "sub_llm_call_count",
    "sub_llm_total_turns",
    "sub_llm_prompt_tokens",
    "sub_llm_completion_tokens",
    "sub_llm_total_tool_calls",
    "sub_llm_batch_count",
    "sub_llm_max_batch_size",
    "sub_llm_mean_batch_size",
    "root_llm_turns",
    "root_llm_prompt_tokens",
    "root_llm_completion_tokens",
    "repl_total_time_seconds",
    "repl_call_count",
    "repl_mean_time_seconds",
    "root_tool_call_count",
    "llm_batch_mean_time_seconds",
    "root_tool_non_llm_mean_time_seconds",
    "sub_llm_max_turns_reached_frac",
    "max_turns_in_context_stopped",
    "summarize_count",
    "summarize_rejected_count",
    "summarize_total_turns_dropped",
    "summarize_total_chars_dropped",
    "summarize_summary_length_chars",
    "summarize_char_compression_ratio",
    "summarize_mean_turns_per_call",
    "summarize_mean_remaining_turns",
    "summarize_mean_turns_between",
    "llm_batch_root_calls",
    "llm_batch_root_time_seconds",
    "lookup_root_calls",
    "lookup_root_time_seconds",
]


async def test_metrics_have_the_names_of_v0():
    env = make(root_tools=[lookup], rubric=vf.Rubric())
    with_worker(env, READY, during=tool_request(env, "llm_batch", (["p1", "p2"],)))
    (output,) = await run(env, ScriptedClient(root_and_subs([done()])))
    metrics = output["metrics"]
    expected = ["num_turns", "total_tool_calls", "call_python_repl_calls", *METRICS]
    assert list(metrics) == expected
    assert metrics["sub_llm_call_count"] == metrics["sub_llm_max_batch_size"] == 2
    assert metrics["sub_llm_batch_count"] == metrics["llm_batch_root_calls"] == 1
    assert metrics["lookup_root_calls"] == metrics["summarize_count"] == 0
    assert output["reward"] == 0.0


async def test_a_state_without_counts_has_metrics_of_zero():
    rubric = RLMMonitorRubric(root_tool_names=["t"])
    values = [await function({}) for function in rubric.funcs]
    assert values == [0.0] * len(rubric.funcs)


def test_steps_are_counted_in_any_mapping():
    state: dict[str, Any] = {}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    update_rlm_metrics_from_step(state, {"response": {"usage": usage}})
    extras = {"is_sub_llm_call": True, "tool_call_count": 2}
    update_rlm_metrics_from_step(state, {"response": {"usage": usage}, "extras": extras})
    update_rlm_metrics_from_step(state, {"response": None, "extras": extras})
    assert (state["root_llm_turns"], state["root_llm_completion_tokens"]) == (1, 2)
    assert (state["sub_llm_call_count"], state["sub_llm_batch_count"]) == (2, 0)
    assert (state["sub_llm_total_tool_calls"], state["sub_llm_prompt_tokens"]) == (4, 3)
    assert json.dumps(state)

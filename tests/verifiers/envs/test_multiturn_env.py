"""The loop: turns, stop conditions, errors as data, what is asked of the model and what is kept."""

import asyncio
import json
import warnings
from typing import Any

import pytest
from datasets import Dataset

import verifiers as vf
from verifiers.testing import Reply, ScriptedClient, call, run

ROWS = [{"question": "2+2?", "answer": "4"}]


class Echo(vf.MultiTurnEnv):
    """Repeats what the model says."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dataset": ROWS, "max_turns": 3, **kwargs})

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> Any:
        return [{"role": "user", "content": f"You said {messages[-1]['content']}."}]


def spoken(messages: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("content")) for message in messages]


async def play(env: vf.Environment, *replies: Any, **kwargs: Any) -> vf.State:
    client = replies[0] if isinstance(replies[0], ScriptedClient) else ScriptedClient(replies)
    return await env.rollout(env.get_dataset()[0], client, "m", {}, **kwargs)


async def test_the_model_sees_the_whole_conversation_and_the_completion_is_what_followed() -> None:
    client = ScriptedClient(["a", "b", "c"])
    state = await play(Echo(), client)
    turns = [
        ("user", "2+2?"),
        ("assistant", "a"),
        ("user", "You said a."),
        ("assistant", "b"),
        ("user", "You said b."),
        ("assistant", "c"),
    ]
    assert [spoken(prompt) for prompt in client.prompts] == [turns[:1], turns[:3], turns[:5]]
    assert spoken(state["completion"]) == turns[1:]
    assert spoken(state["prompt"]) == turns[:1]
    assert (state["stop_condition"], state["is_completed"], state["is_truncated"]) == (
        "max_turns_reached",
        True,
        False,
    )


async def test_a_step_holds_what_was_asked_answered_and_its_tokens() -> None:
    state = await play(Echo(max_turns=2), ScriptedClient(["a", "b"], token_ids=True))
    first, second = state["trajectory"]
    assert set(first) == {
        "prompt",
        "completion",
        "response",
        "tokens",
        "reward",
        "advantage",
        "is_truncated",
        "trajectory_id",
        "extras",
    }
    assert spoken(first["completion"]) == [("assistant", "a")]
    assert first["response"].message.content == "a"
    seen = first["tokens"]["prompt_ids"] + first["tokens"]["completion_ids"]
    assert second["tokens"]["prompt_ids"][: len(seen)] == seen
    assert first["trajectory_id"] == state["trajectory_id"] == second["trajectory_id"]


@pytest.mark.parametrize(
    "answer",
    ["text", [], {"role": "user", "content": "text"}, [vf.UserMessage(content="text")]],
)
async def test_an_environment_may_answer_with_text_messages_or_nothing(answer: Any) -> None:
    class Env(Echo):
        def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
            return answer

    state = await play(Env(max_turns=2), "a", "b")
    said = [("user", "text")] if answer else []
    assert spoken(state["completion"]) == [("assistant", "a"), *said, ("assistant", "b")]


@pytest.mark.parametrize("answer", [None, "pair"])
async def test_an_environment_that_forgets_its_return_is_an_error_that_says_so(answer: Any) -> None:
    class Env(Echo):
        def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
            return None if answer is None else (None, state)

    state = await play(Env(max_turns=2), "a", "b")
    assert isinstance(state["error"], vf.EnvironmentCodeError)
    assert "Env.env_response returned None. Return text or a list" in str(state["error"])
    assert len(state["trajectory"]) == 1


async def test_none_beside_a_final_response_ends_the_rollout() -> None:
    class Env(Echo):
        def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
            state["final_env_response"] = "over"

    state = await play(Env(), "a", "b")
    assert (state["error"], state["stop_condition"]) == (None, "has_final_env_response")
    assert [text for _, text in spoken(state["completion"])] == ["a", "over"]


async def test_the_last_word_of_the_environment_ends_the_rollout_and_is_kept() -> None:
    class Env(Echo):
        async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
            state["final_env_response"] = "Goodbye."
            return []

    state = await play(Env(), "a")
    assert state["stop_condition"] == "has_final_env_response"
    assert spoken(state["completion"])[-1][1] == "Goodbye."
    assert len(state["trajectory"]) == 1


# ----------------------------------------------------------------------------------------- stop conditions


async def test_the_stop_condition_of_highest_priority_is_named() -> None:
    class Env(Echo):
        @vf.stop
        async def ordinary(self, state: vf.State) -> bool:
            return bool(state["trajectory"])

        @vf.stop(priority=5)
        def important(self, state: vf.State) -> bool:
            return bool(state["trajectory"])

    assert (await play(Env(), "a"))["stop_condition"] == "important"


async def test_an_overridden_stop_condition_replaces_the_built_in_one() -> None:
    class Never(Echo):
        async def max_turns_reached(self, state: vf.State) -> bool:  # no mark: not a condition
            return True

        @vf.stop
        async def enough(self, state: vf.State) -> bool:
            return len(state["trajectory"]) == 5

    class Later(Echo):
        @vf.stop
        async def max_turns_reached(self, state: vf.State) -> bool:
            return len(state["trajectory"]) == 4

    class Off(Echo):
        max_turns_reached = None  # type: ignore[assignment]

        @vf.stop
        async def enough(self, state: vf.State) -> bool:
            return len(state["trajectory"]) == 5

    for env, turns in ((Never(), 5), (Later(), 4), (Off(), 5)):
        assert len((await play(env, ScriptedClient(then="a")))["trajectory"]) == turns


async def test_an_override_may_call_the_built_in_condition() -> None:
    class Env(Echo):
        @vf.stop
        async def max_turns_reached(self, state: vf.State) -> bool:
            return await super().max_turns_reached(state) or "stop" in state

    assert (await play(Env(max_turns=1), "a"))["stop_condition"] == "max_turns_reached"


async def test_conditions_added_to_the_list_by_hand_are_asked() -> None:
    env = Echo(max_turns=-1)

    async def two_turns(state: vf.State) -> bool:
        return len(state["trajectory"]) == 2

    env._stop_conditions.append(two_turns)
    assert (await play(env, ScriptedClient(then="a")))["stop_condition"] == "two_turns"


async def test_a_rollout_can_end_before_the_first_turn() -> None:
    class Env(Echo):
        async def setup_state(self, state: vf.State) -> vf.State:
            state["solved"] = True
            return state

        @vf.stop
        async def is_solved(self, state: vf.State) -> bool:
            return state["solved"]

    state = await play(Env(), ScriptedClient())
    assert (state["trajectory"], state["completion"], state["stop_condition"]) == (
        [],
        [],
        "is_solved",
    )


async def test_an_overlong_prompt_truncates_and_is_scored() -> None:
    env = Echo(rubric=vf.Rubric(funcs=[lambda completion: float(len(completion))]))
    [output] = await run(env, ScriptedClient(["a", vf.OverlongPromptError("too long")]))
    assert (output["stop_condition"], output["is_truncated"]) == ("prompt_too_long", True)
    assert (output["error"], output["reward"]) == (None, 1.0)


@pytest.mark.parametrize("kind", ["alone", "group", "with providers"])
async def test_a_prompt_that_never_fitted_is_named_with_its_size_instead_of_what_the_reward_raised(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def last(completion: Any) -> float:
        return float(len(completion[-1]["content"]))

    def lasts(completions: Any) -> list[float]:
        return [last(completion) for completion in completions]

    rubric = vf.Rubric(funcs=[lasts if kind == "group" else last])
    if kind == "with providers":
        rubric.add_score_object_provider(lambda state: {})
    env = Echo(dataset=[{"question": "x" * 12_345}], rubric=rubric)
    [output] = await run(env, ScriptedClient([vf.OverlongPromptError("limit 4096, got 9000")]))
    assert (output["stop_condition"], output["is_truncated"]) == ("prompt_too_long", True)
    [error] = output["errors"]
    assert (
        "has no reply to score, because the rollout ended with prompt_too_long" in error["message"]
    )
    assert "The prompt of turn 1 (1 message, 12,345 characters) does not fit" in error["message"]
    assert "limit 4096, got 9000" in error["message"]
    assert any("Example 0 ended with prompt_too_long" in r.message for r in caplog.records)


async def test_a_reply_that_was_cut_off_marks_the_rollout_as_truncated() -> None:
    state = await play(Echo(max_turns=1), Reply("a", finish_reason="length"))
    assert (state["is_truncated"], state["trajectory"][0]["is_truncated"]) == (True, True)


async def test_tokens_beyond_the_trainers_limit_are_cut_and_marked() -> None:
    env = Echo(max_turns=1)
    env.set_max_seq_len(24)
    state = await play(env, ScriptedClient(["a" * 50], token_ids=True))
    tokens = state["trajectory"][0]["tokens"]
    lengths = {len(tokens[f"completion_{part}"]) for part in ("ids", "mask", "logprobs")}
    assert len(tokens["prompt_ids"]) + lengths.pop() == 24
    assert (lengths, tokens["is_truncated"], state["is_truncated"]) == (set(), True, True)


# -------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("hook", ["setup_state", "env_response", "get_prompt_messages", "stop"])
@pytest.mark.parametrize("error", [ValueError("broken"), vf.SandboxError("broken")])
async def test_what_a_hook_raises_is_the_rollouts_error(hook: str, error: Exception) -> None:
    class Env(Echo):
        @vf.stop
        async def stop(self, state: vf.State) -> bool:
            return False

        async def setup_state(self, state: vf.State) -> None: ...

    async def fails(*_: Any, **__: Any) -> Any:
        raise error

    env = Env(rubric=vf.Rubric(funcs=[lambda state: 1.0]))
    if hook == "stop":
        env._stop_conditions.append(fails)
    else:
        setattr(env, hook, fails)
    [output] = await run(env, ScriptedClient(then="a"))
    assert output["stop_condition"] == "has_error"
    own = "SandboxError" if isinstance(error, vf.SandboxError) else "EnvironmentCodeError"
    assert output["error"]["error"] == own
    assert "broken" in output["error"]["error_chain_repr"]
    assert output["reward"] == 0.0  # a crash earns nothing


async def test_one_failed_rollout_leaves_its_siblings_alone() -> None:
    outputs = await run(
        Echo(max_turns=1), ScriptedClient(["a", vf.ModelError("gone"), "c"]), rollouts_per_example=3
    )
    assert [output["error"] and output["error"]["error"] for output in outputs] == [
        None,
        "ModelError",
        None,
    ]


@pytest.mark.parametrize("error", [vf.AuthenticationError("wrong key"), vf.ConfigError("no such")])
async def test_a_wrong_key_ends_the_run_with_its_own_error(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        await run(Echo(), ScriptedClient(then=error), n=1, rollouts_per_example=5)


async def test_cancelling_a_run_cancels_its_rollouts() -> None:
    cleaned: list[str] = []

    class Env(Echo):
        @vf.cleanup
        async def note(self, state: vf.State) -> None:
            cleaned.append(state["stop_condition"])

    client = ScriptedClient(then=Reply("late", after=asyncio.Event()))
    running = asyncio.ensure_future(run(Env(), client, rollouts_per_example=3, max_concurrent=-1))
    await client.asked(3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (cleaned, client.in_flight) == (["cancelled"] * 3, 0)


# ---------------------------------------------------------------------------------------------------- state


async def test_rollouts_of_a_row_share_nothing_they_could_change() -> None:
    class Env(Echo):
        async def setup_state(self, state: vf.State) -> None:
            for key in ("cards", "info", "answer", "task"):
                value = state[key]
                value.append("x") if isinstance(value, list) else value.update(x=1)
            state["prompt"][0]["content"][0]["text"] += "!"

    row = {
        "prompt": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "cards": [1],
        "info": {},
        "answer": ["a"],
        "task": {"kind": "t"},
    }
    env = Env(dataset=[row], max_turns=1)
    client = ScriptedClient(then="a")
    for _ in range(2):
        state = await play(env, client)
        assert (state["cards"], state["answer"]) == ([1, "x"], ["a", "x"])
    assert client.prompts[0][0]["content"] == client.prompts[1][0]["content"]
    assert client.prompts[0][0]["content"][0]["text"] == "hi!"
    assert row["cards"] == [1]


async def test_setup_state_may_return_a_new_state() -> None:
    class Env(Echo):
        async def setup_state(self, state: vf.State) -> vf.State:
            return vf.State({**state, "extra": 1})

    rubric = vf.Rubric(funcs=[lambda question: float(question == "2+2?")])
    env = Env(max_turns=1, rubric=rubric)
    [output] = await run(env, ScriptedClient(["a"]), state_columns=["extra"])
    assert (output["extra"], output["error"], output["reward"]) == (1, None, 1.0)


async def test_live_objects_stay_out_of_saved_state() -> None:
    [output] = await run(Echo(max_turns=1), ScriptedClient(["a"]), state_columns=["client", "nope"])
    assert (output["client"], output["nope"]) == (None, None)


async def test_time_and_tokens_are_accounted_for() -> None:
    [output] = await run(Echo(max_turns=2), ScriptedClient(then="a"))
    timing = output["timing"]
    assert [len(timing[kind]["spans"]) for kind in ("model", "env")] == [2, 1]
    assert timing["total"] >= timing["generation"]["duration"] >= timing["model"]["duration"] > 0
    usage = output["token_usage"]
    assert usage["input_tokens"] > usage["final_input_tokens"] > 0


async def test_tokens_of_the_environments_own_model_calls_can_be_counted() -> None:
    class Env(Echo):
        async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
            self.increment_state_usage(state, input_tokens=1000, output_tokens=10)
            return "on"

    state = await play(Env(max_turns=2), "a", "b")
    assert state["usage"]["input_tokens"] > 1000
    assert Env().get_state_usage(state) == dict(state["usage"])


# --------------------------------------------------------------------------------- text completions, media


async def test_a_text_completion_environment_of_several_turns_speaks_text() -> None:
    class Env(Echo):
        async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
            return " and"

    client = ScriptedClient(["one", "two"])
    env = Env(dataset=[{"prompt": "Count:", "answer": "x"}], message_type="completion", max_turns=2)
    state = await play(env, client)
    text = [("text", "Count:"), ("assistant", "one"), ("text", " and"), ("assistant", "two")]
    assert [spoken(prompt) for prompt in client.prompts] == [text[:1], text[:3]]
    assert spoken(state["completion"]) == text[1:]
    assert spoken(state["prompt"]) == text[:1]


async def test_images_and_audio_pass_through_unchanged() -> None:
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "v"}},
    ]
    client = ScriptedClient(["a"])
    await play(
        Echo(dataset=[{"prompt": [{"role": "user", "content": content}]}], max_turns=1), client
    )
    assert client.prompts[0][0]["content"] == content


async def test_reasoning_and_tool_calls_are_kept_in_the_completion() -> None:
    state = await play(Echo(max_turns=1), Reply("a", reasoning="thinking", tool_calls=[call("f")]))
    [message] = state["completion"]
    assert (message["reasoning_content"], message["tool_calls"][0]["name"]) == ("thinking", "f")
    assert "thinking_blocks" not in message


# ------------------------------------------------------------------------------------------ the oldest idioms


async def test_env_response_may_return_messages_and_state() -> None:
    class Env(Echo):
        def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [{"role": "user", "content": "next"}], {**state, "seen": True}

    state = await play(Env(max_turns=2), "a", "b")
    assert (state["seen"], spoken(state["completion"])[1]) == (True, ("user", "next"))


@pytest.mark.parametrize("form", ["messages and state", "state", "calls super"])
async def test_is_completed_may_be_overridden(form: str) -> None:
    class Both(Echo):
        def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
            return messages[-1]["content"] == "done"

    class One(Echo):
        async def is_completed(self, state: Any) -> bool:
            return bool(state["trajectory"]) and len(state["responses"]) == 2

    class Super(Echo):
        async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
            return await super().is_completed(messages, state, **kwargs) or len(messages) > 2

    kind = {"messages and state": Both, "state": One, "calls super": Super}[form]
    state = await play(kind(max_turns=9), ScriptedClient(["go", "done"], then="more"))
    assert (len(state["trajectory"]), state["stop_condition"]) == (2, "is_completed")


async def test_max_turns_still_holds_when_is_completed_is_overridden() -> None:
    class Never(Echo):
        async def is_completed(self, messages: Any, state: Any, **kwargs: Any) -> bool:
            return False

    state = await play(Never(max_turns=2), ScriptedClient(then="a"))
    assert state["stop_condition"] == "max_turns_reached"


async def test_an_unmarked_check_done_is_a_stop_condition_and_says_how_to_mark_it() -> None:
    class Old(Echo):
        async def check_done(self, state: vf.State) -> bool:
            return len(state["trajectory"]) == 2

    with pytest.warns(DeprecationWarning, match=r"@vf\.stop"):
        env = Old(max_turns=9)
    assert (await play(env, ScriptedClient(then="a")))["stop_condition"] == "check_done"


async def test_a_marked_check_done_and_one_that_is_called_otherwise_stay_as_they_are() -> None:
    class Marked(Echo):
        @vf.stop
        async def check_done(self, state: vf.State) -> bool:
            return True

    class Helper(Echo):
        def check_done(self, board: Any, player: str) -> bool:
            return False

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (await play(Marked(), ScriptedClient(then="a")))["stop_condition"] == "check_done"
        assert len((await play(Helper(), ScriptedClient(then="a")))["trajectory"]) == 3


async def test_a_column_with_a_name_of_ours_stays_readable_as_part_of_the_row() -> None:
    seen: dict[str, Any] = {}

    def looks(model: str, reward: float, completion: Any, state: vf.State) -> float:
        seen.update(model=model, reward=reward, completion=completion, row=state["input"].copy())
        return 1.0

    row = {"question": "q", "model": "gpt-2", "reward": 0.25, "completion": "gold", "error": None}
    env = Echo(dataset=[row], max_turns=1, rubric=vf.Rubric(funcs=[looks]))
    [output] = await run(env, ScriptedClient(["a"]))
    assert (output["reward"], output["error"], output["errors"]) == (1.0, None, [])
    assert (seen["model"], seen["reward"]) == ("gpt-2", 0.25)
    assert seen["completion"][0]["content"] == "a"  # the rollout's own, as always
    assert {key: seen["row"][key] for key in row} == row


NAMES_OF_OURS = sorted(
    [name for name, value in vars(vf.State).items() if type(value).__name__ == "_Key"]
    + [
        "input",
        "state",
        "task",
        "info",
        "parser",
        "answers",
        "self",
        "scope",
        "client",
        "turn",
        "responses",
        "oai_tools",
        "usage_tracker",
    ]
    + ["prompt_too_long", "rollout_index", "tools"]
)


@pytest.mark.parametrize("value", ["text", {"a": "dict"}, ["list"], 1], ids=repr)
@pytest.mark.parametrize("name", [name for name in NAMES_OF_OURS if name not in ("prompt", "info")])
async def test_a_column_of_any_name_changes_no_reward(name: str, value: Any) -> None:
    class Both(vf.Rubric):
        def method(self, **kwargs: Any) -> float:
            return float(kwargs["completion"][-1]["content"] == kwargs["answer"])

    def takes_all(**kwargs: Any) -> float:
        row = kwargs["state"]["input"]
        return float((row[name], row["answer"]) == (value, "b"))

    def for_group(states: list[vf.State], **kwargs: Any) -> list[float]:
        return [float(state["input"][name] == value) for state in states]

    rubric = Both(funcs=[takes_all, for_group])
    rubric.add_reward_func(rubric.method)
    row = {"question": "q", "answer": "b", name: value}
    [output] = await run(
        Echo(dataset=[row], max_turns=2, rubric=rubric), ScriptedClient(["a", "b"])
    )
    assert (output["errors"], output["error"], output["reward"]) == ([], None, 3.0)
    assert output["stop_condition"] == "max_turns_reached"


async def test_a_prompt_may_be_empty_until_the_model_is_asked() -> None:
    class Builds(vf.SingleTurnEnv):
        async def get_prompt_messages(self, state: vf.State) -> Any:
            return [{"role": "user", "content": "built"}]

    client = ScriptedClient(then="a")
    await run(Builds(dataset=[{"prompt": []}], rubric=vf.Rubric()), client)
    system = vf.SingleTurnEnv(dataset=[{"prompt": []}], system_prompt="s", rubric=vf.Rubric())
    await run(system, client)
    assert [spoken(prompt) for prompt in client.prompts] == [[("user", "built")], [("system", "s")]]


async def test_an_empty_prompt_is_an_error_of_its_rollout_that_names_the_row() -> None:
    rows = [{"prompt": []}, {"question": "q"}]
    client = ScriptedClient(then="a")
    env = vf.SingleTurnEnv(dataset=rows, env_id="mine", rubric=vf.Rubric())
    bad, good = await run(env, client, n=2)
    assert bad["error"]["error"] == "DatasetError"
    assert "The prompt of example 0 is empty" in bad["error"]["error_chain_repr"]
    assert "SingleTurnEnv (mine)" in bad["error"]["error_chain_repr"]
    assert (good["error"], len(client.prompts)) == (None, 1)


@pytest.mark.parametrize("kind", [list, Dataset.from_list])
@pytest.mark.parametrize("row", [{"question": "q"}, {"prompt": [{"role": "user", "content": "q"}]}])
async def test_an_empty_system_prompt_adds_no_message(row: dict[str, Any], kind: Any) -> None:
    client = ScriptedClient(["a"])
    await run(vf.SingleTurnEnv(dataset=kind([row]), system_prompt="", rubric=vf.Rubric()), client)
    assert spoken(client.prompts[0]) == [("user", "q")]


async def test_hooks_of_a_rollout_receive_what_they_name() -> None:
    seen: dict[str, Any] = {}

    class Env(Echo):
        @vf.setup
        async def begins(self, env: Any, state: vf.State) -> None:
            seen["setup"] = (env, state["question"])

        @vf.stop
        async def is_over(self, env: Any, state: vf.State) -> bool:
            seen["stop"] = env
            return len(state["trajectory"]) == 1

        @vf.cleanup
        async def by_name(self, resources: Any, env: Any, task: Any, *, state: vf.State) -> None:
            seen["cleanup"] = (resources, env, task["question"], state["question"])

        @vf.cleanup
        async def with_all(self, **kwargs: Any) -> None:
            seen["all"] = set(kwargs)

        @vf.cleanup
        def own_name(self, s: vf.State, note: str = "") -> None:
            seen["own name"] = (s["question"], note)

        @vf.cleanup
        def own_name_and_env(self, s: vf.State, env: Any) -> None:
            seen["both"] = (s["question"], env)

        @vf.cleanup
        def without(self) -> None:
            seen["without"] = True

    env = Env(dataset=[{"question": "q"}])
    [output] = await run(env, ScriptedClient(["a"]))
    assert (output["error"], output["stop_condition"]) == (None, "is_over")
    assert seen == {
        "setup": (env, "q"),
        "stop": env,
        "cleanup": (None, env, "q", "q"),
        "all": {"state", "env", "task", "resources"},
        "own name": ("q", ""),
        "both": ("q", env),
        "without": True,
    }


@pytest.mark.parametrize("mark", [vf.cleanup, vf.stop, vf.setup])
def test_a_hook_that_needs_something_else_is_refused_when_the_environment_is_made(
    mark: Any,
) -> None:
    class Env(Echo):
        @mark
        async def handler(self, state: vf.State, database: Any) -> bool:
            return False

    with pytest.raises(
        vf.ConfigError, match=r"Env\.handler has the parameter 'database'.*'state', 'env'"
    ):
        Env()


async def test_a_handler_added_later_that_cannot_be_called_is_not_passed_over() -> None:
    env, ran = Echo(max_turns=1), []
    env._cleanup_handlers += [lambda state, database: None, lambda state: ran.append(1)]
    with pytest.raises(vf.ConfigError, match="has the parameter 'database'"):
        await run(env, ScriptedClient(["a"]))
    assert ran == [1]


async def test_a_plain_dict_can_be_asked_whether_it_is_completed() -> None:
    class Env(Echo):
        @vf.stop
        async def is_solved(self, state: vf.State) -> bool:
            return bool(state.get("solved"))

    env, going, solved = Env(), {"trajectory": []}, {"solved": True}
    assert await env.is_completed(going) is False  # type: ignore[arg-type]  # what is tested
    assert await env.is_completed(solved) is True  # type: ignore[arg-type]
    assert solved == {"solved": True, "is_completed": True, "stop_condition": "is_solved"}


@pytest.mark.parametrize("kind", [list, Dataset.from_list])
async def test_a_task_given_as_json_text_becomes_the_row(kind: Any) -> None:
    inner = {"prompt": [{"role": "user", "content": "inner"}], "answer": "4", "level": 3}
    row = {"question": "outer", "answer": "outer", "task": json.dumps(inner)}
    seen: dict[str, Any] = {}

    def looks(task: Any, answer: str, level: int, state: vf.State) -> float:
        seen.update(task=task, answer=answer, level=level, row=state["input"]["answer"])
        return 1.0

    client = ScriptedClient(["a"])
    env = vf.SingleTurnEnv(dataset=kind([row]), rubric=vf.Rubric(funcs=[looks]))
    [output] = await run(env, client)
    assert (output["errors"], output["reward"]) == ([], 1.0)
    assert seen == {"task": inner, "answer": "4", "level": 3, "row": "4"}
    assert spoken(client.prompts[0]) == [("user", "inner")]


async def test_a_state_for_a_row_with_json_text_in_task_is_that_of_the_object() -> None:
    inner = {"prompt": [{"role": "user", "content": "inner"}], "answer": "4", "level": 3}
    row = {"prompt": [{"role": "user", "content": "outer"}], "task": json.dumps(inner)}
    env = vf.SingleTurnEnv(dataset=[{"question": "q"}], system_prompt="s", rubric=vf.Rubric())
    state = await env.init_state({**row, "example_id": 7}, ScriptedClient(), "m")
    assert spoken(state["prompt"]) == [("system", "s"), ("user", "inner")]
    assert (state["task"], state["level"], state["example_id"]) == (inner, 3, 7)
    assert state["input"]["answer"] == "4"


@pytest.mark.parametrize("task", ["plain", "{broken", '{"level": 3}', "[1]"])
async def test_other_text_in_task_stays_text(task: str) -> None:
    env = vf.SingleTurnEnv(
        dataset=[{"question": "q", "task": task}],
        rubric=vf.Rubric(funcs=[lambda state: float(state["task"] == task)]),
    )
    [output] = await run(env, ScriptedClient(["a"]))
    assert output["reward"] == 1.0

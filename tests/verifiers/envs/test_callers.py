"""The two generations of callers, as trainers write them: what they pass, what they read."""

import asyncio
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import Reply, ScriptedClient
from verifiers.types import GenerateInputs
from verifiers.utils.async_utils import maybe_semaphore
from verifiers.utils.message_utils import messages_to_printable

IDS = list(range(5))


class Completions:
    """`.chat.completions.create` and nothing more, as trainers put it before their own sampler."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def create(self, **arguments: Any) -> Any:
        self.asked.append(arguments)
        await asyncio.sleep(0)
        message = SimpleNamespace(role="assistant", content="4", tool_calls=None)
        content = [SimpleNamespace(token="x", logprob=-0.5, top_logprobs=[]) for _ in IDS]
        choice = SimpleNamespace(
            index=0,
            message=message,
            finish_reason="stop",
            token_ids=IDS,
            logprobs=SimpleNamespace(content=content),
        )
        usage = SimpleNamespace(prompt_tokens=3, completion_tokens=5, total_tokens=8)
        return SimpleNamespace(
            id="r",
            created=1,
            model="m",
            object="chat.completion",
            choices=[choice],
            usage=usage,
            prompt_token_ids=[7, 8, 9],
        )


class Duck:
    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=Completions())
        self.base_url = "http://trainer.invalid/v1"


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def environment() -> vf.SingleTurnEnv:
    rows = [{"question": f"q{number}", "answer": "4", "info": {"n": number}} for number in range(3)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[right]))


TOKENS = {
    "prompt_ids": [7, 8, 9],
    "prompt_mask": [0, 0, 0],
    "completion_ids": IDS,
    "completion_mask": [1] * 5,
    "completion_logprobs": [-0.5] * 5,
}


def check_tokens(tokens: Any) -> None:
    assert {name: tokens[name] for name in TOKENS} == TOKENS


# ---------------------------------------------------------------------------------------------- generation a


async def test_a_group_called_as_in_0_1_9_gives_states() -> None:
    env = environment()
    row = env.get_dataset(n=1, seed=3)[0]
    inputs = [
        vf.RolloutInput(
            prompt=row["prompt"],
            answer=row["answer"],
            task=row.get("task", "default"),
            info=row["info"],
            example_id=row["example_id"],
        )
        for _ in range(2)
    ]
    states = await env.run_group(
        group_inputs=inputs,
        client=Duck(),
        model="tinker",
        gen_sampling_args={"temperature": 1.0},
        gen_sem=await maybe_semaphore(1),
        score_sem=await maybe_semaphore(-1),
    )
    assert [type(state) for state in states] == [vf.State, vf.State]
    for state in states:
        assert (state["reward"], state["metrics"]["right"]) == (1.0, 1.0)
        check_tokens(state["trajectory"][0]["tokens"])
        assert messages_to_printable(state["completion"])[0]["content"] == "4"


async def test_a_group_called_as_in_0_1_9_by_position_gives_states_too() -> None:
    env = environment()
    limit = asyncio.Semaphore(1)
    states = await env.run_group(
        [env.get_dataset()[0]] * 2, ScriptedClient(["4", "5"]), "m", {}, limit, limit
    )
    assert sorted(state["advantage"] for state in states) == [-0.5, 0.5]


async def test_a_rollout_scored_in_a_second_step_as_in_0_1_9() -> None:
    env = environment()
    state = await env.rollout(
        input=env.get_dataset()[0], client=Duck(), model="m", sampling_args={"n": 1}
    )
    assert state["reward"] is None
    await env.rubric.score_rollout(state, score_sem=asyncio.Semaphore(1))
    assert (state["reward"], state["trajectory"][0]["reward"]) == (1.0, 1.0)
    assert "task" not in state or isinstance(state["task"], str)


async def test_a_rollout_under_a_semaphore_as_in_0_1_8() -> None:
    env = environment()
    limit = asyncio.Semaphore(1)
    for arguments, named in (
        ((limit, env.get_dataset()[0], Duck(), "m", {}), {}),
        (
            (),
            {
                "sem": limit,
                "input": env.get_dataset()[0],
                "client": Duck(),
                "model": "m",
                "sampling_args": {},
            },
        ),
    ):
        state = await env.run_rollout(*arguments, **named)
        assert isinstance(state, vf.State)
        assert state["completion"][0]["content"] == "4"


async def test_generate_gives_parallel_lists_as_attributes() -> None:
    env = environment()
    inputs = [vf.RolloutInput(**row) for row in env.get_dataset().to_list()]
    results = await env.generate(inputs=inputs, client=Duck(), model="m", sampling_args={})
    assert results.reward == [1.0, 1.0, 1.0]
    assert [completion[0]["content"] for completion in results.completion] == ["4"] * 3
    assert [prompt[0]["content"] for prompt in results.prompt] == ["q0", "q1", "q2"]
    assert results.metrics["right"] == [1.0, 1.0, 1.0]
    assert len(results.state) == 3


PROMPT = [{"role": "user", "content": "q"}]


@pytest.mark.parametrize("form", ["by position", "by keyword", "mixed"])
async def test_the_response_of_a_model_without_a_state_is_that_of_the_callers_client(
    form: str,
) -> None:
    env, client = environment(), Duck()
    if form == "by position":
        response = await env.get_model_response(client, "m", PROMPT, None, {"temperature": 0.1})
    elif form == "mixed":
        response = await env.get_model_response(
            client, model="m", prompt=PROMPT, sampling_args={"temperature": 0.1}
        )
    else:
        response = await env.get_model_response(
            prompt=PROMPT,
            client=client,
            model="m",
            message_type="chat",
            sampling_args={"temperature": 0.1},
        )
    assert response.choices[0].message.content == "4"
    [asked] = client.chat.completions.asked
    assert (asked["model"], asked["temperature"], asked["messages"]) == ("m", 0.1, PROMPT)


async def test_a_client_of_ours_and_a_call_with_a_state_give_a_response() -> None:
    env, client = environment(), ScriptedClient(then="4")
    state = await env.init_state({"question": "q"}, client, "m")
    for response in (
        await env.get_model_response(client, "m", PROMPT),
        await env.get_model_response(state, state["prompt"]),
        await env.get_model_response(state=state, prompt=state["prompt"]),
        await env.get_model_response(state, state["prompt"], Duck(), "m"),
    ):
        assert isinstance(response, vf.Response)
        assert response.message.content == "4"


@pytest.mark.parametrize("given", [{}, {"client": Duck}, {"model": "m", "prompt": PROMPT}])
async def test_a_model_call_without_what_it_needs_says_how_to_call(given: dict[str, Any]) -> None:
    with pytest.raises(vf.ConfigError, match=r"accepts \(state, prompt|Unsupported client type"):
        await environment().get_model_response(**given)


# ---------------------------------------------------------------------------------------------- generation b


async def test_a_rollout_called_as_in_0_1_14_gives_an_output() -> None:
    env = environment()
    output = await env.run_rollout(
        vf.RolloutInput(**env.get_dataset()[0]),
        client=Duck(),
        model="m",
        sampling_args={"temperature": 0.7},
        max_retries=1,
        state_columns=["trajectory", "sampling_args"],
        env_client=None,
    )
    assert isinstance(output, vf.RolloutOutput)
    check_tokens(output["trajectory"][0]["tokens"])
    assert output["sampling_args"]["temperature"] == 0.7
    assert output["token_usage"]["final_output_tokens"] == 5
    assert output["error"] is None
    for key in [
        "example_id",
        "stop_condition",
        "is_truncated",
        "completion",
        "metrics",
        "tool_defs",
    ]:
        assert key in output


async def test_a_group_called_as_in_0_1_14_gives_outputs() -> None:
    env = environment()
    inputs = [
        vf.RolloutInput(
            prompt=[{"role": "user", "content": "q"}], answer="4", info={}, example_id=0
        )
    ] * 2
    outputs = await env.run_group(
        group_inputs=inputs,
        client=ScriptedClient(["4", vf.ModelError("gone")], token_ids=True),
        model="m",
        sampling_args={},
        state_columns=["trajectory"],
    )
    assert [output["reward"] for output in outputs] == [1.0, 0.0]
    assert outputs[0]["trajectory"][0]["completion"][0]["content"] == "4"
    assert outputs[1]["error"]["error"] == "ModelError"
    assert "ModelError('gone')" in outputs[1]["error"]["error_chain_repr"]


async def test_an_environment_client_is_asked_instead_when_given() -> None:
    class Remote:
        async def run_rollout(self, *args: Any) -> Any:
            return ("rollout", args[2:])

        async def run_group(self, *args: Any) -> Any:
            return ("group", args[2:])

    env = environment()
    row = env.get_dataset()[0]
    client = vf.ClientConfig()
    one = await env.run_rollout(
        row, client=client, model="m", sampling_args={}, env_client=Remote()
    )
    assert one == ("rollout", ("m", {}, 0, None))
    both = await env.run_group(
        [row], client=client, model="m", sampling_args={}, env_client=Remote()
    )
    assert both == ("group", ("m", {}, 0, None))


def test_what_a_trainer_asks_about_the_rubric() -> None:
    env = environment()
    functions = env.rubric._get_reward_funcs()
    assert [function.__name__ for function in functions] == ["right", "num_turns"]
    assert not any(env.rubric._is_group_func(function) for function in functions)


# ---------------------------------------------------------------------------------------------- sync callers


def test_evaluate_sync_without_a_loop() -> None:
    results = environment().evaluate_sync(
        Duck(), "m", num_examples=2, rollouts_per_example=2, max_concurrent=4
    )
    assert [output["example_id"] for output in results["outputs"]] == [0, 0, 1, 1]


async def test_sync_calls_inside_a_running_loop() -> None:
    results = environment().evaluate_sync(
        client=ScriptedClient(then="4"), model="m", num_examples=1
    )
    assert results["outputs"][0]["reward"] == 1.0
    results = environment().generate_sync(environment().get_dataset(), Duck(), "m")
    assert len(results["outputs"]) == 3


async def test_an_error_of_a_sync_call_inside_a_running_loop_is_raised() -> None:
    with pytest.raises(vf.AuthenticationError, match="wrong"):
        environment().evaluate_sync(ScriptedClient(then=vf.AuthenticationError("wrong")), "m")


@pytest.mark.parametrize("wrong", [None, "gpt-4", 5, object()])
async def test_what_is_no_client_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(vf.ConfigError, match=f"Unsupported client type: {type(wrong).__name__}"):
        await environment().evaluate(wrong, "m")


def test_ctrl_c_while_a_sync_call_waits_cancels_its_run() -> None:
    def press(prompt: Any) -> Reply:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        return Reply("late", after=asyncio.Event())

    async def notebook() -> None:
        environment().evaluate_sync(client, "m", num_examples=1)

    client = ScriptedClient(press)
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(notebook())
    finally:
        loop.close()
    assert client.in_flight == 0
    assert "run-sync" not in [thread.name for thread in threading.enumerate()]


async def test_an_unknown_option_is_refused_with_a_hint() -> None:
    with pytest.raises(
        vf.ConfigError, match=r"no option 'max_concurent'\. Did you mean 'max_concurrent'"
    ):
        await environment().evaluate(ScriptedClient(), "m", max_concurent=3)


async def test_options_that_older_callers_pass_are_taken() -> None:
    results = await environment().generate(
        environment().get_dataset(),
        ScriptedClient(then="4"),
        "m",
        max_concurrent_generation=2,
        max_concurrent_scoring=1,
        interleave_scoring=True,
        use_tqdm=False,
        save_every=1,
    )
    assert results.metadata["avg_reward"] == 1.0


async def test_generate_takes_columns_rows_and_datasets() -> None:
    env = environment()
    columns = {
        "prompt": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]],
        "answer": ["4", "5"],
    }
    for inputs in (
        columns,
        GenerateInputs(**columns),
        [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
    ):
        results = await env.generate(inputs, ScriptedClient(then="4"), "m")
        assert results["reward"] == [1.0, 0.0]
    with pytest.raises(vf.DatasetError, match="got int: 5"):
        await env.generate(5, ScriptedClient(), "m")  # type: ignore[arg-type]


async def test_no_inputs_give_no_outputs() -> None:
    results = await environment().generate([], ScriptedClient(), "m")
    assert (results["outputs"], results["metadata"]["avg_reward"]) == ([], 0.0)


async def test_results_come_in_the_order_of_the_inputs_whatever_ended_first() -> None:
    async def slow_first(prompt: Any) -> str:
        for _ in range(0 if prompt[-1]["content"] != "q0" else 20):
            await asyncio.sleep(0)
        return "4"

    results = await environment().evaluate(ScriptedClient(slow_first), "m", rollouts_per_example=2)
    assert [o["example_id"] for o in results["outputs"]] == [0, 0, 1, 1, 2, 2]
    assert [o["rollout_index"] for o in results["outputs"]] == [0, 1] * 3


async def test_the_number_of_rollouts_at_once_is_limited() -> None:
    client = ScriptedClient(then="4")
    await environment().evaluate(client, "m", rollouts_per_example=4, max_concurrent=3)
    assert (client.most_in_flight, len(client.requests)) == (3, 12)


async def test_setting_the_stop_event_keeps_what_is_finished() -> None:
    stop = asyncio.Event()
    never = asyncio.Event()

    async def answer(prompt: Any) -> str:
        if prompt[-1]["content"] == "q1":
            stop.set()
            await never.wait()
        return "4"

    results = await environment().evaluate(ScriptedClient(answer), "m", max_concurrent=1, stop=stop)
    assert [output["example_id"] for output in results["outputs"]] == [0]
    assert results["metadata"]["interrupted"] is True


async def test_callbacks_follow_a_run() -> None:
    log: list[Any] = []
    await environment().evaluate(
        ScriptedClient(then="4"),
        "m",
        rollouts_per_example=2,
        max_concurrent=1,
        on_start=lambda rows, groups: log.append((len(rows), [len(group) for group in groups])),
        on_progress=lambda outputs, new, metadata: log.append(
            (len(outputs), len(new), metadata["avg_reward"])
        ),
    )
    assert log == [(6, [2, 2, 2]), (2, 2, 1.0), (4, 2, 1.0), (6, 2, 1.0)]


async def test_strict_stops_at_the_first_reward_function_that_raises() -> None:
    env = vf.SingleTurnEnv(
        dataset=[{"question": "q"}], rubric=vf.Rubric(funcs=[lambda answer: 1 / 0])
    )
    with pytest.raises(vf.RewardError, match="ZeroDivisionError"):
        await env.evaluate(ScriptedClient(["4"]), "m", strict=True)


def test_errors_of_a_sync_call_carry_only_their_own_causes() -> None:
    class Failing(vf.SingleTurnEnv):
        async def setup_state(self, state: vf.State) -> vf.State:
            raise KeyError("mine")

    env = Failing(dataset=[{"question": "q"}], rubric=vf.Rubric())
    [output] = env.evaluate_sync(ScriptedClient(["a"]), "scripted").outputs
    assert output["error"] is not None
    assert output["error"]["error_chain_str"] == "EnvironmentCodeError -> KeyError"

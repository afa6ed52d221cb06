import logging
from typing import Any

import pytest
from datasets import Dataset

import verifiers as vf
from verifiers.envs.env_group import ENV_GROUP_INFO_KEY, EnvGroupRubric
from verifiers.testing import ScriptedClient, run


def rubric(name: str, value: float) -> vf.Rubric:
    def score(completion: Any) -> float:
        return value

    score.__name__ = name
    return vf.Rubric(funcs=[score])


def single(word: str, value: float, count: int = 2, **kwargs: Any) -> vf.SingleTurnEnv:
    rows = [{"question": f"{word} {number}", "answer": word} for number in range(count)]
    return vf.SingleTurnEnv(**{"dataset": rows, "rubric": rubric(word, value), **kwargs})


def questions(outputs: Any) -> list[str]:
    return [output["prompt"][-1]["content"] for output in outputs]


async def test_each_row_is_played_and_scored_by_its_own_environment() -> None:
    group = vf.EnvGroup([single("a", 1.0), single("b", 2.0)], env_names=["first", "second"])
    outputs = await run(group, ScriptedClient(then="x"), n=-1)
    assert questions(outputs) == ["a 0", "a 1", "b 0", "b 1"]
    assert [output["reward"] for output in outputs] == [1.0, 1.0, 2.0, 2.0]
    assert [output["info"]["env_id"] for output in outputs] == ["first"] * 2 + ["second"] * 2
    assert outputs[0]["metrics"] == {"a": 1.0, "num_turns": 1.0}
    assert [output["example_id"] for output in outputs] == [0, 1, 2, 3]


async def test_a_group_inside_a_group_routes_to_the_innermost_environment() -> None:
    inner = vf.EnvGroup([single("a", 1.0), single("b", 2.0)], env_names=["x", "y"])
    outer = vf.EnvGroup([single("c", 3.0), inner], env_names=["plain", "nested"])
    outputs = await run(outer, ScriptedClient(then="x"), n=-1, rollouts_per_example=2)
    assert [output["reward"] for output in outputs] == [3.0] * 4 + [1.0] * 4 + [2.0] * 4
    assert all(output["errors"] == [] and output["error"] is None for output in outputs)
    assert outputs[4]["info"]["env_id"] == ["nested", "x"]
    assert outputs[4]["task"] == "nested"
    assert outer._input_env_route(outputs[4]) == ("nested", "x")


async def test_group_rewards_and_advantages_work_within_a_group() -> None:
    def rank(completions: Any) -> list[float]:
        return [float(index) for index in range(len(completions))]

    group = vf.EnvGroup([single("a", 1.0, rubric=vf.Rubric(funcs=[rank])), single("b", 2.0)])
    assert group.requires_group_rollouts
    outputs = await run(
        group, ScriptedClient(then="x"), n=1, rollouts_per_example=3, state_columns=["advantage"]
    )
    assert [(output["reward"], output["advantage"]) for output in outputs] == [
        (0.0, -1.0),
        (1.0, 0.0),
        (2.0, 1.0),
    ]


async def test_rows_with_a_string_task_route_by_it() -> None:
    group = vf.EnvGroup([single("a", 1.0), single("b", 2.0)], env_names=["first", "second"])
    row = {"prompt": [{"role": "user", "content": "q"}], "task": "second", "example_id": 0}
    state = await group.rollout(row, ScriptedClient(["x"]), "m", {})
    await group.rubric.score_rollout(state)
    assert state["reward"] == 2.0


async def test_an_unknown_task_is_an_error_that_names_the_environments() -> None:
    group = vf.EnvGroup([single("a", 1.0)], env_names=["first"])
    with pytest.raises(vf.DatasetError, match=r"task='third'.*\['first'\]"):
        await group.rollout({"prompt": "q", "task": "third"}, ScriptedClient(), "m", {})
    with pytest.raises(vf.DatasetError):
        group.get_env_for_task("third")
    assert group.get_env_for_task("first") is group.envs[0]


def test_names_must_match_and_differ() -> None:
    with pytest.raises(ValueError, match="at least one environment"):
        vf.EnvGroup([])
    with pytest.raises(
        ValueError, match=r"Number of env_names must match number of envs: .* 1 names and 2 env"
    ):
        vf.EnvGroup([single("a", 1.0), single("b", 1.0)], env_names=["one"])
    with pytest.raises(ValueError, match="must differ"):
        vf.EnvGroup([single("a", 1.0), single("b", 1.0)], env_names=["one", "one"])


async def test_rows_with_different_info_do_not_clash() -> None:
    one = single("a", 1.0, dataset=[{"question": "a", "info": {"x": 1}}])
    other = single("b", 2.0, dataset=[{"question": "b", "info": {"y": [1, 2]}}, {"question": "c"}])
    outputs = await run(vf.EnvGroup([one, other]), ScriptedClient(then="x"), n=-1)
    assert [output["info"] for output in outputs] == [
        {"x": 1, "env_id": "env_0"},
        {"y": [1, 2], "env_id": "env_1"},
        {"env_id": "env_1"},
    ]


async def test_a_group_of_arrow_datasets_is_one_unless_that_would_add_keys() -> None:
    def dataset(**info: Any) -> Any:
        return Dataset.from_list([{"question": "q", "answer": "a", "info": info}])

    same = vf.EnvGroup([single("a", 1.0, dataset=dataset(x=n)) for n in range(2)])
    assert isinstance(same.get_dataset(), Dataset)
    assert same.get_dataset()[1]["info"] == {"x": 1, "env_id": "env_1"}
    different = vf.EnvGroup(
        [single("a", 1.0, dataset=dataset(x=1)), single("b", 1.0, dataset=dataset(y=2))]
    )
    assert [row["info"] for row in different.get_dataset()] == [
        {"x": 1, "env_id": "env_0"},
        {"y": 2, "env_id": "env_1"},
    ]


async def test_endless_environments_take_turns() -> None:
    def rows(word: str) -> Any:
        def make() -> Any:
            number = 0
            while True:
                yield {"question": f"{word} {number}"}
                number += 1

        return make

    group = vf.EnvGroup([single("a", 1.0, dataset=rows("a")), single("b", 2.0, count=1)])
    outputs = await run(group, ScriptedClient(then="x"), n=4)
    assert questions(outputs) == ["a 0", "b 0", "a 1", "a 2"]
    with pytest.raises(vf.DatasetError, match="no known length"):
        await run(group, ScriptedClient(), n=-1)


async def test_settings_reach_every_environment_and_closing_closes_all() -> None:
    closed: list[str] = []

    class Env(vf.SingleTurnEnv):
        @vf.teardown
        async def close(self) -> None:
            closed.append("x")

    envs = [Env(dataset=[{"question": "q"}]) for _ in range(2)]
    async with vf.EnvGroup(envs) as group:
        group.set_kwargs(max_seq_len=7, score_rollouts=False)
        assert [(env.max_seq_len, env.score_rollouts) for env in envs] == [(7, False)] * 2
    assert closed == ["x", "x"]


async def test_handlers_of_the_rows_environment_run() -> None:
    log: list[str] = []

    class Env(vf.SingleTurnEnv):
        @vf.update
        async def update(self, state: vf.State) -> None:
            log.append(f"update {state['completion'][0]['content']}")

        @vf.cleanup
        async def tidy(self, state: vf.State) -> None:
            log.append("cleanup")

    group = vf.EnvGroup([Env(dataset=[{"question": "q"}]), single("b", 1.0)])
    await run(group, ScriptedClient(then="x"), n=-1)
    assert log == ["cleanup", "update x"]


async def test_the_evaluation_set_falls_back_to_the_training_rows_of_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held_out = single("a", 1.0, eval_dataset=[{"question": "held out"}])
    group = vf.EnvGroup([held_out, single("b", 1.0, count=1)])
    with caplog.at_level(logging.INFO, "verifiers"):
        rows = group.get_eval_dataset()
    assert [row["prompt"][0]["content"] for row in rows] == ["held out", "b 0"]
    assert len(group.get_dataset()) == 3


async def test_sampling_arguments_are_the_callers_over_the_environments_own_over_the_groups() -> (
    None
):
    own = {"temperature": 0.2, "top_p": 0.3, "extra_body": {"top_k": 5}}
    group = vf.EnvGroup(
        [single("a", 1.0, 1, sampling_args=own), single("b", 1.0, 1)],
        env_names=["own", "plain"],
        sampling_args={"top_p": 0.9, "seed": 7, "extra_body": {"min_p": 0.1}},
    )
    client = ScriptedClient(then="x")

    await group.evaluate(client, "m", {"temperature": 1.0}, num_examples=-1, rollouts_per_example=1)

    first, second = (request.sampling_args for request in client.requests)
    assert first["temperature"] == second["temperature"] == 1.0
    assert (first["top_p"], second["top_p"]) == (0.3, 0.9)
    assert first["seed"] == second["seed"] == 7
    assert first["extra_body"] == {"min_p": 0.1, "top_k": 5}
    assert second["extra_body"] == {"min_p": 0.1}


async def test_a_group_of_environments_for_evaluation_has_no_training_rows() -> None:
    members = [
        vf.SingleTurnEnv(eval_dataset=[{"question": text}], rubric=vf.Rubric()) for text in "ab"
    ]
    group = vf.EnvGroup(members)
    assert group.dataset is None
    assert [row["question"] for row in group.eval_dataset] == ["a", "b"]
    assert len(await run(group, ScriptedClient(then="x"), n=2)) == 2
    with pytest.raises(vf.ConfigError, match="dataset is not set"):
        group.get_dataset()
    mixed = vf.EnvGroup(
        [*members, vf.SingleTurnEnv(dataset=[{"question": "c"}], rubric=vf.Rubric())]
    )
    assert [row["question"] for row in mixed.dataset] == ["c"]


def test_an_unknown_task_has_no_environment() -> None:
    group = vf.EnvGroup([vf.SingleTurnEnv(dataset=[{"question": "a"}], rubric=vf.Rubric())])
    with pytest.raises(vf.DatasetError, match="No environment found"):
        group.get_env_for_task("unknown")


def test_the_route_of_a_row_leads_to_its_environment_through_nested_groups() -> None:
    def group() -> vf.EnvGroup:
        rows = [{"question": "q", "answer": "a"}]
        members = [vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric()) for _ in range(2)]
        return vf.EnvGroup(members, env_names=["x", "y"])

    nested = vf.EnvGroup([group(), group()], env_names=["n", "z"])
    routes = [nested._input_env_route(row) for row in nested.get_dataset()]
    assert routes == [("n", "x"), ("n", "y"), ("z", "x"), ("z", "y")]
    assert nested._input_env_route({"info": {ENV_GROUP_INFO_KEY: "z"}, "task": "n"}) == ("z",)
    assert nested._input_env_route({"info": {"env_id": ["n", "x"]}}) == ("n", "x")
    assert nested._input_env_route({"info": '{"env_id": "z"}'}) == ("z",)
    for info in ({}, None, "{", {"env_id": []}, {"env_id": [3]}):
        with pytest.raises(ValueError, match=r"missing info\['env_id'\]"):
            nested._input_env_route({"info": info, "task": "n"})


async def test_a_scored_rollout_has_the_metrics_of_all_environments() -> None:
    group = vf.EnvGroup(
        [single("a", 0.5, rubric=rubric("first", 0.5)), single("b", 1.0)], env_names=["x", "y"]
    )
    assert isinstance(group.rubric, EnvGroupRubric)
    assert group.rubric.all_reward_names == sorted(group.rubric.all_reward_names)
    state = vf.State.for_row({"prompt": [], "info": {"env_id": "x"}, "example_id": 0})
    state.update(completion=[], trajectory=[], error=None)
    await group.rubric.score_rollout(state)
    assert state["metrics"] == {"b": 0.0, "first": 0.5, "num_turns": 0.0}

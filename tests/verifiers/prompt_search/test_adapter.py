"""The API of 0.1.14 for programs that call gepa themselves: adapter, rows, reflection, `verifiers.scripts.gepa`."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.gepa import (
    GEPAConfig,
    GEPADisplay,
    VerifiersGEPAAdapter,
    make_reflection_lm,
)
from verifiers.prompt_search.rows import balanced_counts, with_system
from verifiers.scripts import gepa as script
from verifiers.testing import ScriptedClient

pytest.importorskip("gepa", reason="the extra gepa is not installed")


def is_polite(completion: Any, state: Any) -> float:
    state["seen"] = "yes"
    return 1.0 if "please" in completion[-1]["content"] else 0.25


def environment(count: int = 4, tag: str = "q", **options: Any) -> vf.Environment:
    rows = [{"question": f"{tag}{number}", "answer": f"a{number}"} for number in range(count)]
    held_out = [{"question": f"held {tag}{number}", "answer": "x"} for number in range(count)]
    rubric = vf.Rubric(funcs=[is_polite])
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=held_out, rubric=rubric, **options)


def reply(prompt: Any) -> str:
    return "yes please" if prompt[0]["content"] == "Be polite." else "no"


def adapter(**options: Any) -> VerifiersGEPAAdapter:
    return VerifiersGEPAAdapter(
        env=environment(system_prompt="Be quick."),
        client=ScriptedClient(reply),
        model="m",
        **options,
    )


def test_a_batch_is_played_with_the_prompt_of_the_candidate() -> None:
    display = GEPADisplay("e", "m", "r")
    tested = adapter(display=display, state_columns=["seen"])
    batch = [dict(row) for row in tested.env.get_dataset(n=3)]
    batch.append(batch[0])

    found = tested.evaluate(batch, {"system_prompt": "Be polite."}, capture_traces=True)

    assert found.scores == [1.0] * 4
    assert [output["example_id"] for output in found.outputs] == [0, 1, 2, 0]
    assert found.trajectories == found.outputs
    assert display.metric_calls == 4
    prompt = tested.client.requests[0].prompt
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert prompt[0]["content"] == "Be polite."
    records = tested.make_reflective_dataset({}, found, ["system_prompt"])["system_prompt"]
    assert records[1]["query"] == "q1"
    assert records[1]["completion"][0]["content"] == "yes please"
    assert records[1]["expected_answer"] == "a1"
    assert (records[1]["reward"], records[1]["seen"]) == (1.0, "yes")
    assert records[1]["stop_condition"] == "max_turns_reached"
    assert "error" not in records[1]


async def test_a_batch_without_traces_gives_no_records_also_inside_a_running_loop() -> None:
    tested = adapter()
    rows = list(tested.env.get_dataset(n=2))
    found = tested.evaluate(rows, {"system_prompt": "Be quick."})
    assert (found.scores, found.trajectories) == ([0.25, 0.25], None)
    assert tested.make_reflective_dataset({}, found, ["system_prompt"]) == {"system_prompt": []}


def test_a_failed_rollout_has_its_error_in_its_record() -> None:
    class Broken(vf.SingleTurnEnv):
        async def setup_state(self, state: Any) -> Any:
            raise vf.ToolError("no tool")

    env = Broken(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric(funcs=[is_polite]))
    tested = VerifiersGEPAAdapter(env=env, client=ScriptedClient(reply), model="m")
    found = tested.evaluate(list(env.get_dataset()), {"system_prompt": "x"}, capture_traces=True)
    [record] = tested.make_reflective_dataset({}, found, ["system_prompt"])["system_prompt"]
    assert record["error"]["error"] == "ToolError"
    assert record["stop_condition"] == "has_error"


def test_the_prompt_of_the_candidate_replaces_or_precedes() -> None:
    system, user = {"role": "system", "content": "a"}, {"role": "user", "content": "b"}
    assert with_system([system, user], "c") == [{"role": "system", "content": "c"}, user]
    assert with_system([user], "c") == [{"role": "system", "content": "c"}, user]
    assert with_system([user, system], "c")[1:] == [user, system]
    assert with_system([system, user], "") == [system, user]
    assert with_system("text", "c") == "c\n\ntext"


def test_the_reflecting_model_answers_texts_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ScriptedClient(then="better")
    monkeypatch.setattr("verifiers.prompt_search.adapter.resolve_client", lambda config: client)
    ask = make_reflection_lm(vf.ClientConfig(), "r", temperature=0.3)
    assert ask("improve") == "better"
    assert ask([{"role": "user", "content": "improve"}]) == "better"
    assert [request.prompt[0]["content"] for request in client.requests] == ["improve", "improve"]
    assert client.requests[0].sampling_args["temperature"] == 0.3


def test_the_settings_have_the_defaults_of_v0() -> None:
    config = GEPAConfig(env_id="e")
    assert (config.num_train_examples, config.num_val_examples) == (100, 50)
    assert (config.max_metric_calls, config.reflection_minibatch_size) == (500, 3)
    assert (config.max_concurrent, config.seed, config.save_results) == (32, 0, True)


def test_the_display_writes_lines_to_its_file(tmp_path: Path) -> None:
    display = GEPADisplay("e", "m", "r", max_metric_calls=9, log_file=tmp_path / "log" / "search")
    display.start()
    display.set_valset_info(2, [0, 1])
    display.update_eval(0, [1.0, 0.0], [0, 1])
    display.set_result("best", "folder")
    display.stop()
    lines = (tmp_path / "log" / "search").read_text().splitlines()
    assert lines[1] == "prompt 0: evaluation of 2 examples, mean reward 0.500 (2/9 rollouts)"
    assert lines[2:] == ["saved in folder", "best prompt: best", "e: 2 rollouts played"]


def test_rows_of_several_environments_are_drawn_evenly_and_routed() -> None:
    inner = vf.EnvGroup([environment(3, "c"), environment(3, "d")], env_names=["C", "D"])
    envs = [environment(5, "a"), environment(1, "b"), inner]
    names = ["A", "B", "G"]
    group = vf.EnvGroup(envs, env_names=names)
    rows = script._load_gepa_dataset(group, envs, names, "train", 7, 0)
    assert balanced_counts(7, 3) == [3, 2, 2]
    assert [row["task"] for row in rows] == ["A", "A", "A", "B", "B", "G", "G"]
    assert [row["example_id"] for row in rows] == list(range(7))
    assert rows[3]["source_example_id"] == rows[4]["source_example_id"] == 0  # repeated
    assert rows[0]["info"] == {"env_id": "A"}
    assert rows[5]["info"]["env_id"][0] == "G"
    assert rows[5]["info"]["env_id"][1] in ("C", "D")


def test_rows_of_one_environment_stay_as_they_are() -> None:
    env = environment(4)
    rows = script._load_gepa_dataset(env, [env], ["e"], "validation", 2, 0)
    assert isinstance(rows, list)
    assert all(row["question"].startswith("held") for row in rows)
    assert "source_example_id" not in rows[0]
    with pytest.raises(ValueError, match="No train examples available for GEPA"):
        script._load_gepa_dataset(env, [env], ["e"], "train", 0, 0)


async def test_rows_of_nested_groups_are_played_by_their_environment() -> None:
    inner = vf.EnvGroup([environment(1, "c"), environment(1, "d")], env_names=["C", "D"])
    group = vf.EnvGroup([environment(1, "a"), inner], env_names=["A", "G"])
    rows = script._load_gepa_dataset(group, group.envs, group.env_names, "train", -1, 0)
    tested = VerifiersGEPAAdapter(env=group, client=ScriptedClient(reply), model="m")
    assert tested.evaluate(rows, {"system_prompt": "Be polite."}).scores == [1.0, 1.0, 1.0]


def test_headers_of_an_endpoint_must_agree() -> None:
    shared = {"extra_headers": {"a": "1"}}
    assert script._gepa_extra_headers_from_group([shared, dict(shared)], "x") == {"a": "1"}
    assert script._gepa_extra_headers_from_group([{}, {}], "x") == {}
    with pytest.raises(ValueError, match="'x' have different headers"):
        script._gepa_extra_headers_from_group([shared, {}], "x")


def test_a_search_of_two_environments_is_run_and_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def optimize(**arguments: Any) -> Any:
        asked.update(arguments)
        scores = arguments["adapter"].evaluate(arguments["valset"], {"system_prompt": "Be polite."})
        best = {"system_prompt": "Be polite."}
        return SimpleNamespace(
            best_idx=0,
            best_candidate=best,
            candidates=[best],
            val_aggregate_scores=[sum(scores.scores) / len(scores.scores)],
            total_metric_calls=len(scores.scores),
        )

    monkeypatch.setattr(script, "optimize", optimize, raising=False)
    monkeypatch.setattr(
        script, "load_environment", lambda env_id, **args: environment(system_prompt="First.")
    )
    monkeypatch.setattr(script, "resolve_client", lambda config: ScriptedClient(reply))
    envs = [{"env_id": "a", "env_args": {}, "extra_env_kwargs": {}}] * 2
    config = vf.ClientConfig()
    found = script.run_gepa_optimization(
        "a+a", envs, "m", "r", config, config, 9, 2, None, [], 4, 3, 2, {}, 1, tmp_path, True
    )
    assert found.val_aggregate_scores == [1.0]
    assert asked["seed_candidate"] == {"system_prompt": "First."}
    assert [row["task"] for row in asked["trainset"]] == ["a", "a", "a:2", "a:2"]
    assert (asked["max_metric_calls"], asked["skip_perfect_score"]) == (9, False)
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    assert (metadata["env_id"], metadata["best_score"]) == ("a+a", 1.0)
    assert metadata["config"]["num_train"] == 4

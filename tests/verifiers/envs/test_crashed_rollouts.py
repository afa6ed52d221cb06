"""A rollout that crashed earns nothing: not in the headline, not in a group, not for a trainer."""

import json
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.runs.summary import summarize
from verifiers.testing import ScriptedClient, run
from verifiers.training.advantages import group_samples

ROWS = [{"question": "2+2?", "answer": "4"}]


class Author(Exception):
    """An exception of an environment's author."""


class BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def crashing(error: BaseException, *, when: str = "env_response", word: str = "crash") -> type:
    """An environment that raises in a hook after the model has said `word`."""

    class Crashing(vf.MultiTurnEnv):
        async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> Any:
            self.fail(state, "env_response")
            return "go on"

        @vf.stop
        async def stopped(self, state: vf.State) -> bool:
            self.fail(state, "stop")
            return False

        @vf.cleanup
        async def tidy(self, state: vf.State) -> None:
            self.fail(state, "cleanup")

        @vf.update
        async def look(self, state: vf.State) -> None:
            self.fail(state, "update")

        def fail(self, state: vf.State, hook: str) -> None:
            said = [step["completion"][-1]["content"] for step in state["trajectory"]]
            if hook == when and word in said:
                raise error

    return Crashing


def always(state: vf.State) -> float:
    return 1.0


def environment(kind: type, *funcs: Any, **kwargs: Any) -> Any:
    rubric = kwargs.pop("rubric", None) or vf.Rubric(funcs=list(funcs) or [always])
    return kind(dataset=ROWS, max_turns=2, rubric=rubric, **kwargs)


VOID = [
    Author("bug"),
    KeyError("board"),
    BadText(),
    SystemExit(3),
    vf.SandboxError("lost"),
    vf.TunnelError("lost"),
    vf.InfraError("lost"),
    vf.errors.EndpointUnavailable("gone"),
    vf.errors.RateLimitError("slow down"),
    vf.errors.DatasetError("author's mistake"),
]
SCORED = [vf.Error("mine"), vf.ModelError("odd"), vf.ToolCallError("tool"), vf.ToolError("tool")]


@pytest.mark.parametrize("error", VOID, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("alone", [True, False])
async def test_a_crash_or_an_infrastructure_failure_earns_nothing(
    error: BaseException, alone: bool
) -> None:
    env = environment(crashing(error))
    outputs = await run(
        env, ScriptedClient(then="crash"), rollouts_per_example=2, independent_scoring=alone
    )
    for output in outputs:
        assert output["reward"] == 0.0
        assert output["error"]["voids_reward"] is True
        assert output["metrics"]["always"] == 0.0
        assert output["errors"] == []
        assert output["metrics"]["num_turns"] == 1.0  # measures of weight 0 are still taken


@pytest.mark.parametrize("error", SCORED, ids=lambda e: type(e).__name__)
async def test_another_vf_error_is_scored_and_counted_as_an_error(error: vf.Error) -> None:
    def partial(state: vf.State) -> float:
        return 0.25 if isinstance(state["error"], vf.Error) else 0.0

    [output] = await run(environment(crashing(error), partial), ScriptedClient(then="crash"))
    assert output["reward"] == 0.25
    assert "voids_reward" not in output["error"]
    summary = summarize([output])
    assert (summary.reward.mean, summary.error_count) == (0.25, 1)


async def test_a_vf_error_that_infrastructure_caused_earns_nothing() -> None:
    class Hides(vf.MultiTurnEnv):
        async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> Any:
            try:
                raise vf.SandboxError("lost")
            except vf.SandboxError as error:
                raise vf.ToolError("the tool failed") from error

    [output] = await run(environment(Hides), ScriptedClient(then="a"))
    assert (output["reward"], output["error"]["error"]) == (0.0, "ToolError")


async def test_an_exception_that_the_author_keeps_in_the_state_earns_nothing() -> None:
    class Keeps(vf.MultiTurnEnv):
        async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> Any:
            state["error"] = KeyError("board")
            return "go on"

    [output] = await run(environment(Keeps), ScriptedClient(then="a"))
    assert (output["reward"], output["error"]["error"]) == (0.0, "KeyError")


@pytest.mark.parametrize("hook", ["stop", "cleanup", "update"])
async def test_a_crash_in_any_hook_earns_nothing(hook: str) -> None:
    env = environment(crashing(Author("bug"), when=hook))
    [output] = await run(env, ScriptedClient(then="crash"))
    assert (output["reward"], output["error"]["error"]) == (0.0, "EnvironmentCodeError")


async def test_rewards_and_advantages_that_the_author_gave_to_turns_are_void_too() -> None:
    class Gives(crashing(Author("bug"))):  # type: ignore[misc]
        async def add_trajectory_step(self, state: vf.State, trajectory_step: Any) -> None:
            trajectory_step["reward"] = trajectory_step["advantage"] = 5.0
            await super().add_trajectory_step(state, trajectory_step)

    env = environment(Gives)
    [crashed, fine] = await env.run_group(
        [row | {"example_id": 0, "prompt": [{"role": "user", "content": "q"}]} for row in ROWS * 2],
        ScriptedClient(["crash", "a", "b"]),
        "m",
        {},
        state_columns=["trajectory", "advantage"],
    )
    assert [(step["reward"], step["advantage"]) for step in crashed["trajectory"]] == [(0.0, 0.0)]
    assert crashed["advantage"] == 0.0
    assert fine["trajectory"][0]["reward"] == 5.0


async def test_a_group_reward_function_sees_only_the_rollouts_that_did_not_crash() -> None:
    seen: list[int] = []

    def rank(completions: list[Any], states: list[vf.State]) -> list[float]:
        seen.append(len(completions))
        return [float(index) for index, _ in enumerate(states)]

    env = environment(crashing(Author("bug")), rank)
    outputs = await run(
        env,
        ScriptedClient(["a", "b", "crash", "c", "d"]),
        rollouts_per_example=3,
        max_concurrent=1,
        state_columns=["advantage"],
    )
    crashed = [output for output in outputs if output["error"]]
    scored = [output for output in outputs if not output["error"]]
    assert seen == [2]
    assert [output["reward"] for output in crashed] == [0.0]
    assert [output["reward"] for output in scored] == [0.0, 1.0]
    assert [output["advantage"] for output in scored] == [-0.5, 0.5]  # the crash moves no baseline
    assert [output["advantage"] for output in crashed] == [0.0]


async def test_a_group_in_which_every_rollout_crashed_calls_no_function() -> None:
    def rank(completions: list[Any]) -> list[float]:
        raise AssertionError("called")

    env = environment(crashing(Author("bug")), rank)
    outputs = await run(env, ScriptedClient(then="crash"), rollouts_per_example=3)
    assert [(output["reward"], output["errors"]) for output in outputs] == [(0.0, [])] * 3


@pytest.mark.parametrize("group", [True, False])
async def test_infrastructure_that_fails_a_reward_function_makes_the_whole_reward_void(
    group: bool,
) -> None:
    def judged(completion: Any) -> float:
        raise vf.SandboxError("lost")

    def judged_together(completions: Any) -> list[float]:
        raise vf.errors.EndpointUnavailable("the judge is gone")

    env = environment(
        crashing(Author("never"), word="never"),
        always,
        judged_together if group else judged,
    )
    outputs = await run(
        env, ScriptedClient(then="a"), rollouts_per_example=2, state_columns=["advantage"]
    )
    for output in outputs:
        assert (output["reward"], output["advantage"]) == (0.0, 0.0)
        assert output["errors"][0]["voids_reward"] is True


async def test_a_reward_function_with_a_bug_leaves_the_others_their_rewards() -> None:
    def broken(completion: Any) -> float:
        raise IndexError("list index out of range")

    [output] = await run(
        environment(crashing(Author("never"), word="never"), always, broken),
        ScriptedClient(then="a"),
    )
    assert (output["reward"], "voids_reward" in output["errors"][0]) == (1.0, False)


async def test_a_rubric_that_scores_in_its_own_way_does_not_see_a_crash() -> None:
    class Own(vf.Rubric):
        async def score_group(self, states: list[vf.State], **_: Any) -> None:
            for state in states:
                state["reward"], state["metrics"] = 1.0, {}

        async def score_rollout(self, state: vf.State, **_: Any) -> None:
            state["reward"], state["metrics"] = 1.0, {}

    env = environment(crashing(Author("bug")), rubric=Own())
    outputs = await run(env, ScriptedClient(["crash", "a", "b"]), rollouts_per_example=2)
    assert sorted(output["reward"] for output in outputs) == [0.0, 1.0]


async def test_callers_that_score_by_themselves_get_no_reward_for_a_crash() -> None:
    env = environment(crashing(Author("bug")))
    state = await env.rollout(env.get_dataset()[0], ScriptedClient(then="crash"), "m", {})
    await env.rubric.score_rollout(state)
    assert (state["reward"], state["metrics"]["always"]) == (0.0, 0.0)


async def test_a_group_of_environments_masks_the_crash_of_one() -> None:
    env = vf.EnvGroup(
        [environment(crashing(Author("bug"))), environment(crashing(Author("never"), word="x"))]
    )
    outputs = await run(env, ScriptedClient(then="crash"), n=2)
    assert [output["reward"] for output in outputs] == [0.0, 1.0]
    assert outputs[0]["metrics"]["always"] == 0.0


async def test_the_samples_of_a_group_leave_a_crash_out_of_the_baseline() -> None:
    env = environment(crashing(Author("bug")), lambda completion: len(completion[0]["content"]) / 8)
    outputs = await run(
        env,
        ScriptedClient(["crash", "a", "b", "longer", "d"], token_ids=True),
        rollouts_per_example=3,
        max_concurrent=1,
        state_columns=["trajectory", "advantage"],
    )
    found = group_samples(outputs, "group_mean")
    assert len(found.rewards) == len(found.advantages) == 2
    assert len(found.failures) == 1
    assert not [sample for sample in found.samples if sample.reward == 0.0]


# ------------------------------------------------------------------------------------------------ what is saved


async def test_a_failure_keeps_its_traceback_and_the_authors_line(tmp_path: Path) -> None:
    env = environment(crashing(KeyError("board")))
    await run(env, ScriptedClient(then="crash"), results_path=tmp_path / "r", save_results=True)
    [line] = (tmp_path / "r" / "results.jsonl").read_text().splitlines()
    error = json.loads(line)["error"]
    assert "Traceback (most recent call last)" in error["traceback"]
    assert "raise error" in error["traceback"]
    file, _, place = error["where"].partition(":")
    assert Path(file).name == Path(__file__).name
    assert place.endswith("in fail")


async def test_a_reward_functions_failure_keeps_its_traceback_and_the_authors_line() -> None:
    def index(completion: Any) -> float:
        return [1.0][int("7")]

    def nothing(completion: Any) -> Any:
        return None

    env = environment(crashing(Author("never"), word="never"), index, nothing)
    [output] = await run(env, ScriptedClient(then="a"))
    first, second = output["errors"]
    assert "IndexError: list index out of range" in first["traceback"]
    assert first["where"].endswith(" in index")
    assert second["where"].endswith(" in nothing")  # nothing of it was running: where it is defined


async def test_a_saved_traceback_is_bounded_and_holds_no_key(monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_SERVICE_KEY", "abcdefgh12345")

    def deep(n: int) -> None:
        if n == 0:
            raise ValueError(
                "abcdefgh12345 sk-aaaaaaaaaaaaaaaaaaaaaaaa " + "x" * 100_000 + "\ud800"
            )
        deep(n - 1)

    class Deep(vf.MultiTurnEnv):
        async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> Any:
            deep(200)

    [output] = await run(environment(Deep), ScriptedClient(then="a"))
    saved = json.dumps(output["error"])
    assert len(saved) < 50_000
    assert "abcdefgh12345" not in saved
    assert "sk-aaaa" not in saved


# ------------------------------------------------------------------------------------------------ the statistics

CRASH = {
    "error": "EnvironmentCodeError",
    "error_chain_repr": "EnvironmentCodeError('x') -> KeyError('board')",
    "error_chain_str": "EnvironmentCodeError -> KeyError",
    "where": "my_env.py:12 in env_response",
}


@pytest.mark.parametrize(
    "error",
    [
        CRASH,
        {**CRASH, "error": "OwnError", "error_chain_str": "OwnError -> SandboxDead"},
        {"error": "SomebodysError", "error_chain_str": "SomebodysError", "voids_reward": True},
    ],
)
def test_a_crash_that_an_older_version_had_scored_counts_as_a_failure(error: Any) -> None:
    lines = [
        {"example_id": 0, "reward": 1.0, "error": error, "metrics": {}},
        {"example_id": 1, "reward": 1.0, "error": None, "metrics": {}},
    ]
    summary = summarize(lines)
    assert (summary.reward.mean, summary.reward_error_free.mean) == (0.5, 1.0)
    assert summary.pass_at_k[1].mean == 0.5
    assert (summary.failed, summary.void, summary.error_count) == (1, 1, 1)


def test_a_crash_does_not_pass_a_threshold_of_zero() -> None:
    summary = summarize([{"example_id": 0, "reward": 0.0, "error": CRASH}], pass_threshold=0.0)
    assert summary.pass_at_k[1].mean == 0.0


def test_the_summary_names_the_authors_line_and_counts_every_failure_once() -> None:
    scoring = {"function": "right", "message": "raised", "where": "my_env.py:3 in right"}
    lines = [
        {"example_id": 0, "reward": 0.0, "error": CRASH, "errors": [scoring]},
        {"example_id": 1, "reward": 0.0, "error": None, "errors": [scoring, scoring]},
        {"example_id": 2, "reward": 1.0, "error": None, "errors": []},
    ]
    summary = summarize(lines)
    assert summary.failed == 2
    assert summary.errors["EnvironmentCodeError"].where == "my_env.py:12 in env_response"
    assert summary.reward_errors["right"].where == "my_env.py:3 in right"


async def test_trainers_that_read_lists_get_a_masked_crash_that_moves_no_baseline() -> None:
    env = environment(crashing(Author("bug")), lambda completion: len(completion[0]["content"]) / 8)
    results = await env.evaluate(
        ScriptedClient(["crash", "a", "b", "longer", "d"], token_ids=True),
        "m",
        rollouts_per_example=3,
        max_concurrent=1,
        state_columns=["trajectory"],
    )
    processed = env.process_env_results_vllm(
        results.prompt, results.completion, results.state, results.reward, None
    )
    assert results["reward"] == [0.0, 1 / 8, 6 / 8]
    assert processed.rewards == [3.5 / 8, 1 / 8, 6 / 8]
    assert not any(processed.completion_mask[0])
    assert any(processed.completion_mask[1])

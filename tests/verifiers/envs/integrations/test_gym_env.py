import asyncio
import inspect
import logging
import threading
import time

import pytest

import verifiers as vf
from verifiers.envs.experimental.gym_env import EpisodicSumRubric, GymEnv, normalize_step
from verifiers.errors import ConfigError, EnvironmentCodeError
from verifiers.testing import ScriptedClient, check_environment, run


class Counter:
    """Counts to `target`; every step gives 0.5."""

    closed = 0

    def __init__(self, target: int = 2) -> None:
        self.target = target
        self.count = 0

    def reset(self, *, seed=None):
        self.count = 0
        return f"start {seed}", {}

    def step(self, action):
        self.count += 1
        return (
            f"{action} makes {self.count}",
            0.5,
            self.count >= self.target,
            False,
            {"n": self.count},
        )

    def close(self):
        type(self).closed += 1


def gym(env_cls=Counter, **options):
    options = {"num_train_episodes": 3, "num_eval_episodes": 2, **options}
    return vf.GymEnv(env_cls, **options)


def said(output):
    return [m["content"] for m in output["completion"] if m["role"] == "user"]


async def test_steps_are_rewarded_one_by_one_and_the_last_observation_ends_the_rollout():
    Counter.closed = 0
    env = gym(action_parser=int)
    [output] = await run(env, ScriptedClient(["1", "2"]), state_columns=["trajectory"])
    assert [step["reward"] for step in output["trajectory"]] == [0.5, 0.5]
    assert [step["extras"]["gym_info"] for step in output["trajectory"]] == [{"n": 1}, {"n": 2}]
    assert (output["reward"], output["stop_condition"]) == (1.0, "is_done")
    assert said(output) == ["1 makes 1", "2 makes 2"]
    assert Counter.closed == 1


def test_rows_are_first_observations_by_seed_and_splits_never_share_one():
    env = gym(seed=7)
    train, evaluation = env.get_dataset(), env.get_eval_dataset()
    assert [row["answer"] for row in train] == ["7", "8", "9"]
    assert [row["answer"] for row in evaluation] == ["10", "11"]
    assert train[0]["prompt"] == [{"role": "user", "content": "start 7"}]
    assert gym(num_eval_episodes=0).get_eval_dataset()[0]["answer"] == "0"


def test_only_the_rows_that_are_taken_are_reset():
    seeds = []

    class Watched(Counter):
        def reset(self, *, seed=None):
            seeds.append(seed)
            return super().reset(seed=seed)

    env = gym(Watched, num_train_episodes=1000, num_eval_episodes=100)
    env.source("eval").inputs(2)
    assert seeds == [1000, 1001]


async def test_the_last_action_counts_when_the_steps_run_out():
    env = gym(lambda: Counter(target=9), max_episode_steps=2)
    [output] = await run(
        env, ScriptedClient(["a", "b"]), state_columns=["gym_truncated", "gym_terminated"]
    )
    assert (output["reward"], output["metrics"]["num_turns"]) == (1.0, 2.0)
    assert (output["gym_truncated"], output["gym_terminated"]) == (True, False)


async def test_ended_by_itself_and_cut_off_are_told_apart():
    class CutOff(Counter):
        def step(self, action):
            return "late", 1.0, False, True, {}

    columns = ["gym_truncated", "gym_terminated"]
    [cut] = await run(gym(CutOff), ScriptedClient(["a"]), state_columns=columns)
    [ended] = await run(gym(lambda: Counter(1)), ScriptedClient(["a"]), state_columns=columns)
    assert (cut["gym_truncated"], cut["gym_terminated"]) == (True, False)
    assert (ended["gym_truncated"], ended["gym_terminated"]) == (False, True)


async def test_an_answer_that_cannot_be_read_ends_the_episode_without_a_step():
    [output] = await run(gym(action_parser=int), ScriptedClient(["left"]))
    assert (output["reward"], output["error"]) == (0.0, None)
    assert said(output)[0].startswith("Action Parsing Error: invalid literal")


async def test_a_parser_and_a_rubric_of_ones_own_are_used():
    env = gym(parser=vf.XMLParser(["answer"]), rubric=EpisodicSumRubric(weight=2.0))
    [output] = await run(env, ScriptedClient(["<answer>go</answer>", "no tags"]))
    assert said(output) == ["go makes 1", "go makes 2"]
    assert output["reward"] == 2.0


async def test_a_step_that_raises_is_the_environments_fault_and_it_is_closed_all_the_same():
    class Broken(Counter):
        def step(self, action):
            raise RuntimeError("boom")

    Broken.closed = 0
    env = gym(Broken)
    state = await env.rollout(env.source("eval").inputs(1)[0], ScriptedClient(["a"]), "scripted")
    assert isinstance(state.error, EnvironmentCodeError)
    assert "boom" in str(state.error)
    assert "gym_env" not in state
    assert Broken.closed == 1


def test_gyms_older_step_and_reset_are_understood():
    assert normalize_step(([1], 1, True, {})) == ([1], 1.0, True, False, {})
    older = normalize_step(([1], 1, True, {"TimeLimit.truncated": True}))
    assert (older.terminated, older.truncated) == (False, True)
    with pytest.raises(ConfigError, match="must return"):
        normalize_step("done")  # type: ignore[arg-type]


async def test_coroutine_environments_are_awaited():
    class Remote(Counter):
        async def reset(self, *, seed=None):
            return f"start {seed}"

        async def step(self, action):
            await asyncio.sleep(0)
            return super().step(action)

    [output] = await run(gym(Remote), ScriptedClient(["a", "b"]))
    assert output["reward"] == 1.0


async def test_blocking_environments_can_run_in_threads():
    threads = set()

    class Slow(Counter):
        def step(self, action):
            threads.add(threading.current_thread())
            return super().step(action)

    await run(gym(Slow, run_in_thread=True), ScriptedClient(["a", "b"]))
    assert threading.main_thread() not in threads
    threads.clear()
    await run(gym(Slow), ScriptedClient(["a", "b"]))
    assert threads == {threading.main_thread()}


async def test_a_step_that_holds_up_the_loop_is_reported_once(caplog, monkeypatch):
    monkeypatch.setattr("verifiers.envs.integrations.gym_env.SLOW_STEP_S", 0.001)

    class Slow(Counter):
        def step(self, action):
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
            return super().step(action)

    with caplog.at_level(logging.WARNING):
        await run(gym(Slow), ScriptedClient(["a", "b"]))
    assert len([r for r in caplog.records if "run_in_thread=True" in r.message]) == 1


def test_the_contract_of_environments_is_kept():
    check_environment(gym())


def test_the_signature_is_v0s_with_additions():
    names = list(inspect.signature(GymEnv.__init__).parameters)[1:14]
    assert " ".join(names) == (
        "env_cls env_kwargs action_parser obs_to_text num_train_episodes num_eval_episodes "
        "max_episode_steps seed system_prompt few_shot parser rubric message_type"
    )


# ---------------------------------------------------------------------------------------------- Gymnasium


async def test_a_gymnasium_environment_is_played_by_its_id():
    pytest.importorskip("gymnasium")
    moves = {"left": 0, "down": 1, "right": 2, "up": 3}
    env = gym(
        "FrozenLake-v1",
        env_kwargs={"is_slippery": False},
        action_parser=lambda text: moves[text],
        obs_to_text=lambda square: f"You are on square {square}.",
    )
    path = ["down", "down", "right", "right", "down", "right"]
    [output] = await run(env, ScriptedClient(path))
    assert (output["reward"], output["stop_condition"]) == (1.0, "is_done")
    assert said(output)[-1] == "You are on square 15."


def test_an_unknown_gymnasium_id_is_named():
    pytest.importorskip("gymnasium")
    env = gym("FrozenPond-v1")
    with pytest.raises(ConfigError, match="FrozenPond"):
        env.source("eval").inputs(1)

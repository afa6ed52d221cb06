"""Tasks with steps: one sandbox, one instruction and one verdict per step."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import verifiers as vf
from verifiers.envs.harbor.verifier import combined_rewards
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import ScriptedClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL: dict[str, Any] = {"memory_gb": 0.125, "disk_size_gb": 0.01}
AGENT = 'cat "$HARBOR_INSTRUCTION_PATH" >> /app/seen; . "$HARBOR_INSTRUCTION_PATH"'
"""An agent that does what its instruction says, literally."""
SHARED_TESTS = ". /tests/helpers.sh; grade"
HELPERS = "grade() { cat /app/grade > /logs/verifier/reward.txt; }"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[LocalBackend]:
    async with LocalBackend() as backend:
        yield backend


def write_task(folder: Path, config: str, **instructions: str) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "helpers.sh").write_text(HELPERS)
    (folder / "tests" / "test.sh").write_text(SHARED_TESTS)
    for name, instruction in instructions.items():
        config += f'\n[[steps]]\nname = "{name}"\n' if f'"{name}"' not in config else ""
        (folder / "steps" / name).mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text(instruction + "\n")
    (folder / "task.toml").write_text(config)
    return folder


async def scored(backend: LocalBackend, task: Path, command: str = AGENT, **options: Any) -> Any:
    options = {**SMALL, "backend": backend, **options}
    async with vf.HarborEnv(command, task.parent, **options) as env:
        columns = ["harbor_rewards", "harbor_steps", "harbor_mcp_jobs"]
        results = await env.evaluate(ScriptedClient(["Hi."] * 9), "m", state_columns=columns)
        assert env.active_sandboxes == set()
    return results["outputs"][0]


async def test_each_step_has_its_instruction_and_files_stay(backend: LocalBackend, tmp_path: Path):
    task = write_task(
        tmp_path / "t" / "a",
        "",
        one="echo 0.5 > /app/grade",
        two="[ $(cat /app/grade) = 0.5 ] && echo 1 > /app/grade",
    )
    output = await scored(backend, task)
    assert (output["error"], output["reward"]) == (None, 0.75)
    assert output["prompt"][0]["content"] == "echo 0.5 > /app/grade"
    assert output["harbor_steps"] == [
        {"name": "one", "rewards": {"reward": 0.5}, "passed": True},
        {"name": "two", "rewards": {"reward": 1.0}, "passed": True},
    ]


@pytest.mark.parametrize("mode", ["shared", "separate"])
@pytest.mark.parametrize(("strategy", "reward"), [("mean", 0.5), ("final", 1.0)])
async def test_a_strategy_combines_the_verdicts(
    backend: LocalBackend, tmp_path: Path, strategy: str, reward: float, mode: str
):
    config = (
        f'multi_step_reward_strategy = "{strategy}"\nartifacts = ["/app/grade"]\n'
        f'[verifier]\nenvironment_mode = "{mode}"\n'
    )
    task = write_task(
        tmp_path / "t" / "a", config, one="echo 0 > /app/grade", two="echo 1 > /app/grade"
    )
    output = await scored(backend, task)
    assert (output["error"], output["reward"]) == (None, reward)


async def test_the_task_ends_at_a_step_below_its_least_reward(
    backend: LocalBackend, tmp_path: Path
):
    config = '[[steps]]\nname = "one"\nmin_reward = 0.6\n[[steps]]\nname = "two"\n'
    task = write_task(
        tmp_path / "t" / "a", config, one="echo 0.5 > /app/grade", two="echo 1 > /app/grade"
    )
    output = await scored(backend, task)
    assert (output["error"], output["reward"]) == (None, 0.5)
    assert [(step["name"], step["passed"]) for step in output["harbor_steps"]] == [("one", False)]


async def test_files_and_the_set_up_of_a_step_precede_its_agent(
    backend: LocalBackend, tmp_path: Path
):
    config = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\nhealthcheck = {command = "test -e /app/ready"}'
    task = write_task(
        tmp_path / "t" / "a", config, one="echo 0 > /app/grade", two="cp /app/data /app/grade"
    )
    (task / "steps" / "two" / "workdir").mkdir()
    (task / "steps" / "two" / "workdir" / "data").write_text("1")
    (task / "steps" / "two" / "workdir" / "setup.sh").write_text("touch ready; rm -- $0")
    assert (await scored(backend, task))["reward"] == 0.5
    (task / "steps" / "two" / "workdir" / "setup.sh").write_text("echo no >&2; exit 4")
    output = await scored(backend, task)
    assert "setup.sh of the step 'two' of a failed with exit code 4: no" in str(
        output["error"]["error_chain_str"]
    ) + str(output["error"]["error_chain_repr"])


async def test_tests_of_a_step_replace_those_of_the_task_and_are_gone_afterwards(
    backend: LocalBackend, tmp_path: Path
):
    task = write_task(
        tmp_path / "t" / "a",
        "",
        one="true",
        two="find /tests /oracle /logs/verifier -type f > /app/leaked",
    )
    (task / "steps" / "one" / "tests").mkdir()
    (task / "steps" / "one" / "tests" / "helpers.sh").write_text(
        "grade() { echo 1 > /logs/verifier/reward.txt; }"
    )
    (task / "steps" / "two" / "tests").mkdir()
    (task / "steps" / "two" / "tests" / "test.sh").write_text(
        "[ ! -s /app/leaked ] && echo 1 > /logs/verifier/reward.txt"
    )
    for score_in in ("snapshot", "own"):
        output = await scored(backend, task, score_in=score_in)
        assert (output["error"], output["reward"]) == (None, 1.0)


async def test_services_of_the_agent_live_on_between_steps(backend: LocalBackend, tmp_path: Path):
    task = write_task(
        tmp_path / "t" / "a",
        "",
        one="echo 0 > /app/grade; setsid sleep 1000 > /dev/null 2>&1 < /dev/null & echo $! > /app/pid",
        two="kill -0 $(cat /app/pid) && echo 1 > /app/grade",
    )
    assert (await scored(backend, task))["reward"] == 0.5


async def test_a_reward_that_is_planted_for_a_later_step_does_not_count(
    backend: LocalBackend, tmp_path: Path
):
    task = write_task(
        tmp_path / "t" / "a",
        "",
        one="echo 0 > /app/grade; setsid sh -c 'while :; do echo 1 | tee /logs/verifier/reward.txt > /tests/test.sh; "
        "done' > /dev/null 2>&1 < /dev/null &",
        two="true",
    )
    for score_in in ("snapshot", "own"):
        assert (await scored(backend, task, score_in=score_in))["reward"] == 0.0


async def test_the_time_limit_of_the_agent_ends_its_step_and_not_the_task(
    backend: LocalBackend, tmp_path: Path
):
    config = '[[steps]]\nname = "one"\nagent = {timeout_sec = 0.5}\n[[steps]]\nname = "two"\n'
    task = write_task(
        tmp_path / "t" / "a",
        config,
        one="echo 0 > /app/grade; sleep 1000",
        two="echo 1 > /app/grade",
    )
    output = await scored(backend, task)
    assert (output["reward"], output["stop_condition"]) == (0.5, "agent_completed")
    (task / "task.toml").write_text("[agent]\ntimeout_sec = 0.5\n")
    (task / "instruction.md").write_text("echo 1 > /app/grade; sleep 1000\n")
    output = await scored(backend, task)
    assert (output["error"], output["reward"]) == (None, 1.0)
    assert output["metrics"]["agent_timeout"] == 1.0


async def test_rewards_are_combined_by_name():
    by_step = [{"reward": 1.0, "style": 0.5}, {"reward": 0.0}]
    assert combined_rewards(by_step, "mean") == {"reward": 0.5, "style": 0.25}
    assert combined_rewards(by_step, "final") == {"reward": 0.0}

"""`oracle` and `nop` of `vf-validate`: the solution of each Harbor task scores 1, and doing nothing less."""

from pathlib import Path

import pytest

from verifiers.errors import ConfigError
from verifiers.packages.validation import validate

ENVIRONMENT = """
import verifiers as vf

def load_environment(tasks):
    return vf.HarborEnv("exit 9", tasks, memory_gb=0.125, disk_size_gb=0.01)
"""
GRADES = "cat /app/answer | grep -c 42 > /logs/verifier/reward.txt"


@pytest.fixture
def env(tmp_path: Path) -> str:
    (tmp_path / "answers.py").write_text(ENVIRONMENT)
    return str(tmp_path / "answers.py")


def add_task(
    tasks: Path, name: str, *, test: str = GRADES, solution: str | None = "echo 42 > answer"
) -> None:
    for folder in ("tests", "solution"):
        (tasks / name / folder).mkdir(parents=True)
    (tasks / name / "task.toml").write_text('[solution]\nenv = {WORD = "42"}\n')
    (tasks / name / "instruction.md").write_text("Write 42 to /app/answer.\n")
    (tasks / name / "tests" / "test.sh").write_text(test)
    if solution is not None:
        (tasks / name / "solution" / "solve.sh").write_text(solution)


async def checked(env: str, tasks: Path, *only: str) -> dict[str, tuple[str, str]]:
    found = await validate(env, {"tasks": str(tasks)}, only=only or ("oracle", "nop"))
    return {check.name: (check.status, check.detail) for check in found.checks}


async def test_a_sound_task_passes_both(env: str, tmp_path: Path):
    add_task(tmp_path / "tasks", "file", solution='echo "$WORD" > answer; false')
    add_task(tmp_path / "tasks", "none", solution=None)
    checks = await checked(env, tmp_path / "tasks")
    assert list(checks) == ["load", "rows", "oracle", "nop"]
    assert checks["oracle"] == ("pass", "1 solutions score 1; 1 tasks without solution")
    assert checks["nop"] == ("pass", "2 tasks score at most 0")


async def test_a_solution_that_fails_is_named_with_its_last_words(env: str, tmp_path: Path):
    add_task(tmp_path / "tasks", "good")
    add_task(tmp_path / "tasks", "wrong", solution="echo 41 > answer; no-such-program")
    status, detail = (await checked(env, tmp_path / "tasks", "oracle"))["oracle"]
    assert status == "fail"
    assert detail.startswith("The solution of wrong scores 0, not 1")
    assert "no-such-program: " in detail


async def test_tests_that_pass_without_a_solution_are_named(env: str, tmp_path: Path):
    add_task(tmp_path / "tasks", "free", test="echo 1 > /logs/verifier/reward.txt")
    status, detail = (await checked(env, tmp_path / "tasks", "nop"))["nop"]
    assert (status, detail[:52]) == ("fail", "An agent that does nothing scores 1 in free. Its tes")


async def test_tests_that_never_judge_fail_both(env: str, tmp_path: Path):
    add_task(tmp_path / "tasks", "mute", test="echo oops")
    checks = await checked(env, tmp_path / "tasks")
    assert checks["oracle"][0] == checks["nop"][0] == "fail"
    assert "wrote no reward" in checks["nop"][1]


async def test_without_any_solution_the_oracle_is_skipped(env: str, tmp_path: Path):
    add_task(tmp_path / "tasks", "none", solution=None)
    assert (await checked(env, tmp_path / "tasks", "oracle"))["oracle"] == (
        "skip",
        "no task has a solution/solve.sh",
    )


async def test_other_environments_have_neither_check_unless_asked():
    found = await validate("reverse-text", only=("oracle",))
    assert [(check.name, check.status) for check in found.checks][-1] == ("oracle", "skip")
    with pytest.raises(ConfigError, match="orakel: no check has this name"):
        await validate("reverse-text", only=("orakel",))

"""A separate verifier sees the artifacts of the agent's sandbox and nothing else of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import ScriptedClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL: dict[str, Any] = {"memory_gb": 0.125, "disk_size_gb": 0.01}
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[LocalBackend]:
    async with LocalBackend() as backend:
        yield backend


def write_task(folder: Path, config: str, test: str) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "solution").mkdir()
    (folder / "solution" / "solve.sh").write_text("echo 42 > /app/answer\n")
    (folder / "task.toml").write_text(config)
    (folder / "instruction.md").write_text("Write 42 to /app/answer.\n")
    (folder / "tests" / "test.sh").write_text(test)
    return folder.parent


async def scored(backend: LocalBackend, command: str, tasks: Path, **options: Any) -> Any:
    async with vf.HarborEnv(command, tasks, **{**SMALL, "backend": backend, **options}) as env:
        columns = ["harbor_rewards", "harbor_tests_ended"]
        results = await env.evaluate(ScriptedClient(), "m", state_columns=columns)
        assert env.active_sandboxes == set()
    return results["outputs"][0]


SEEN = "find /app /tests /oracle /logs /tmp -type f 2>/dev/null | sort | tr '\\n' ' '"


async def test_only_artifacts_are_copied_to_the_paths_that_they_had(
    backend: LocalBackend, tmp_path: Path
):
    wanted = "/app/answer /logs/artifacts/x/notes /tests/test.sh "
    test = f'[ "$({SEEN})" = "{wanted}" ] && echo 1 > /logs/verifier/reward.txt'
    tasks = write_task(tmp_path / "t" / "a", 'artifacts = ["/app/answer"]\n' + SEPARATE, test)
    command = (
        "mkdir -p /logs/artifacts/x; cd /app; echo 42 | tee answer other /tests/planted /tmp/t "
        "/logs/verifier/reward.txt > /logs/artifacts/x/notes"
    )
    output = await scored(backend, command, tasks)
    assert (output["error"], output["reward"]) == (None, 1.0)


async def test_patterns_leave_files_out_and_relative_sources_begin_at_the_work_directory(
    backend: LocalBackend, tmp_path: Path
):
    config = '[[artifacts]]\nsource = "/app"\nexclude = ["*.log", "cache"]\n[[artifacts]]\nsource = "report"\n'
    test = (
        "[ -f /app/kept ] && [ -f /box/report ] && [ ! -e /app/x/a.log ] && [ ! -e /app/cache ] && "
        "echo 1 > /logs/verifier/reward.txt"
    )
    tasks = write_task(tmp_path / "t" / "a", config + SEPARATE, test)
    command = "touch report; cd /app; mkdir x cache; touch kept x/a.log cache/y"
    assert (await scored(backend, command, tasks))["reward"] == 1.0


async def test_a_collect_hook_runs_beside_the_services_of_the_agent(
    backend: LocalBackend, tmp_path: Path
):
    config = f'{SEPARATE}[[verifier.collect]]\ncommand = "mkdir -p /logs/artifacts; {{}}"\n'
    dump = "cat /proc/$(cat /tmp/pid)/comm > /logs/artifacts/service"
    test = "grep -q sleep /logs/artifacts/service && echo 1 > /logs/verifier/reward.txt"
    tasks = write_task(tmp_path / "t" / "a", config.format(dump), test)
    command = "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $! > /tmp/pid; sleep 0.1"
    assert (await scored(backend, command, tasks))["reward"] == 1.0


@pytest.mark.parametrize("hook", ["exit 3", "kill -9 -1", "sleep 1000"])
async def test_a_collect_hook_that_fails_costs_the_agent_its_reward_and_is_no_error(
    backend: LocalBackend, tmp_path: Path, hook: str
):
    config = f'{SEPARATE}[[verifier.collect]]\ncommand = "{hook}"\ntimeout_sec = 0.5\n'
    test = "echo $(test -e /logs/artifacts/x; echo $((1 - $?))) > /logs/verifier/reward.txt"
    tasks = write_task(tmp_path / "t" / "a", config, test)
    output = await scored(backend, "true", tasks)
    assert (output["error"], output["reward"]) == (None, 0.0)


async def test_a_full_disk_leaves_room_for_the_verdict(backend: LocalBackend, tmp_path: Path):
    test = "grep -qx 42 /app/answer && echo 1 > /logs/verifier/reward.txt"
    tasks = write_task(tmp_path / "t" / "a", 'artifacts = ["/app"]\n' + SEPARATE, test)
    output = await scored(backend, "cd /app; echo 42 > answer; cat /dev/zero > filler; true", tasks)
    assert (output["error"], output["reward"]) == (None, 1.0)


async def test_the_verifier_has_its_own_variables_and_the_agent_has_not(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KEY_OF_THE_TESTS", "s3cret")
    config = (
        '[environment.env]\nPLACE = "${NOWHERE:-here}"\n[verifier]\nenvironment_mode = "separate"\n'
        '[verifier.env]\nKEY = "${KEY_OF_THE_TESTS}"\n'
    )
    test = (
        '[ "$KEY$PLACE" = s3crethere ] && [ -z "$OPENAI_BASE_URL" ] && '
        "[ ! -s /logs/artifacts/key ] && echo 1 > /logs/verifier/reward.txt"
    )
    tasks = write_task(tmp_path / "t" / "a", config, test)
    command = (
        'mkdir -p /logs/artifacts; printf "%s" "$KEY" > /logs/artifacts/key; [ $PLACE = here ]'
    )
    output = await scored(backend, command, tasks)
    assert (output["error"], output["reward"]) == (None, 1.0)


async def test_a_variable_that_this_process_lacks_is_named(backend: LocalBackend, tmp_path: Path):
    config = '[environment.env]\nKEY = "${NO_SUCH_VARIABLE}"\n'
    tasks = write_task(tmp_path / "t" / "a", config, "true")
    with pytest.raises(ConfigError, match="Export NO_SUCH_VARIABLE, or write"):
        await scored(backend, "true", tasks)


@pytest.mark.parametrize("mode", ["shared", "separate"])
async def test_artifacts_are_stored_on_this_machine_if_there_is_a_folder_for_them(
    backend: LocalBackend, tmp_path: Path, mode: str
):
    config = (
        'artifacts = ["/app/answer", {source = "/app/log", destination = "deep/log.txt"}]\n'
        f'[verifier]\nenvironment_mode = "{mode}"\n'
    )
    test = """echo '{"reward": 0.5, "style": 1}' > /logs/verifier/reward.json"""
    tasks = write_task(tmp_path / "t" / "a", config, test)
    kept = tmp_path / "kept"
    command = "echo 42 > /app/answer; echo hi > /app/log"
    output = await scored(backend, command, tasks, artifacts_dir=kept)
    assert (output["reward"], output["harbor_rewards"]) == (0.5, {"reward": 0.5, "style": 1.0})
    [rollout] = (kept / "a").iterdir()
    assert (rollout / "app" / "answer").read_text() == "42\n"
    assert (rollout / "deep" / "log.txt").read_text() == "hi\n"

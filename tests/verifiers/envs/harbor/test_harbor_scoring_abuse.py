"""What an agent plants or leaves running neither changes the verdict of a task's tests nor turns it into an error."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import verifiers as vf
from verifiers.sandboxes.local import LocalBackend
from verifiers.testing import ScriptedClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL: dict[str, Any] = {"memory_gb": 0.125, "disk_size_gb": 0.01}
TEST_SH = "python3 /tests/check.py > /logs/verifier/reward.txt\n"
CHECK = """
import json, subprocess
asked = subprocess.run(["sh", "/app/solve.sh"], capture_output=True, text=True, timeout=60)
print(json.dumps(int(asked.stdout == "42\\n")))
"""
REWARD = "/logs/verifier/reward.txt"
CHEAT = "import posix; posix.write(1, b'1'); posix._exit(0)"
USER_SITE = "$(python3 -c 'import site; print(site.getusersitepackages())')"
DAEMON = "setsid setsid env -i /bin/sh -c '{}' >/dev/null 2>&1 </dev/null &"

PLANTED = {
    "a_pth_file_of_the_user": f'mkdir -p {USER_SITE}; echo "{CHEAT}" > {USER_SITE}/x.pth',
    "modules_where_tests_are_run": f'echo "{CHEAT}" | tee /tests/json.py /tests/conftest.py > /tests/subprocess.py',
    "other_tests": "printf 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 0 /tests/test.sh",
    "rewards": "mkdir -p /logs/verifier; echo 1 | tee /logs/verifier/reward.txt > /logs/verifier/reward.json",
    "a_link_in_the_place_of_the_rewards": "rm -rf /logs/verifier; echo 1 > /app/reward.txt; ln -s /app /logs/verifier",
    "a_link_in_the_place_of_the_reward": f"echo 1 > /app/r; rm -f {REWARD}; ln -s /app/r {REWARD}",
    "a_fifo_in_the_place_of_the_reward": f"rm -f {REWARD}; mkfifo {REWARD}",
    "a_directory_in_the_place_of_the_reward": f"rm -f {REWARD}; mkdir -p {REWARD}/x",
    "no_rights_to_tests_and_rewards": "mkdir /tests/d; chmod 0 /tests/d /tests /logs/verifier /logs /oracle",
    "a_daemon_that_rewrites_the_reward": DAEMON.format(f"while :; do echo 1 > {REWARD}; done"),
    "a_daemon_that_rewrites_the_tests": DAEMON.format(
        f'while :; do echo "echo 1 > {REWARD}" > /tests/test.sh; done'
    ),
    "a_daemon_that_replaces_the_folder": DAEMON.format(
        "while :; do rm -rf /logs/verifier; mkdir /logs/verifier; echo 1 > /logs/verifier/reward.txt; done"
    ),
    "start_files_of_the_shell": "printf 'echo 1; exit' | tee ~/.bashrc ~/.profile ~/.bash_profile > ~/.shrc",
}
HOSTILE_SOLUTIONS = {
    "kills_the_tests": "kill -9 -1",
    "hangs": "sleep 10000",
    "removes_the_place_of_the_reward": "rm -rf /logs/verifier",
    "makes_the_reward_a_link": f"ln -sf /app/solve.sh {REWARD}; kill -9 $PPID",
    "fills_the_disk": f"cat /dev/zero > /app/filler; cat /dev/zero > /tmp/filler; rm {REWARD}; kill -9 $PPID",
    "uses_up_all_memory": 'exec python3 -c "x = [bytearray(1 << 20) for _ in range(100000)]"',
}
"""What `solve.sh` does, which the task's tests run: it can only fail them."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[LocalBackend]:
    async with LocalBackend() as backend:
        yield backend


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks" / "answer"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text('version = "1.0"\n[verifier]\ntimeout_sec = 20\n')
    (folder / "instruction.md").write_text("Let /app/solve.sh print 42.\n")
    (folder / "tests" / "test.sh").write_text(TEST_SH)
    (folder / "tests" / "check.py").write_text(CHECK)
    return tmp_path / "tasks"


async def scored(backend: LocalBackend, command: str, tasks: Path, **options: Any) -> Any:
    async with vf.HarborEnv(command, tasks, **{**SMALL, "backend": backend, **options}) as env:
        results = await env.evaluate(ScriptedClient(), "m")
        assert env.active_sandboxes == set()
    return results["outputs"][0]


def wrong(command: str) -> str:
    return f"echo 'echo 41' > /app/solve.sh\n{command}\ntrue"


def right(command: str) -> str:
    return f"echo 'echo 42' > /app/solve.sh\n{command}\ntrue"


IN_ITS_OWN = ("modules_where_tests_are_run", "rewards", "a_daemon_that_replaces_the_folder")
"""Attacks that the normal suite also scores in a sandbox of the tests' own; the long one does all."""
WAYS = [
    *((attack, "snapshot") for attack in PLANTED),
    *(
        pytest.param(attack, "own", marks=() if attack in IN_ITS_OWN else pytest.mark.long)
        for attack in PLANTED
    ),
]


@pytest.mark.parametrize(("attack", "score_in"), WAYS)
async def test_what_the_agent_has_planted_or_left_running_forges_no_verdict(
    backend: LocalBackend, tasks: Path, attack: str, score_in: str
):
    output = await scored(backend, wrong(PLANTED[attack]), tasks, score_in=score_in)
    assert (output["reward"], output["error"]) == (0.0, None)


async def test_the_first_attack_succeeds_in_a_sandbox_that_is_left_as_it_is(
    backend: LocalBackend, tasks: Path
):
    cheat = wrong(PLANTED["a_pth_file_of_the_user"])
    assert (await scored(backend, cheat, tasks, score_in="live"))["reward"] == 1.0


@pytest.mark.parametrize("attack", PLANTED)
async def test_a_right_solution_passes_beside_the_same_files(
    backend: LocalBackend, tasks: Path, attack: str
):
    output = await scored(backend, right(PLANTED[attack]), tasks)
    assert (output["reward"], output["error"]) == (1.0, None)


@pytest.mark.parametrize("attack", HOSTILE_SOLUTIONS)
async def test_a_solution_that_keeps_the_tests_from_a_verdict_has_failed_them(
    backend: LocalBackend, tasks: Path, attack: str
):
    task = tasks / "answer" / "task.toml"
    task.write_text('version = "1.0"\n[verifier]\ntimeout_sec = 1\n')
    command = f"cat > /app/solve.sh <<'END'\n{HOSTILE_SOLUTIONS[attack]}\nEND"
    output = await scored(backend, command, tasks)
    assert (output["reward"], output["error"]) == (0.0, None)


SEPARATE = """version = "1.0"
artifacts = ["/app", "/tests", "/logs/verifier", "/logs"]
[verifier]
environment_mode = "separate"
timeout_sec = 20
"""
"""The agent controls everything that a separate verifier receives; the task lists more than it should."""
AGAINST_ARTIFACTS = {
    "a_link_to_everything": "mv /app/solve.sh /tmp; rm -rf /logs/artifacts; ln -s / /logs/artifacts",
    "links_to_the_tests": "ln -s /tests /app/tests; ln -s /logs/verifier /logs/artifacts",
    "tests_and_rewards_as_artifacts": "mkdir -p /logs/artifacts; echo 'echo 1 > /logs/verifier/reward.txt'"
    " | tee /tests/test.sh /logs/artifacts/test.sh; echo 1 > /logs/verifier/reward.txt",
    "a_fifo": "mkfifo /logs/artifacts; mkfifo /app/pipe",
    "programs_of_the_tests": "for name in python3 bash env sh; do printf '#!/bin/sh\necho 1' > /app/$name;"
    " chmod +x /app/$name; done; cp -r /app /logs/artifacts",
    "a_daemon_that_replaces_artifacts": DAEMON.format(
        "while :; do rm -rf /logs/artifacts; ln -s /tests /logs/artifacts; done"
    ),
}


@pytest.mark.parametrize("attack", {**PLANTED, **AGAINST_ARTIFACTS})
async def test_a_separate_verifier_gives_the_same_verdicts(
    backend: LocalBackend, tasks: Path, attack: str
):
    (tasks / "answer" / "task.toml").write_text(SEPARATE)
    command = {**PLANTED, **AGAINST_ARTIFACTS}[attack]
    for_wrong = await scored(backend, wrong(command), tasks)
    assert (for_wrong["reward"], for_wrong["error"]) == (0.0, None)
    if attack != "a_link_to_everything":  # which removes the solution
        for_right = await scored(backend, right(command), tasks)
        assert (for_right["reward"], for_right["error"]) == (1.0, None)


@pytest.mark.parametrize("place", ["filler", "/tmp/filler"])
async def test_a_full_disk_leaves_room_for_the_verdict(
    backend: LocalBackend, tasks: Path, place: str
):
    fill = f"cat /dev/zero > {place}"
    assert (await scored(backend, right(fill), tasks))["reward"] == 1.0
    assert (await scored(backend, wrong(fill), tasks))["reward"] == 0.0


async def test_a_task_that_asks_for_a_running_server_is_scored_live(
    backend: LocalBackend, tasks: Path
):
    (tasks / "answer" / "tests" / "check.py").write_text(
        "import os\npids = filter(str.isdigit, os.listdir('/proc'))\n"
        "print(int(any('4711' in open(f'/proc/{pid}/cmdline').read() for pid in pids)))"
    )
    leave = DAEMON.format("sleep 4711; :")
    assert (await scored(backend, leave, tasks, score_in="live"))["reward"] == 1.0
    assert (await scored(backend, leave, tasks))["reward"] == 0.0

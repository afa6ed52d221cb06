"""`HarborEnv`: task folders in Harbor's format, solved and failed in real sandboxes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verifiers as vf
from verifiers.envs.experimental.harbor_env import (
    HarborMCPHealthcheck,
    HarborMCPServer,
    VerifierError,
    mcp_agent_url,
    mcp_url_port,
    parse_mcp_servers,
)
from verifiers.envs.harbor_env import parse_reward, time_limit_s
from verifiers.errors import ConfigError, DatasetError
from verifiers.rollouts.retries import is_retryable
from verifiers.testing import ScriptedClient

SMALL: dict[str, Any] = {"memory_gb": 0.25, "disk_size_gb": 0.05}
SOLUTION = "echo 42 > /app/answer"
GRADES = """
if grep -qx 42 /app/answer; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""


def write_task(
    folder: Path, *, test: str = GRADES, config: str = "", solution: str = SOLUTION
) -> Path:
    for name in ("tests", "solution", "environment"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(f'version = "1.0"\n{config}')
    (folder / "instruction.md").write_text("Write 42 to /app/answer.\n")
    (folder / "tests" / "test.sh").write_text(test)
    (folder / "solution" / "solve.sh").write_text(solution)
    (folder / "environment" / "Dockerfile").write_text("FROM python:3.11-slim\n")
    return folder


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return tmp_path / "tasks"


async def only_output(command: str, tasks: Path, **options: Any) -> Any:
    async with vf.HarborEnv(command, tasks, **{**SMALL, **options}) as env:
        columns = ["agent_stdout", "agent_exit_code"]
        results = await env.evaluate(ScriptedClient(["Hi."]), "m", state_columns=columns)
        [output] = results["outputs"]
        return output


# ------------------------------------------------------------------------------------------------- whole rollouts


async def test_a_solution_passes(tasks: Path):
    write_task(tasks / "answer")
    command = 'cat "$HARBOR_INSTRUCTION_PATH"; echo "$HARBOR_TASK_NAME"; cd "$AGENT_WORKDIR"; echo 42 > answer'
    output = await only_output(command, tasks)
    assert (output["error"], output["reward"]) == (None, 1.0)
    assert output["agent_stdout"] == "Write 42 to /app/answer.\nanswer\n"
    assert output["metrics"]["harbor_reward"] == 1.0


async def test_another_answer_fails(tasks: Path):
    write_task(tasks / "answer")
    output = await only_output("echo 41 > /app/answer", tasks)
    assert (output["error"], output["reward"]) == (None, 0.0)


async def test_the_tests_are_not_there_before_the_agent_has_ended(tasks: Path):
    write_task(tasks / "answer")
    output = await only_output("find /tests /oracle /solution -type f; exit 0", tasks)
    assert output["agent_stdout"] == ""


async def test_an_agent_cannot_leave_tests_or_a_reward_behind(tasks: Path):
    write_task(tasks / "answer", test="[ -e /tests/planted ] && echo 1 > /logs/verifier/reward.txt")
    cheat = "echo 1 | tee /logs/verifier/reward.txt /logs/verifier/reward.json > /tests/planted"
    output = await only_output(cheat, tasks)
    assert output["error"]["error"] == "VerifierError"  # such tests write no reward for anybody
    assert output["reward"] == 0.0


@pytest.mark.parametrize(
    ("test", "reward"),
    [
        ("echo 0.5 > /logs/verifier/reward.txt; exit 1", 0.5),
        ("""echo '{"reward": 0.25, "other": 1}' > /logs/verifier/reward.json""", 0.25),
        ("touch /logs/verifier/reward.txt; echo 0.75 > /logs/verifier/reward.json", 0.75),
        ("sh /oracle/solve.sh && echo 1 > /logs/verifier/reward.txt", 1.0),
    ],
)
async def test_the_reward_is_what_the_tests_wrote(tasks: Path, test: str, reward: float):
    write_task(tasks / "answer", test=test)
    output = await only_output("true", tasks)
    assert (output["error"], output["reward"]) == (None, reward)


@pytest.mark.parametrize(
    ("test", "config", "says"),
    [
        ("echo oops >&2; exit 2", "", "wrote no reward to /logs/verifier: exit code 2; oops"),
        ("echo many > /logs/verifier/reward.txt", "", "wrote the reward 'many'"),
        ("sleep 1000", "[verifier]\ntimeout_sec = 1\n", "stopped after 1 s"),
    ],
)
async def test_tests_without_a_verdict_are_an_error_and_no_zero(
    tasks: Path, test: str, config: str, says: str
):
    write_task(tasks / "answer", test=test, config=config)
    async with vf.HarborEnv("true", tasks, **SMALL) as env:
        state = await env.rollout(env.get_dataset()[0], ScriptedClient(), "m")
    assert isinstance(state["error"], VerifierError)
    assert says in str(state["error"])
    assert is_retryable(state["error"])


async def test_an_agent_that_crashes_is_not_scored(tasks: Path):
    write_task(tasks / "answer")
    output = await only_output("echo 42 > /app/answer; exit 5", tasks)
    assert output["error"]["error"] == "AgentError"
    assert (output["reward"], output["agent_exit_code"]) == (0.0, 5)


async def test_the_servers_of_a_task_run_beside_the_agent(tasks: Path):
    declared = (
        '[[environment.mcp_servers]]\nname = "notes-1"\ntransport = "http"\n'
        'url = "http://notes:8099/mcp"\n'
        '[[environment.mcp_servers]]\nname = "own"\ntransport = "stdio"\ncommand = "own"\n'
    )
    write_task(tasks / "answer", config=declared)
    ask = (
        "import os, urllib.request as u; print(u.urlopen(os.environ['HARBOR_MCP_NOTES_1_URL'][:-4]).status); "
        "print(u.urlopen('http://notes:8099/').status)"
    )
    output = await only_output(
        f'python3 -c "{ask}" && {SOLUTION}',
        tasks,
        mcp_launch_commands={"notes-1": "python3 -m http.server 8099 --bind 127.0.0.1"},
        mcp_healthcheck=HarborMCPHealthcheck(retries=3000, interval_sec=0.01),
    )
    assert (output["error"], output["agent_stdout"], output["reward"]) == (None, "200\n200\n", 1.0)


async def test_a_server_that_does_not_start_fails_the_rollout(tasks: Path):
    declared = '[[environment.mcp_servers]]\nname = "notes"\nurl = "http://notes:8099/"\n'
    write_task(tasks / "answer", config=declared)
    check = HarborMCPHealthcheck(retries=3000, interval_sec=0.01)
    launch = {"notes": "echo no notes here >&2; exit 3"}
    output = await only_output("true", tasks, mcp_launch_commands=launch, mcp_healthcheck=check)
    assert output["error"]["error"] == "SandboxSetupError"
    assert (
        "on port 8099 exited before becoming healthy (exit_code=3)"
        in output["error"]["error_chain_repr"]
    )
    assert "no notes here" in output["error"]["error_chain_repr"]


async def test_hooks_accept_a_plain_dict_and_a_client_with_the_methods_that_they_call(tasks: Path):
    folder = write_task(tasks / "answer")
    seen: list[tuple[Any, ...]] = []

    class Client:
        async def execute_command(
            self, sandbox_id: str, command: str, working_dir: Any = None, timeout: Any = None
        ) -> Any:
            return SimpleNamespace(exit_code=0, stdout="0.5\n", stderr="")

        async def upload_file(self, sandbox_id: str, remote_path: str, local_path: str) -> None:
            seen.append((remote_path, local_path))

        async def run_background_job(
            self, sandbox_id: str, command: str, timeout: int, working_dir: str, **_: Any
        ) -> Any:
            seen.append((command, timeout, working_dir))
            return SimpleNamespace(exit_code=0, stdout="", stderr="")

        def teardown(self) -> None: ...

    env = vf.HarborEnv("true", tasks)
    env.sandbox_client = Client()
    state: dict[str, Any] = {"sandbox_id": "box", "info": env.get_dataset()[0]["info"]}
    assert await env.get_docker_image(state) == "python:3.11-slim"  # type: ignore[arg-type]
    await env.post_sandbox_setup(state)  # type: ignore[arg-type]
    await env.post_rollout(state)  # type: ignore[arg-type]
    assert (state["reward"], state["harbor_task_dir"]) == (0.5, str(folder))
    assert ("/task/instruction.md", str(folder / "instruction.md")) in seen
    assert seen[-1] == ("bash test.sh", 600, "/tests")
    bare = {"sandbox_id": "box", "harbor_task_dir": str(folder)}
    assert await env.compute_reward(bare) == 0.5  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------ task folders


def test_tasks_are_rows_with_everything_that_their_folder_says(tasks: Path):
    image = '[environment]\ndocker_image = "img:1"\ncpus = 2\n'
    write_task(tasks / "b", config=image)
    write_task(tasks / "a")
    (tasks / "no-task").mkdir()
    (tasks / "README.md").write_text("")
    first, second = vf.HarborEnv("true", tasks).load_harbor_dataset()
    assert first["prompt"] == [{"role": "user", "content": "Write 42 to /app/answer."}]
    assert (first["info"]["task_name"], first["info"]["docker_image"]) == ("a", None)
    assert second["info"]["task_dir"] == str(tasks / "b")
    assert second["info"]["docker_image"] == "img:1"
    assert second["info"]["config"]["environment"]["cpus"] == 2
    assert [row["example_id"] for row in (first, second)] == [0, 1]


def test_tasks_that_are_not_there_are_named(tasks: Path):
    with pytest.raises(FileNotFoundError, match="Dataset path not found"):
        vf.HarborEnv("true", tasks)
    write_task(tasks / "a")
    with pytest.raises(ValueError, match="missing: z"):
        vf.HarborEnv("true", tasks, tasks=["a", "z"])
    with pytest.raises(ValueError, match="No valid Harbor tasks found"):
        vf.HarborEnv("true", tasks / "a")
    write_task(tasks / "b", config="[broken")
    with pytest.raises(DatasetError, match=r"tasks/b cannot be read"):
        vf.HarborEnv("true", tasks)


def test_an_own_rubric_would_replace_the_tasks(tasks: Path):
    write_task(tasks / "a")
    with pytest.raises(TypeError, match="creates its own rubric"):
        vf.HarborEnv("true", tasks, rubric=vf.Rubric())


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("0.5\n", 0.5),
        ("1", 1.0),
        ("-1", -1.0),
        ("2.5", 2.5),
        ("1.", 1.0),
        ('{"reward": 0.25}', 0.25),
        ('{"reward": "0.5"}', 0.5),
        ('{"reward": true}', 1.0),
        ('{"other": 1}', None),
        ("nan", None),
        ("1" * 400, None),
        ("[1]", None),
        ("many", None),
        ("", None),
        ("[" * 100_000, None),
    ],
)
def test_a_reward_is_a_finite_number(text: str, reward: float | None):
    assert parse_reward(text) == reward


@given(st.text())
def test_whatever_tests_write_is_a_number_or_nothing(text: str):
    reward = parse_reward(text)
    assert reward is None or isinstance(reward, float)


def test_a_tasks_own_time_limit_counts():
    assert time_limit_s({"verifier": {"timeout_sec": 7}}, "verifier", 300) == 7
    assert time_limit_s({"verifier": {"timeout_sec": None}}, "verifier", 300) == 300
    assert time_limit_s(None, "verifier", 300) == 300


# ----------------------------------------------------------------------------------------------------- MCP servers


@pytest.mark.parametrize(
    ("url", "port", "agent_url"),
    [
        ("http://h:9", 9, "http://127.0.0.1:9"),
        ("http://h", 80, "http://127.0.0.1:80"),
        ("https://h/", 443, "https://127.0.0.1:443/"),
        ("http://u:p@h:9/x", 9, "http://u:p@127.0.0.1:9/x"),
        ("ftp://h/x", None, "ftp://127.0.0.1/x"),
        ("http://[::1]:7/x?y#z", 7, "http://127.0.0.1:7/x?y#z"),
        ("noscheme", 80, "//127.0.0.1:80/noscheme"),
        ("", None, None),
    ],
)
def test_a_url_leads_to_the_sandbox_itself(url: str, port: int | None, agent_url: str | None):
    server = HarborMCPServer("n", "http", url=url)
    assert (mcp_url_port(server), mcp_agent_url(server)) == (port, agent_url)


def test_servers_are_read_as_v0_reads_them():
    def read(*entries: Any) -> list[HarborMCPServer]:
        return parse_mcp_servers({"environment": {"mcp_servers": list(entries)}})

    assert read({"name": "a", "transport": "stdio", "command": "x", "args": ["1"]}) == [
        HarborMCPServer("a", "stdio", "x", ["1"])
    ]
    [server] = read({"name": "b", "url": "http://b:1/"}, {"transport": "sse"}, "nonsense")
    assert (server.transport, server.is_network) == ("sse", True)
    assert not read({"name": "z", "transport": "weird"})[0].is_network
    for empty in ({}, {"environment": None}, {"environment": {"mcp_servers": {"name": "z"}}}):
        assert parse_mcp_servers(empty) == []
    with pytest.raises(ConfigError, match="'url' is required for transport 'sse'"):
        read({"name": "a"})
    with pytest.raises(ValueError, match="'command' is required for transport 'stdio'"):
        read({"name": "a", "transport": "stdio"})


simple = st.none() | st.booleans() | st.integers() | st.text(max_size=10)
entry = st.dictionaries(
    st.sampled_from(["name", "transport", "url", "command", "args"]),
    simple | st.lists(simple, max_size=3) | st.sampled_from(["sse", "stdio", "http://h:1/"]),
)


@given(simple | st.lists(simple | entry, max_size=4))
def test_whatever_a_task_declares_is_read_or_refused(declared: Any):
    try:
        servers = parse_mcp_servers({"environment": {"mcp_servers": declared}})
    except ConfigError:
        return
    for server in servers:
        assert server.name
        assert not server.is_network or server.url

"""`ComposableEnv`: the steps of a rollout with any sandbox client, and whole rollouts in real sandboxes."""

import asyncio
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.agents import ComposableEnv, Harness, SandboxSpec, SandboxTaskSet, TaskSet
from verifiers.envs.agents.harnesses import opencode_harness
from verifiers.envs.file_locks import exclusive_path_lock, sibling_lock_path
from verifiers.testing import ScriptedClient, call

OPEN_CODE = Path(__file__).with_name("open_code_program.py").read_text()
ROWS = [{"info": {"ask": "Sort it."}, "answer": "1"}]


class Client:
    """A provider's client as a caller may set it: the methods that the environment uses, and a log of the calls."""

    def __init__(self, output: str = "", fails_on: str = "\0") -> None:
        self.log: list[Any] = []
        self.output = output
        self.fails_on = fails_on

    async def execute_command(self, sandbox_id: str, command: str, **options: Any) -> Any:
        self.log.append((command, options))
        code = 1 if self.fails_on in command else 0
        return SimpleNamespace(stdout=self.output, stderr="why", exit_code=code)

    async def upload_file(self, sandbox_id: str, remote_path: str, local_path: str) -> None:
        if local_path.endswith(".tar.gz"):
            with tarfile.open(local_path) as archive:
                names = {entry.name: entry.mode for entry in archive.getmembers()}
            self.log.append((remote_path, names))
        else:
            self.log.append((remote_path, await asyncio.to_thread(Path(local_path).read_text)))

    def teardown(self) -> None:
        pass


class Asking(SandboxTaskSet):
    spec = SandboxSpec(image="acme/tests:1", timeout_minutes=7)
    asked = 0

    def get_instruction(self, info: dict[str, Any]) -> str:
        return info["ask"]

    def get_rubric(self) -> vf.Rubric:
        return vf.Rubric()

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        self.asked += 1
        return self.spec

    def get_env_vars(self) -> dict[str, str]:
        return {"FROM_TASK": "1"}

    async def setup(self, state: Any) -> None:
        state["sandbox_client"].log.append(("setup", state["test_timeout"]))


class Open(TaskSet):
    """Names no sandbox."""

    get_instruction = Asking.get_instruction
    get_rubric = Asking.get_rubric


def made(harness: Harness, taskset: TaskSet | None = None, client: Any = None, **options: Any):
    env = ComposableEnv(taskset or Asking(ROWS, "asking"), harness, **options)
    env.sandbox_client = client or Client()
    return env


def state_of(**fields: Any) -> dict[str, Any]:
    return {"sandbox_id": "s1", "info": {"ask": "Sort it."}, **fields}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with sources, and with what no sandbox needs."""
    root = tmp_path / "checkout"
    for name in ("src/a.py", ".git/config", "src/__pycache__/a.pyc", "b.pyc", ".venv/x", "run.sh"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("src/a.py")
    return root


# ------------------------------------------------------------------------------------------------ before the agent


async def test_sandbox_is_prepared_in_the_documented_order(folder: Path) -> None:
    harness = Harness(
        install_script="install",
        install_timeout=9,
        system_prompt="Be brief.",
        system_prompt_path="/a b/system.txt",
        skills_path="/task/skills",
        upload_dir_mapping={"tool": "/opt/my tool"},
        get_upload_dirs=lambda: {"tool": folder, "without a path": folder},
        post_install_uploads={"/x/y": "text"},
        post_install_script="configure",
    )
    taskset = Asking(ROWS)
    taskset.get_skills_dir = lambda: folder / "src"  # type: ignore[method-assign]  # as users do
    env = made(harness, taskset, install_env={"A": "b"})
    state = state_of()
    await env.post_sandbox_setup(state)
    assert env.sandbox_client.log == [
        ("setup", 420),
        ("mkdir -p '/a b' /task", {"timeout": 10}),
        ("/task/instruction.md", "Sort it."),
        ("/a b/system.txt", "Be brief."),
        ("/tmp/_upload_task_skills.tar.gz", {"task/skills": 0o755, "task/skills/a.py": 0o644}),
        (
            "mkdir -p /task && tar -xzf /tmp/_upload_task_skills.tar.gz -C / && "
            "rm -f /tmp/_upload_task_skills.tar.gz",
            {"timeout": 60},
        ),
        (
            "/tmp/_upload_opt_my tool.tar.gz",
            {
                "opt/my tool": 0o755,
                "opt/my tool/link": 0o755,
                "opt/my tool/run.sh": 0o755,
                "opt/my tool/src": 0o755,
                "opt/my tool/src/a.py": 0o644,
            },
        ),
        (
            "mkdir -p /opt && tar -xzf '/tmp/_upload_opt_my tool.tar.gz' -C / && "
            "rm -f '/tmp/_upload_opt_my tool.tar.gz'",
            {"timeout": 60},
        ),
        ("install", {"timeout": 9, "env": {"A": "b"}}),
        ("/x/y", "text"),
        ("configure", {"timeout": 9, "env": {"A": "b"}}),
    ]
    assert state["sandbox_client"] is env.sandbox_client


async def test_blank_instruction_and_missing_parts_cause_no_calls() -> None:
    env = made(Harness(run_command="true"), Open(ROWS), timeout_seconds=100)
    state = state_of(info={"ask": " \n"})
    await env.post_sandbox_setup(state)
    assert env.sandbox_client.log == [("mkdir -p /task", {"timeout": 10})]
    assert state["test_timeout"] == 60 * (2 + 60), "the limit of the rollout and an hour"


@pytest.mark.parametrize(
    ("fails_on", "message"),
    [
        ("install", "Agent install failed"),
        ("configure", "Post-install failed"),
        ("tar -xzf", "Upload dir extract failed"),
    ],
)
async def test_a_failed_step_fails_the_rollout_with_its_output(
    folder: Path, fails_on: str, message: str
) -> None:
    harness = Harness(
        install_script="install",
        post_install_script="configure",
        upload_dir_mapping={"x": "/x"},
        get_upload_dirs=lambda: {"x": folder},
    )
    env = made(harness, client=Client("o" * 600, fails_on))
    with pytest.raises(vf.SandboxError, match=message) as caught:
        await env.post_sandbox_setup(state_of())
    assert str(caught.value).count("o" * 500) == 1
    assert "o" * 501 not in str(caught.value)


async def test_equal_names_of_folders_are_refused(folder: Path) -> None:
    harness = Harness(skills_path="/s", get_upload_dirs=lambda: {"skills": folder})
    taskset = Asking(ROWS)
    taskset.get_skills_dir = lambda: folder  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"must be unique across task and harness.*'skills'"):
        await made(harness, taskset).post_sandbox_setup(state_of())


def test_archive_is_built_under_the_lock_that_stops_a_removal(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_archive = tarfile.open
    tried: list[bool] = []

    def open_and_try(*args: Any, **kwargs: Any) -> Any:
        lock = exclusive_path_lock(folder, suffix=".in-use.lock", nonblocking=True)
        with pytest.raises(BlockingIOError):
            lock.__enter__()
        tried.append(True)
        return open_archive(*args, **kwargs)

    env = made(Harness())
    monkeypatch.setattr(
        "verifiers.envs.experimental.composable.composable_env.tarfile.open", open_and_try
    )
    env._build_dir_archive(folder, "/x").unlink()
    assert tried
    assert sibling_lock_path(folder, ".in-use.lock").exists()
    with exclusive_path_lock(folder, suffix=".in-use.lock", nonblocking=True):
        pass


# ------------------------------------------------------------------------------------------- sandbox and variables


async def test_sandbox_is_that_of_the_task_then_of_the_harness_then_of_the_environment() -> None:
    taskset = Asking(ROWS)
    taskset.spec = SandboxSpec("acme/gpu", 8, 16, 50, gpu_count=2, gpu_type="H100")
    env = made(Harness(sandbox_spec=SandboxSpec("no")), taskset, timeout_seconds=60)
    state = state_of()
    assert await env.get_docker_image(state) == "acme/gpu"
    assert env.get_sandbox_resources(state) == {
        "cpu_cores": 8,
        "memory_gb": 16,
        "disk_size_gb": 50,
        "gpu_count": 2,
        "gpu_type": "H100",
        "vm": True,
        "timeout_minutes": 61,
    }
    assert taskset.asked == 1, "once per rollout"
    env = made(Harness(sandbox_spec=SandboxSpec("of/harness", timeout_minutes=3)), Open(ROWS))
    assert await env.get_docker_image(state_of()) == "of/harness"
    assert env.get_sandbox_resources(state_of())["timeout_minutes"] == 3
    env = made(Harness(), Open(ROWS), docker_image="own", cpu_cores=7)
    assert await env.get_docker_image({}) == "own"
    resources = env.get_sandbox_resources({})
    assert (resources["cpu_cores"], resources["gpu_type"], resources["vm"]) == (7, None, False)


async def test_variables_of_the_task_win_over_the_harness_and_those_over_the_environment() -> None:
    harness = Harness(environment_vars=lambda state: {"FROM_TASK": "0", "B": "h", "C": "h"})
    own = {"A": "e", "B": "e", "OPENAI_API_KEY": "intercepted"}
    env = made(harness, environment_vars=own)
    state = state_of(interception_base_url="http://127.0.0.1:1/v1")
    variables = await env.build_env_vars(state)
    assert {name: variables[name] for name in ("A", "B", "C", "FROM_TASK", "AGENT_WORKDIR")} == {
        "A": "e",
        "B": "h",
        "C": "h",
        "FROM_TASK": "1",
        "AGENT_WORKDIR": "/app",
    }
    assert variables["OPENAI_API_KEY"] != "intercepted"


@pytest.mark.parametrize("name", ["OPENAI_BASE_URL", "AGENT_WORKDIR"])
@pytest.mark.parametrize("of_task", [True, False])
async def test_protected_variables_cannot_be_set(name: str, of_task: bool) -> None:
    taskset = Asking(ROWS)
    harness = Harness(environment_vars=lambda state: {} if of_task else {name: "x"})
    if of_task:
        taskset.get_env_vars = lambda: {name: "x"}  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=f"must not override protected keys: {name}"):
        await made(harness, taskset).build_env_vars(state_of(interception_base_url="http://x/v1"))


# ---------------------------------------------------------------------------------------------------------- turns


async def test_harness_decides_by_the_headers_which_steps_stay() -> None:
    harness = Harness(
        keep_trajectory_step=lambda step, state, headers: headers.get("x-depth") != "1"
    )
    env = made(harness)
    kept = []
    for depth in ("0", "1", "0"):
        answered = asyncio.get_running_loop().create_future()
        env._interception_server.intercepts["r"] = {
            "stream": False,
            "headers": {"x-depth": depth},
            "response_future": answered,
        }
        state = state_of(current_request_id="r", trajectory=[])
        prompt = [{"role": "user", "content": "?"}]
        response = await env.get_model_response(
            state, prompt, client=ScriptedClient(["Yes."]), model="m"
        )
        assert response.message.content == "Yes."
        assert answered.result() is response
        assert state["current_request_id"] is None
        assert state["_last_request_headers"] == {"x-depth": depth}
        await env.add_trajectory_step(state, {"prompt": prompt, "completion": []})  # type: ignore[typeddict-item]
        kept.append(len(state["trajectory"]))
    assert kept == [1, 0, 1]


def test_requests_can_be_seen_without_an_event_loop() -> None:
    env = made(Harness())
    entry: dict[str, Any] = {"stream": False, "headers": {}}
    env._interception_server.intercepts["r"] = entry

    async def look() -> Any:
        return env._interception_server.intercepts["r"]

    assert asyncio.run(look()) is entry


# ------------------------------------------------------------------------------------------------- after the agent

METRICS = Harness(log_path="/l l/log", metrics_path="{workdir}/m/*.json", metrics_prefix="a_")


async def test_logs_and_metrics_of_the_agent_are_kept() -> None:
    env = made(METRICS, client=Client(' {"n": 2, "name": "x", "ok": true} \n'))
    state = state_of()
    await env.post_rollout(state)
    assert env.sandbox_client.log == [
        ("cat '/l l/log' 2>/dev/null || echo '<no logs>'", {"working_dir": None}),
        (
            'f=$(ls /app/m/*.json 2>/dev/null | head -1) && cat "$f" || echo "{}"',
            {"working_dir": None},
        ),
    ]
    assert state["agent_logs"] == '{"n": 2, "name": "x", "ok": true}'
    assert (state["a_n"], state["a_name"], state["a_ok"]) == (2, "x", True)
    assert state["_harness_metrics"] == {"a_n": 2.0, "a_ok": 1.0}
    state["metrics"] = {"reward": 1.0}
    await env.rubric.cleanup(state)  # type: ignore[arg-type]  # a plain dict, as callers pass
    assert state["metrics"] == {"reward": 1.0, "a_n": 2.0, "a_ok": 1.0}


async def test_metrics_can_be_chosen() -> None:
    harness = Harness(metrics_path="/m", metrics_key="inner", metrics_keys=["n"])
    env = made(harness, client=Client('{"inner": {"n": 1, "z": 3}}'))
    state = state_of()
    await env.post_rollout(state)
    assert state["_harness_metrics"] == {"n": 1.0}
    assert "z" not in state


@pytest.mark.parametrize("output", ["no json", "[1]", '{"n": {'])
async def test_unreadable_metrics_are_logged(output: str, caplog: pytest.LogCaptureFixture) -> None:
    state = state_of(agent_logs="known")
    await made(METRICS, client=Client(output)).post_rollout(state)
    assert state["agent_logs"] == "known"
    assert "_harness_metrics" not in state
    assert "Failed to collect harness metrics" in caplog.text


async def test_nothing_runs_after_an_agent_without_logs_and_metrics() -> None:
    env = made(Harness())
    await env.post_rollout(state_of())
    assert env.sandbox_client.log == []


async def test_plain_dicts_are_scored_and_cleaned_up() -> None:
    env = made(Harness(tool_names=["bash"], metrics_path="/m"))
    message = {"role": "assistant", "tool_calls": [{"name": "bash", "arguments": "{}", "id": "1"}]}
    state = {
        "prompt": [],
        "completion": [message],
        "trajectory": [],
        "_harness_metrics": {"n": 1.0},
    }
    await env.rubric.score_rollout(state)  # type: ignore[arg-type]
    await env.rubric.cleanup(state)  # type: ignore[arg-type]
    assert (state["metrics"]["bash_calls"], state["metrics"]["n"]) == (1.0, 1.0)


# -------------------------------------------------------------------------------------------------- construction


def test_rows_come_from_the_taskset_on_first_use() -> None:
    loaded = []

    def load() -> list[dict[str, Any]]:
        loaded.append(True)
        return ROWS

    env = ComposableEnv(Asking(load), Harness(), dataset=[{"question": "not this one"}])
    assert not loaded
    assert env.get_dataset()[0]["prompt"] == [{"role": "user", "content": "Sort it."}]
    assert env.get_eval_dataset()[0]["prompt"] == [{"role": "user", "content": "Sort it."}]
    own = vf.Rubric()
    env = ComposableEnv(Asking(ROWS), Harness(), rubric=own)
    assert isinstance(env.rubric, vf.RubricGroup)
    assert own in env.rubric.rubrics


# ------------------------------------------------------------------------------------------ whole rollouts


class Sums(SandboxTaskSet):
    """The agent writes a number into a file of the sandbox; the rubric reads the file."""

    def get_instruction(self, info: dict[str, Any]) -> str:
        return f"Write {info['a']} + {info['b']} to sum.txt."

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        return SandboxSpec(cpu_cores=1, memory_gb=0.25, disk_size_gb=0.05)

    def get_workdir(self, info: dict[str, Any]) -> str:
        return "/work/sums"

    async def setup(self, state: Any) -> None:
        """Install the agent, as an image would have it."""
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        path = "/box/.opencode/bin/opencode"
        await client.execute_command(sandbox_id, "mkdir -p /box/.opencode/bin")
        await client.upload_bytes(sandbox_id, path, OPEN_CODE.encode())
        await client.execute_command(sandbox_id, f"chmod +x {path}")

    def get_rubric(self) -> vf.Rubric:
        return SumRubric()


class SumRubric(vf.Rubric):
    def __init__(self) -> None:
        super().__init__(funcs=[self.is_right])

    async def is_right(self, state: Any, info: dict[str, Any]) -> float:
        if state.get("error"):
            return 0.0
        read = await state["sandbox_client"].execute_command(
            state["sandbox_id"], "cat /work/sums/sum.txt", timeout=state["test_timeout"]
        )
        return float(read.stdout.strip() == str(info["a"] + info["b"]))

    @vf.cleanup
    async def delete_sandbox(self, state: Any) -> None:
        if state.get("sandbox_id"):
            await state["sandbox_client"].delete(state["sandbox_id"])


SUMS = [{"info": {"a": 1, "b": 2}}, {"info": {"a": 3, "b": 4}}]


async def test_an_agent_solves_tasks_in_sandboxes_without_network(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "ADD.md").write_text("Use $(( )).")
    taskset = Sums(SUMS, "sums")
    taskset.get_skills_dir = lambda: tmp_path / "skills"  # type: ignore[method-assign]
    harness = opencode_harness(system_prompt="Be brief.", task_system_prompt="Only sh.")
    harness.skills_path = "/opencode/skills"
    harness.metrics_path = "{workdir}/*.json"
    harness.tool_names = ["bash"]

    def reply(prompt: Any) -> Any:
        if prompt[-1]["role"] == "tool":
            return "Done."
        question = prompt[-1]["content"]
        assert prompt[0]["content"] == "Be brief.\nOnly sh."
        sum_ = question.split("Write ")[1].split(" to")[0] if "1 + 2" in question else "0"
        command = f"cat /opencode/skills/ADD.md; echo $(({sum_})) > sum.txt; echo '{{\"steps\": 1}}' > m.json"
        return call("bash", command=command)

    env = ComposableEnv(taskset, harness, keep_sandbox_for_scoring=True, timeout_seconds=300)
    client = ScriptedClient(reply)
    async with env, asyncio.timeout(120):
        results = await env.generate(
            env.get_dataset(), client, "acme/tiny", state_columns=["agent_logs"]
        )
        assert not env.active_sandboxes or not any(
            env.sandbox_client.has(each) for each in env.active_sandboxes
        )
    outputs = sorted(results["outputs"], key=lambda output: output["info"]["a"])
    assert [output["error"] for output in outputs] == [None, None]
    assert [output["reward"] for output in outputs] == [1.0, 0.0]
    metrics = outputs[0]["metrics"]
    assert (metrics["bash_calls"], metrics["steps"], metrics["num_turns"]) == (1.0, 1.0, 2.0)
    assert outputs[0]["agent_logs"].endswith("Done.")
    roles = [message["role"] for message in outputs[0]["completion"]]
    assert roles == ["assistant", "tool", "assistant"]
    assert "Use $(( ))." in outputs[0]["completion"][1]["content"]
    assert [tool.name for tool in client.requests[0].tools or []] == ["bash"]
    json.dumps(results["outputs"])


async def test_an_image_that_the_back_end_lacks_is_named_with_the_remedy() -> None:
    class Imaged(Sums):
        def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
            return SandboxSpec(image="acme/repository:1")

    async with ComposableEnv(Imaged(SUMS), Harness(run_command="true"), backend="local") as env:
        state = await env.rollout(env.get_dataset()[0], ScriptedClient([]), "m")
    assert "acme/repository:1" in str(state["error"])
    assert "VF_SANDBOX_BACKEND" in str(state["error"])


async def test_a_completion_can_be_rendered_by_the_harness() -> None:
    def render(state: Any) -> None:
        state["completion"] = [{"role": "assistant", "content": "rendered"}]

    spec = SandboxSpec(memory_gb=0.25, disk_size_gb=0.05)
    harness = Harness(run_command="true", sandbox_spec=spec, render_completion=render)
    async with ComposableEnv(Open(ROWS), harness) as env:
        state = await env.rollout(env.get_dataset()[0], ScriptedClient([]), "m")
    assert state["error"] is None
    assert state["completion"][0]["content"] == "rendered"

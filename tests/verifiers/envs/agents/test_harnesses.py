"""The ready-made harnesses: their commands, their settings, and agents that run in sandboxes."""

import asyncio
import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.agents import ComposableEnv, SandboxSpec, SandboxTaskSet
from verifiers.envs.agents.harnesses import rlm
from verifiers.envs.experimental.composable.harnesses import (
    build_mini_swe_agent_install_script,
    build_mini_swe_agent_run_command,
    mini_swe_agent_harness,
    opencode_harness,
    rlm_harness,
)
from verifiers.testing import ScriptedClient


class Asking(SandboxTaskSet):
    default_workdir = "/testbed"

    def get_instruction(self, info: dict[str, Any]) -> str:
        return "Say 'hi'; then $stop."

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        return SandboxSpec(cpu_cores=1, memory_gb=0.25, disk_size_gb=0.05)

    def get_rubric(self) -> vf.Rubric:
        return vf.Rubric()


# ------------------------------------------------------------------------------------------------------ opencode


def test_system_prompts_are_joined() -> None:
    def prompts(system: str | None, task: str | None) -> tuple[str | None, bool]:
        harness = opencode_harness(system, task)
        return harness.system_prompt, "{file:/opencode/system.txt}" in harness.run_command

    assert prompts("A", "B") == ("A\nB", True)
    assert prompts(None, "B") == ("B", True)
    assert prompts("A ", "") == ("A ", True)
    assert prompts(None, None) == (None, False)


def test_commands_of_opencode_are_valid_shell() -> None:
    harness = opencode_harness(
        agent_workdir="/a b",
        instruction_path="/i n/p.txt",
        log_path="/l g/x.txt",
        allow_git=True,
        disabled_tools=["write"],
        model_id="intercepted/model",
        provider_key="intercepted",
    )
    for command in (harness.run_command, harness.install_script):
        subprocess.run(["bash", "-n", "-c", str(command)], check=True)
    assert harness.run_command.startswith("bash -lc ")
    assert "ALLOW_GIT=1" in harness.run_command


# ----------------------------------------------------------------------------------------------------------- rlm

RLM = """#!/usr/bin/env python3
import json, os, sys, urllib.request

def ask(text, depth):
    body = {"model": os.environ["RLM_MODEL"], "messages": [{"role": "user", "content": text}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "X-RLM-Depth": str(depth)},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]

answers = [ask(sys.argv[1], 0), ask("a part", 1), ask(os.environ["RLM_APPEND_TO_SYSTEM_PROMPT"], 0)]
os.makedirs(".rlm/sessions/1")
with open(".rlm/sessions/1/meta.json", "w") as file:
    json.dump({"metrics": {"turns": len(answers), "answer": answers[0]}}, file)
"""
INSTALL = 'mkdir -p "$HOME/.local/bin" && install -m 755 "$RLM_CHECKOUT_PATH/rlm" "$HOME/.local/bin/rlm"\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "rlm-harness"
    folder.mkdir()
    for name, text in {"rlm": RLM, "install.sh": INSTALL, "pyproject.toml": ""}.items():
        (folder / name).write_text(text)
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    for arguments in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-q", "-m", "one")):
        subprocess.run(["git", *names, *arguments], cwd=folder, check=True)
    return folder


async def test_rlm_is_fetched_once_uploaded_and_installed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rlm, "DEFAULT_RLM_LOCAL_CHECKOUT_CACHE_ROOT", tmp_path / "cache")
    harness = rlm_harness(
        rlm_repo_url=repository.as_uri(), append_to_system_prompt="Be brief.", summarize_at_tokens=9
    )
    env = ComposableEnv(Asking([{"info": {}}] * 2), harness, timeout_seconds=300)
    client = ScriptedClient(lambda prompt: f"re: {prompt[-1]['content']}")
    async with env, asyncio.timeout(120):
        results = await env.generate(env.get_dataset(), client, "acme/tiny")
    for output in results["outputs"]:
        assert output["error"] is None
        assert output["metrics"]["rlm_turns"] == 3.0
        assert output["metrics"]["num_turns"] == 2.0, "the turn of the inner agent is left out"
        contents = [message["content"] for message in output["completion"]]
        assert contents[0] == "re: Say 'hi'; then $stop."
        assert contents[-1] == "re: Be brief."
    commits = [path for path in (tmp_path / "cache").glob("*/worktrees/*") if path.is_dir()]
    assert harness.get_upload_dirs() == {"rlm_checkout": commits[0]}  # type: ignore[misc]
    monkeypatch.setattr(rlm, "resolve_git_checkout", None)
    assert harness.get_upload_dirs() == {"rlm_checkout": commits[0]}  # type: ignore[misc]


def test_the_v0_module_is_the_module_whose_globals_callers_replace() -> None:
    assert importlib.import_module("verifiers.envs.experimental.composable.harnesses.rlm") is rlm


def test_settings_of_rlm_are_environment_variables(repository: Path) -> None:
    harness = rlm_harness(local_checkout=repository, rlm_tools=["a", "b"], rlm_max_depth=2)
    assert harness.environment_vars is not None
    assert harness.environment_vars({}) == {
        "RLM_TOOLS": "a,b",
        "RLM_MAX_TURNS": "100",
        "RLM_EXEC_TIMEOUT": "300",
        "RLM_MAX_DEPTH": "2",
    }
    assert harness.tool_names == ["a", "b"]
    assert (harness.skills_path, harness.metrics_prefix) == ("/task/rlm-skills", "rlm_")
    assert rlm_harness(local_checkout=repository).tool_names == ["ipython"]


def test_a_prompt_always_draws_the_same_threshold() -> None:
    variables_of = rlm_harness(summarize_at_tokens=(10, 10_000)).environment_vars
    assert variables_of is not None

    def threshold(state: dict[str, Any]) -> int:
        return int(variables_of(state)["RLM_SUMMARIZE_AT_TOKENS"])  # type: ignore[index]

    first = {"input": {"prompt": "a"}}
    second = {"prompt": [{"role": "user", "content": "a"}], "input": {}}
    assert threshold(first) == threshold({**first, "other": 1})
    assert threshold(second) == threshold(dict(second))
    assert len({threshold({"input": {"prompt": str(n)}}) for n in range(20)}) > 10
    assert all(10 <= threshold({"input": {"prompt": str(n)}}) <= 10_000 for n in range(20))


@pytest.mark.parametrize("value", [True, 0, -1, (1,), (1, 2, 3), (5, 2), (0, 5), "x", 1.5])
def test_other_thresholds_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="summarize_at_tokens"):
        rlm_harness(summarize_at_tokens=value)


def test_a_checkout_without_the_installer_is_refused(repository: Path) -> None:
    assert rlm.resolve_local_checkout(repository) == repository
    (repository / "install.sh").unlink()
    with pytest.raises(ValueError, match=r"install\.sh"):
        rlm.resolve_local_checkout(repository)
    with pytest.raises(ValueError, match="not a directory"):
        rlm.resolve_local_checkout("/nowhere")


def test_steps_of_inner_agents_are_recognised_by_a_header() -> None:
    keep = rlm._keep_only_parent_rlm_steps
    assert [
        keep({}, {}, headers) for headers in ({}, {"x-rlm-depth": "0"}, {"x-rlm-depth": "1"})
    ] == [
        True,
        True,
        False,
    ]
    assert rlm_harness(include_sub_rlm_trajectories=True).keep_trajectory_step is None


def test_a_shortened_conversation_is_shown_as_a_branch() -> None:
    def user(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    def said(text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text}

    steps: list[Any] = [
        {"prompt": [user("q")], "completion": [said("1")]},
        {"prompt": [user("q"), said("1"), user("out")], "completion": [said("2")]},
        {"prompt": [user("summary")], "completion": [said("3")]},
    ]
    state: dict[str, Any] = {"trajectory": steps}
    rlm.render_rlm_completion(state)
    contents = [message["content"] for message in state["completion"]]
    assert contents == ["1", "out", "2", rlm.COMPACTION_BOUNDARY_MARKER, "summary", "3"]
    assert state["completion"][3]["role"] == "system"
    assert rlm.render_completion_with_branches([]) == []


# ------------------------------------------------------------------------------------------------- mini-swe-agent

MINI = """#!/usr/bin/env python3
import json, sys
with open("arguments.json", "w") as file:
    json.dump(sys.argv[1:], file)
print("done")
"""


def test_mini_swe_agent_receives_task_and_settings(tmp_path: Path) -> None:
    program, prompt = tmp_path / "mini", tmp_path / "prompt.txt"
    program.write_text(MINI)
    program.chmod(0o755)
    prompt.write_text("Fix 'it'.")
    (tmp_path / "system.txt").write_text("Be brief.")
    command = build_mini_swe_agent_run_command(
        instruction_path=str(prompt),
        system_prompt_path=str(tmp_path / "system.txt"),
        log_path=str(tmp_path / "logs/log"),
        trajectory_path=str(tmp_path / "logs/trajectory.json"),
        mini_binary=str(program),
        extra_config_specs=["agent.step_limit=3"],
    )
    env = {"PATH": "/usr/bin:/bin", "AGENT_WORKDIR": f"{tmp_path}/w d", "OPENAI_MODEL": "m"}
    subprocess.run(["sh", "-c", command], env=env, check=True, stdout=subprocess.DEVNULL)
    arguments = json.loads((tmp_path / "w d" / "arguments.json").read_text())
    assert arguments[:4] == ["--model", "m", "--task", "Fix 'it'."]
    assert arguments[4:8] == [
        "--output",
        f"{tmp_path}/logs/trajectory.json",
        "--exit-immediately",
        "--yolo",
    ]
    specs = [
        value for name, value in zip(arguments[8::2], arguments[9::2], strict=True) if name == "-c"
    ]
    assert specs == [
        "mini_textbased",
        "agent.cost_limit=0",
        "environment.timeout=120",
        "model.model_class=litellm_textbased",
        "model.cost_tracking=ignore_errors",
        "model.model_kwargs.custom_llm_provider=openai",
        f"environment.cwd={tmp_path}/w d",
        "agent.system_template=Be brief.",
        "agent.step_limit=3",
    ]
    assert (tmp_path / "logs/log").read_text() == "done\n"


def test_mini_swe_agent_is_installed_once_from_the_checked_wheel(tmp_path: Path) -> None:
    """`python3` is a program of the test that answers as pip and writes down how it was called."""
    wheel = tmp_path / "mini_swe_agent-2.2.8-py3-none-any.whl"
    wheel.write_text("wheel")
    checksum = subprocess.run(["sha256sum", str(wheel)], capture_output=True, text=True, check=True)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python3"
    fake.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
case "$*" in
  *download*) while [ "$1" != --dest ]; do shift; done; cp {wheel} "$2" ;;
  *--target*) while [ "$1" != --target ]; do shift; done; mkdir -p "$2" ;;
esac
"""
    )
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}

    def install(sha256: str) -> subprocess.CompletedProcess[str]:
        script = build_mini_swe_agent_install_script("2.2.8", sha256, str(tmp_path / "prefix"))
        return subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True)

    assert install("0" * 64).returncode != 0
    assert not (tmp_path / "prefix/bin/mini").exists()
    assert install(checksum.stdout.split()[0]).returncode == 0
    calls = (tmp_path / "calls").read_text()
    assert "mini-swe-agent==2.2.8" in calls
    mini = (tmp_path / "prefix/bin/mini").read_text()
    assert f'exec "{fake}" -m minisweagent.run.mini "$@"' in mini
    assert install("0" * 64).returncode == 0, "it is there"
    assert (tmp_path / "calls").read_text() == calls


def test_mini_swe_agent_harness_has_its_paths() -> None:
    harness = mini_swe_agent_harness("S", "T")
    assert harness.system_prompt == "S\nT"
    assert harness.instruction_path == "/mini-swe-agent/prompt.txt"
    assert harness.log_path == "/logs/agent/mini-swe-agent.log"
    for command in (harness.run_command, harness.install_script):
        subprocess.run(["bash", "-n", "-c", str(command)], check=True)

"""`TaskSet`: rows, filters, copies, folders beside the class; and the check of a taskset without an agent."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

import verifiers as vf
from verifiers.envs.experimental.composable import (
    Harness,
    SandboxSpec,
    SandboxTaskSet,
    Task,
    TaskSet,
    discover_sibling_dir,
)

ROWS = [{"info": {"n": n}, "answer": str(n)} for n in range(4)]


class Counting(TaskSet):
    def get_instruction(self, info: dict[str, Any]) -> str:
        return f"Count to {info['n']}."


@pytest.fixture(params=["list", "dataset", "builder"])
def counting(request: pytest.FixtureRequest) -> Counting:
    rows: Any = {
        "list": ROWS,
        "dataset": Dataset.from_list(ROWS),
        "builder": lambda: Dataset.from_list(ROWS),
    }[request.param]
    return Counting(rows, "counting")


def test_rows_are_tasks(counting: Counting) -> None:
    assert (len(counting), repr(counting)) == (4, "TaskSet(name='counting', len=4)")
    task = counting[2]
    assert isinstance(task, Task)
    assert task.prompt == [vf.UserMessage(content="Count to 2.")]
    assert (task.info, task.answer, task.workdir) == ({"n": 2}, "2", "/app")
    assert (task.sandbox_spec, task.image) == (None, None)
    assert repr(task) == "Task(taskset='counting', no sandbox)"
    assert [each.answer for each in counting] == ["0", "1", "2", "3"]


def test_dataset_has_a_prompt_per_row(counting: Counting) -> None:
    prompts = [row["prompt"] for row in counting.get_dataset()]
    assert prompts[3] == [{"role": "user", "content": "Count to 3."}]
    assert "prompt" not in counting.dataset[0]


def test_a_prompt_of_the_rows_is_kept() -> None:
    rows = [{"prompt": [{"role": "user", "content": "Mine."}], "info": {"n": 1}}]
    assert Counting(rows).get_dataset() == rows
    assert Counting(Dataset.from_list(rows)).get_dataset()[0]["prompt"] == rows[0]["prompt"]


def test_copies_have_fewer_rows_and_the_same_class(counting: Counting) -> None:
    counting.get_skills_dir = lambda: Path("/mine")  # type: ignore[method-assign]
    few = counting.filter(lambda row: row["info"]["n"] > 1).take(1)
    assert isinstance(few, Counting)
    assert [task.answer for task in few] == ["2"]
    assert len(counting) == 4
    assert few.get_upload_dirs() == {"skills": Path("/mine")}
    assert len(counting.take(99)) == 4


def test_info_may_be_json_text() -> None:
    assert Counting([{"info": '{"n": 7}'}])[0].prompt[0]["content"] == "Count to 7."
    with pytest.raises(vf.ConfigError, match="not valid JSON"):
        Counting([{"info": "{"}])[0]


def test_a_filter_expression_selects_rows_on_first_use() -> None:
    built = []

    def build() -> list[dict[str, Any]]:
        built.append(True)
        return ROWS

    taskset = Counting(build, filter_fn="lambda row: re.match('[12]', row['answer']) and any([1])")
    assert not built
    assert [task.answer for task in taskset] == ["1", "2"]
    assert taskset.dataset is taskset.dataset
    assert built == [True]
    taskset.dataset = ROWS[:1]
    assert len(taskset) == 1


@pytest.mark.parametrize(
    ("filter_fn", "error"),
    [
        (3, TypeError),
        ("1 +", ValueError),
        ("__import__('os')", ValueError),
        ("3", TypeError),
        ("lambda row: open('/etc/passwd')", NameError),
    ],
)
def test_a_wrong_filter_expression_is_an_error_on_first_use(filter_fn: Any, error: type) -> None:
    taskset = Counting(ROWS, filter_fn=filter_fn)
    with pytest.raises(error):
        len(taskset)


def test_methods_to_override_are_named() -> None:
    with pytest.raises(NotImplementedError, match="get_instruction"):
        TaskSet(ROWS).get_dataset()
    with pytest.raises(NotImplementedError, match="get_rubric"):
        TaskSet(ROWS).get_rubric()
    with pytest.raises(NotImplementedError, match="get_sandbox_spec"):
        SandboxTaskSet(ROWS).get_sandbox_spec({})


async def test_defaults_of_the_hooks() -> None:
    class Imaged(SandboxTaskSet):
        default_workdir = "/testbed"
        get_instruction = Counting.get_instruction

        def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
            return SandboxSpec(image="acme/x")

    taskset = Imaged(ROWS, "i")
    assert taskset.get_workdir({}) == "/testbed"
    assert (taskset.get_env_vars(), taskset.get_upload_dirs()) == ({}, {})
    assert await taskset.validate_instance({}) is True
    assert repr(taskset[0]) == "Task(taskset='i', image='acme/x')"
    assert SandboxSpec() == SandboxSpec("python:3.11-slim", 4, 4, 10, 0, None, None)


@pytest.mark.parametrize("layout", ["module", "package", "module of a package"])
def test_skills_lie_beside_the_module_of_the_class(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from verifiers.envs.experimental.composable import TaskSet\nclass T(TaskSet): pass\n"
    name, path = {
        "module": ("skills_a", "skills_a.py"),
        "package": ("skills_b", "skills_b/__init__.py"),
        "module of a package": ("skills_c.tasks", "skills_c/tasks.py"),
    }[layout]
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    cls = importlib.import_module(name).T
    assert cls(ROWS).get_skills_dir() is None
    (file.parent / "skills").mkdir()
    assert discover_sibling_dir(cls, "skills") is None, "an empty folder"
    (file.parent / "skills" / "SKILL.md").write_text("x")
    found = cls(ROWS).get_upload_dirs()["skills"]
    assert [each.name for each in found.iterdir()] == ["SKILL.md"]
    monkeypatch.delitem(sys.modules, name)


def test_skills_have_a_path_unless_the_mapping_names_one() -> None:
    assert Harness().get_effective_upload_dir_mapping() is None
    harness = Harness(skills_path="/s", upload_dir_mapping={"a": "/a"})
    assert harness.get_effective_upload_dir_mapping() == {"a": "/a", "skills": "/s"}
    harness = Harness(skills_path="/s", upload_dir_mapping={"skills": "/own"})
    assert harness.get_effective_upload_dir_mapping() == {"skills": "/own"}


# ------------------------------------------------------------------------------------------ check without an agent


class Checked(SandboxTaskSet):
    """Its rows say how the solution behaves in a real sandbox."""

    def get_instruction(self, info: dict[str, Any]) -> str:
        return "x"

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        return SandboxSpec(cpu_cores=1, memory_gb=0.25, disk_size_gb=0.05)

    async def setup(self, state: Any) -> None:
        if state["info"]["is"] == "setup":
            raise ValueError("no such file")
        await state["sandbox_client"].execute_command(state["sandbox_id"], "echo 42 > /app/n")

    async def validate_instance(self, state: Any) -> bool:
        kind = state["info"]["is"]
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        assert state["test_timeout"] == 3600
        if kind == "slow":
            await client.execute_command(sandbox_id, "sleep 60", timeout=0.1)
        if kind == "gold":
            raise RuntimeError("Gold patch could not be applied")
        if kind == "sandbox":
            raise vf.SandboxError("lost")
        if kind == "bill":
            raise vf.SandboxError("HTTP 402: payment required")
        done = await client.execute_command(sandbox_id, "cat /app/n")
        state["test_output"] = done.stdout
        return kind == "good"


async def test_each_task_gets_the_reason_of_its_outcome(tmp_path: Path) -> None:
    kinds = ["good", "bad", "setup", "slow", "gold", "sandbox"]
    rows = [{"info": {"is": kind, "instance_id": kind, "repo": "r"}} for kind in kinds]
    out = tmp_path / "deep" / "out.jsonl"
    found = await Checked(rows).validate(out_path=out, max_retries=1, test_output_tail_chars=2)
    assert [row["reason"] for row in found] == [
        "pass",
        "test_failed",
        "setup_failed",
        "timeout",
        "gold_apply_failed",
        "sandbox_error",
    ]
    assert [row["attempts"] for row in found] == [1, 1, 1, 1, 1, 2]
    assert found[0] == {
        "index": 0,
        "instance_id": "good",
        "repo": "r",
        "valid": True,
        "reason": "pass",
        "attempts": 1,
        "elapsed": found[0]["elapsed"],
        "error": None,
        "error_type": None,
        "test_output_tail": "2\n",
    }
    assert (found[2]["error"], found[2]["error_type"]) == ("no such file", "ValueError")
    saved = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(saved, key=lambda row: row["index"]) == found


async def test_a_check_continues_after_the_rows_of_its_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text('{"index": 0, "reason": "from before"}\n{"broken')
    rows = [{"info": {"is": "good"}}, {"info": {"is": "bad"}}, {"info": {"is": "setup"}}]
    found = await Checked(rows).validate(2, out_path=out, resume=True)
    assert [row["reason"] for row in found] == ["from before", "test_failed"]
    assert json.loads(out.read_text().splitlines()[-1])["index"] == 1
    with pytest.raises(ValueError, match="needs out_path"):
        await Checked(rows).validate(resume=True)


async def test_a_bill_stops_the_check() -> None:
    rows = [{"info": {"is": "bill"}}, {"info": {"is": "good"}}]
    found = await Checked(rows).validate(concurrency=1)
    assert [row["reason"] for row in found] == ["billing_error"]


async def test_tasks_without_a_sandbox_are_checked_too() -> None:
    [row] = await Counting(ROWS).validate(1)
    assert (row["reason"], row["valid"]) == ("pass", True)

"""The ready-made tasksets: rows of local files, and agents whose work is scored in real sandboxes."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.agents import ComposableEnv, Harness, SandboxSpec, TaskSet
from verifiers.envs.agents.tasksets.lean import proof_file, protected
from verifiers.envs.agents.tasksets.swe import outcomes_of, without_install
from verifiers.envs.experimental.composable.tasksets import (
    LEAN_SYSTEM_PROMPT,
    CPTaskSet,
    HarborDatasetTaskSet,
    HarborTaskSet,
    LeanTaskSet,
    MathTaskSet,
    make_swe_taskset,
    make_swesmith_go_taskset,
    make_swesmith_taskset,
)
from verifiers.envs.experimental.composable.tasksets.swe import R2EGymTaskSet
from verifiers.testing import ScriptedClient

SMALL = SandboxSpec(cpu_cores=1, memory_gb=0.5, disk_size_gb=0.05)


def stored(folder: Path, rows: list[dict[str, Any]]) -> str:
    """A folder with rows, which `datasets` loads without a network."""
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return str(folder)


async def play(taskset: TaskSet, command: str, *, small: bool = True, **options: Any) -> list[Any]:
    """Run a shell command as the agent of every task, and return the outputs."""
    if small:
        taskset.get_sandbox_spec = lambda info: SMALL  # type: ignore[method-assign]
    env = ComposableEnv(
        taskset, Harness(run_command=command), keep_sandbox_for_scoring=True, **options
    )
    async with env, asyncio.timeout(120):
        results = await env.generate(env.get_dataset(), ScriptedClient([]), "m")
        assert not any(env.sandbox_client.has(each) for each in env.active_sandboxes)
    assert [output["error"] for output in results["outputs"]] == [None] * len(taskset)
    return results["outputs"]


# ---------------------------------------------------------------------------------------------------- mathematics

QUESTIONS = [
    {"question": "6 * 7?", "answer": "42", "rate": 0.5},
    {"question": "1 + 1?", "answer": "2", "rate": 0.9},
]


def math(folder: Path, **options: Any) -> MathTaskSet:
    return MathTaskSet(
        stored(folder, QUESTIONS),
        None,
        ds_num_proc=None,
        **{"use_judge_fallback": False, **options},
    )


def test_math_rows_say_where_the_answer_goes(tmp_path: Path) -> None:
    taskset = math(tmp_path, difficulty_key="rate", max_avg_reward=0.6, instruction_prompt="Do: ")
    [row] = taskset.get_dataset()
    assert row["prompt"][0]["content"] == (
        "Do: 6 * 7?\n\nWrite your final answer to `/app/answer.txt`."
    )
    assert (row["info"], row["answer"]) == ({"question": "6 * 7?"}, "42")
    spec = taskset.get_sandbox_spec({})
    assert (spec.cpu_cores, spec.memory_gb) == (1, 2)
    filtered = math(tmp_path, filter_fn="lambda row: row['answer'] == '2'")
    assert [task.answer for task in filtered] == ["2"]


def test_math_is_loaded_on_first_use_and_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    env = ComposableEnv(MathTaskSet("/nowhere"), Harness())
    assert env.taskset.name == "math//nowhere"


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'problem'.*question, answer, rate"):
        len(math(tmp_path, question_key="problem"))


async def test_math_scores_the_answer_file(tmp_path: Path) -> None:
    command = 'cd "$AGENT_WORKDIR" && echo 42 > answer.txt'
    outputs = await play(math(tmp_path), command, small=False)
    assert [output["reward"] for output in outputs] == [1.0, 0.0]
    assert outputs[0]["metrics"]["math_verify_score"] == 1.0


# ---------------------------------------------------------------------------------------------------- programming

PROBLEMS = [
    {
        "question": "Print the half of the number.",
        "info": json.dumps(
            {
                "tests": json.dumps({"inputs": ["3", "4"], "outputs": ["1.5\n", "2.0004"]}),
                "source": "s",
            }
        ),
    },
    {
        "question": "Return the half.",
        "info": json.dumps(
            {
                "tests": {"inputs": [[3], [5]], "outputs": [1.5, [2.5]], "fn_name": "half"},
                "source": "t",
            }
        ),
    },
]


def programming(folder: Path, **options: Any) -> CPTaskSet:
    return CPTaskSet(
        stored(folder, PROBLEMS), None, ds_num_proc=None, timeout_per_test=10, **options
    )


def test_programming_rows_have_their_tests_as_json(tmp_path: Path) -> None:
    rows = programming(tmp_path, instruction_prompt="Solve.").get_dataset()
    assert rows[0]["prompt"][0]["content"] == (
        "Solve.\n\nPrint the half of the number.\n\nSave your final solution to `/app/answer.py`."
    )
    assert (
        "\n\nYour solution must define the function `half`.\n\n" in rows[1]["prompt"][0]["content"]
    )
    assert rows[1]["info"]["verification_info"] == {
        "fn_name": "half",
        "test_case_inputs": ["[3]", "[5]"],
        "test_case_outputs": ["1.5", "[2.5]"],
        "timeout": 10,
    }
    assert (rows[1]["info"]["num_test_cases"], rows[1]["info"]["source"]) == (2, "t")
    few = programming(tmp_path, max_num_tests=1)
    assert [task.info["num_test_cases"] for task in few] == [1, 1]
    assert few[0].info == programming(tmp_path, max_num_tests=1)[0].info, "the sample is repeatable"


HALF = (
    "def half(n):\n    return n / 2\nif __name__ == '__main__':\n    print(half(float(input())))\n"
)


@pytest.mark.parametrize(
    ("program", "rates"),
    [
        (HALF, [1.0, 1.0]),
        ("print(1.5)\ndef half(n): return n / 2", [0.5, 1.0]),
        ("syntax error", [0.0, 0.0]),
        ("", [0.0, 0.0]),
    ],
)
async def test_programs_are_tested_in_the_sandbox(
    tmp_path: Path, program: str, rates: list[float]
) -> None:
    command = f"cat > \"$AGENT_WORKDIR/answer.py\" << 'EOF'\n{program}\nEOF"
    outputs = await play(programming(tmp_path), command)
    assert [output["metrics"]["pass_rate"] for output in outputs] == rates
    assert [output["reward"] for output in outputs] == [float(rate == 1.0) for rate in rates]
    assert [output["metrics"]["num_test_cases"] for output in outputs] == [2.0, 2.0]


async def test_a_missing_program_counts_nothing(tmp_path: Path) -> None:
    outputs = await play(programming(tmp_path), "true")
    assert [output["reward"] for output in outputs] == [0.0, 0.0]


class Machine:
    """A provider's client that runs commands on this machine, below a folder."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.deleted: list[str] = []

    async def execute_command(self, sandbox_id: str, command: str, timeout: float) -> Any:
        if self.fails and "base64" in command:
            raise vf.SandboxError("lost")
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        stdout, stderr = await process.communicate()
        return SimpleNamespace(
            stdout=stdout.decode(), stderr=stderr.decode(), exit_code=process.returncode
        )

    async def delete(self, sandbox_id: str) -> None:
        self.deleted.append(sandbox_id)


async def test_programs_are_tested_with_any_client(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text(HALF)
    taskset = programming(tmp_path, answer_path=str(path))
    rubric = taskset.get_rubric()
    client = Machine()
    for task in taskset:
        state: dict[str, Any] = {"sandbox_client": client, "sandbox_id": "s", "info": task.info}
        assert await rubric.pass_rate(state, task.info) == 1.0
        assert await rubric.passed(state) == 1.0
        await rubric.cleanup(state)  # type: ignore[arg-type]
    assert client.deleted == ["s", "s"]
    state = {"sandbox_client": Machine(fails=True), "sandbox_id": "s", "info": taskset[0].info}
    assert await rubric.pass_rate(state, taskset[0].info) == 0.0
    assert await rubric.pass_rate({"error": RuntimeError()}, {}) == 0.0
    assert await rubric.pass_rate({}, {}) == 0.0


# --------------------------------------------------------------------------------------------------------- harbor


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    files = {
        "hello/task.toml": "[verifier]\ntimeout_sec = 60\n",
        "hello/instruction.md": " Write hello. \n",
        "hello/tests/test.sh": "sh helper.sh $(cat /app/greeting)\n",
        "hello/tests/helper.sh": 'test "$1" = hello && echo 1 > /logs/verifier/reward.txt\n',
        "hello/solution/solve.sh": "echo hello > greeting\n",
        "json/task.toml": '[environment]\ndocker_image = "python:3.12"\n',
        "json/instruction.md": "Do nothing.",
        "json/tests/test.sh": "echo '{\"reward\": 0.5}' > /logs/verifier/reward.json\necho seen\n",
        "json/solution/solve.sh": "exit 3\n",
        "no task/readme": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_task_folders_are_rows(tasks: Path) -> None:
    taskset = HarborDatasetTaskSet(tasks)
    assert (len(taskset), taskset.name) == (2, f"harbor/{tasks.name}")
    assert taskset.dataset[0]["question"] == "Write hello."
    assert taskset[0].prompt[0]["content"] == "Write hello."
    assert [task.image for task in taskset] == ["python:3.11-slim", "python:3.12"]
    assert taskset.get_env_vars() == {
        "HARBOR_TASK_DIR": "/task",
        "HARBOR_INSTRUCTION_PATH": "/task/instruction.md",
    }
    assert [task.info["task_name"] for task in HarborDatasetTaskSet(tasks, ["json"])] == ["json"]
    single = HarborTaskSet(tasks / "hello")
    assert (len(single), single.name) == (1, "harbor/hello")


def test_missing_tasks_are_errors(tasks: Path) -> None:
    with pytest.raises(FileNotFoundError, match="not found"):
        HarborDatasetTaskSet(tasks / "none")
    with pytest.raises(FileNotFoundError, match="not found"):
        HarborTaskSet(tasks / "none")
    with pytest.raises(FileNotFoundError, match=r"has no task\.toml"):
        HarborTaskSet(tasks / "no task")
    with pytest.raises(ValueError, match="No valid Harbor tasks"):
        HarborDatasetTaskSet(tasks, ["other"])


async def test_harbor_tests_score_the_work_of_any_harness(tasks: Path) -> None:
    agent = (
        'test -f "$HARBOR_INSTRUCTION_PATH" && test -z "$(find /tests /oracle -mindepth 1)" && '
        'echo hello > "$AGENT_WORKDIR/greeting"; echo 1 > /tests/planted; mkdir -p /logs/verifier; '
        "echo 9 > /logs/verifier/reward.txt"
    )
    outputs = await play(HarborDatasetTaskSet(tasks), agent)
    assert [output["reward"] for output in outputs] == [1.0, 0.5]


async def test_harbor_solutions_are_validated(tasks: Path) -> None:
    taskset = HarborDatasetTaskSet(tasks)
    taskset.get_sandbox_spec = lambda info: SMALL  # type: ignore[method-assign]
    found = await taskset.validate()
    assert [row["reason"] for row in found] == ["pass", "gold_apply_failed"]


# ----------------------------------------------------------------------------------------------------------- lean

STATEMENT = (
    "import Mathlib\nopen Nat\n/-- Trivial. -/\ntheorem same (a : Nat) : a = a := by\n  sorry"
)
LAKE = """#!/bin/sh
grep -q wrong "$3" && { echo "error: unsolved goals"; exit 1; }
grep -q "^  sorry" "$3" && echo "warning: declaration uses 'sorry'"
exit 0
"""


@pytest.mark.parametrize(
    ("statement", "header", "old"),
    [
        (STATEMENT, "open Real", False),
        (
            "theorem same (a : Nat) : a = a := by",
            "import Mathlib\nopen Nat\n/-- Trivial. -/",
            False,
        ),
        ("theorem same (a : Nat) : a = a :=", "import Mathlib\nopen Nat\n/-- Trivial. -/", False),
        ("/-- Trivial. -/\ntheorem same (a : Nat) : a = a", "import Mathlib.A.B\nopen Nat", True),
        ("/-- Trivial. -/\ntheorem same (a : Nat) : a = a := sorry", "open Nat", False),
    ],
)
def test_statements_become_files_with_one_protected_signature(
    statement: str, header: str, old: bool
) -> None:
    info = {"formal_statement": statement, "header": header, "_normalize_mathlib_imports": old}
    assert " ".join(proof_file(info).split()) == (
        "import Mathlib open Nat /-- Trivial. -/ -- lean-guard: begin protected theorem same (a : Nat) : a = a := by "
        "-- lean-guard: end protected sorry"
    )


def test_changed_or_repeated_marks_protect_nothing() -> None:
    text = proof_file({"formal_statement": STATEMENT, "header": ""})
    assert protected(text) == "theorem same (a : Nat) : a = a := by"
    assert protected(text.replace("end protected", "end")) is None
    assert protected(text + "\n-- lean-guard: begin protected") is None


class Lean(LeanTaskSet):
    """A sandbox in which a script of the test answers as Lean's build tool."""

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        return SMALL

    def get_env_vars(self) -> dict[str, str]:
        return {"PATH": "/box/bin:/usr/bin:/bin"}

    async def setup(self, state: Any) -> None:
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        await client.upload_bytes(sandbox_id, "/box/bin/lake", LAKE.encode(), "lake")
        await client.execute_command(sandbox_id, "chmod +x /box/bin/lake")
        await super().setup(state)


class Edited(Lean):
    """The name of a row is the edit that its agent makes."""

    def get_instruction(self, info: dict[str, Any]) -> str:
        return info["name"]


EDITS = {
    "s/^  sorry/  rfl/": (1.0, None),
    "s/^  sorry/  wrong/": (0.0, None),
    "s/^  none//": (0.0, None),
    "s/^  sorry/  rfl/; s/a = a/1 = 1/": (0.0, True),
    "s/^  sorry/  rfl/; 1a lemma open_problem : True := trivial -- def": (1.0, None),
    "s/^  sorry/  rfl/; 1a lemma x : True := trivial axiom y : False": (0.0, True),
    "s/^  sorry/  rfl/; s/^open Nat/ /": (0.0, True),
}
"""Edit of the proof file → reward, and whether the statement was changed."""


async def test_proofs_are_compiled(tmp_path: Path) -> None:
    rows = [{"formal_statement": STATEMENT, "name": edit, "header": ""} for edit in EDITS]
    folder = stored(tmp_path, rows)
    text = LeanTaskSet(dataset_name=folder, ds_num_proc=None)[0].prompt[0]["content"]
    assert "cd /workspace/mathlib4 && lake env lean /tmp/proof.lean" in text
    env = ComposableEnv(
        Edited(dataset_name=folder, ds_num_proc=None),
        Harness(run_command="sed -i -f /task/instruction.md /tmp/proof.lean"),
        keep_sandbox_for_scoring=True,
        score_in="live",
    )
    columns = ["lean_tampered", "lean_compiled"]
    async with env, asyncio.timeout(120):
        results = await env.generate(
            env.get_dataset(), ScriptedClient([]), "m", state_columns=columns
        )
    found = {
        output["info"]["name"]: (output["reward"], output.get("lean_tampered"))
        for output in results["outputs"]
    }
    assert found == EDITS
    for output in results["outputs"]:
        is_compiled = not output.get("lean_tampered") and "wrong" not in output["info"]["name"]
        assert (output["error"], output["lean_compiled"]) == (None, is_compiled)


async def test_statements_are_validated_with_sorry(tmp_path: Path) -> None:
    rows = [
        {"formal_statement": text, "name": "x", "header": ""}
        for text in (STATEMENT, "theorem wrong : 1")
    ]
    found = await Lean(dataset_name=stored(tmp_path, rows), ds_num_proc=None).validate()
    assert [row["reason"] for row in found] == ["pass", "test_failed"]


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown preset 'x'.*goedel-pset, numina-lean"):
        LeanTaskSet("x")
    assert "sorry" in LEAN_SYSTEM_PROMPT


# ------------------------------------------------------------------------------------------------------- software

SUMMARY = """
\x1b[31m=== short test summary info ===\x1b[0m
\x1b[32mPASSED\x1b[0m r2e_tests/test_a.py::\x1b[1mTestA::test_one\x1b[0m
FAILED r2e_tests/test_a.py::test_two[a-b] - AssertionError: no
ERROR r2e_tests/test_b.py - ImportError
=== 1 failed ===
"""
EXPECTED = {"TestA.test_one": "PASSED", "test_two[a-b]": "FAILED", "r2e_tests/test_b.py": "ERROR"}


def test_outcomes_are_read_from_the_summary_of_pytest() -> None:
    assert outcomes_of("PASSED x.py::before" + SUMMARY) == EXPECTED
    assert outcomes_of("no summary") == {}


class R2E(R2EGymTaskSet):
    """The files of an image, written into a sandbox of this machine. The runner prints what the source says."""

    tests_path = "/box/r2e_tests"

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        return SMALL

    async def setup(self, state: Any) -> None:
        await state["sandbox_client"].execute_command(
            state["sandbox_id"],
            "mkdir -p /box/testbed/.venv/bin /box/r2e_tests && cd /box/testbed && "
            "echo 'cat r2e_tests/head source' > run_tests.sh && touch .venv/bin/tool a.pyc && "
            "chmod +x .venv/bin/tool && echo '== short test summary info ==' > /box/r2e_tests/head",
        )
        await super().setup(state)


def r2e(folder: Path, **options: Any) -> R2E:
    rows = [
        {
            "problem_statement": "It fails.",
            "commit_hash": name,
            "repo_name": name,
            "docker_image": f"acme/{name}:1",
            "expected_output_json": json.dumps({"\x1b[1mT.one\x1b[0m - why": "PASSED"}),
        }
        for name in ("one", "two")
    ]
    return R2E(stored(folder, rows), "/box/testbed", "/box/alt", **options)


@pytest.mark.parametrize(
    ("hidden", "source", "reward"),
    [
        (True, "PASSED a.py::T::one", 1.0),
        (True, "FAILED a.py::T::one - no", 0.0),
        (False, "PASSED a.py::T::one", 1.0),
        (False, "PASSED a.py::T::other", 0.0),
    ],
)
async def test_repository_tests_score_the_change(
    tmp_path: Path, hidden: bool, source: str, reward: float
) -> None:
    taskset = r2e(tmp_path, filter_repos=["two"], hide_tests_from_agent=hidden)
    assert [task.info["instance_id"] for task in taskset] == ["one"]
    look = 'test ! -e /box/r2e_tests && test ! -e "$AGENT_WORKDIR/a.pyc" && test -x /box/alt/.local/bin/tool'
    attack = 'echo "echo PASSED a.py::T::one" > run_tests.sh' if hidden else "true"
    command = f'cd "$AGENT_WORKDIR" && {look} && {attack} && echo "{source}" > source'
    [output] = await play(taskset, command, small=False)
    assert output["reward"] == reward


def test_swe_tasksets_are_chosen_by_name(tmp_path: Path) -> None:
    taskset = make_swe_taskset(dataset_name=str(tmp_path), filter_repos=[], timeout_minutes=5)
    assert isinstance(taskset, R2EGymTaskSet)
    assert taskset.default_workdir == "/testbed"
    spec = R2EGymTaskSet("x", registry="mirror.example/").get_sandbox_spec(
        {"docker_image": "a/b:1"}
    )
    assert spec.image == "mirror.example/a/b:1"
    with pytest.raises(ValueError, match=r"Unknown backend 'x'.*r2e, swebench, openswe"):
        make_swe_taskset("x")
    for make in (make_swesmith_go_taskset, make_swesmith_taskset):
        with pytest.raises(vf.ConfigError, match="is not offered; use r2e, swebench or"):
            make()
    with pytest.raises(vf.ConfigError, match="swesmith-py' is not offered"):
        make_swe_taskset("swesmith-py")


def test_swebench_runs_without_its_installation_step(tmp_path: Path) -> None:
    install = "python -m pip install -e .\npip install -v --no-use-pep517 -e .[test]\n"
    script = f"cd /testbed\n{install}pip install six\npytest\n"
    assert without_install(script) == "cd /testbed\n:\n:\npip install six\npytest\n"
    taskset = make_swe_taskset("swebench")
    with pytest.raises(vf.ConfigError, match="pip install swebench"):
        taskset.get_sandbox_spec({})

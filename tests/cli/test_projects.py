"""`vf-init`, `vf-build`, `vf-install`, `vf-validate`: from nothing to an installed, checked environment."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from verifiers.packages.scaffold import TEMPLATES, create_environment

SOUND = """
import verifiers as vf

def rows():
    return [{"question": f"Say {word}.", "answer": word} for word in ("red", "green", "blue")]

def says_it(completion, answer):
    return float(completion[-1]["content"] == answer)

def load_environment():
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[says_it]))
"""


def checks_of(done) -> dict[str, tuple[str, str]]:
    return {check["name"]: (check["status"], check["detail"]) for check in done.json["checks"]}


# --------------------------------------------------------------------------------------------- vf-init


def test_every_template_passes_its_own_test_and_is_sound(run):
    """One process for all of their tests: starting Python is most of the cost."""
    for template in TEMPLATES:
        assert run("init", f"made-{template}", "-t", template).code == 0
    tested = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "environments",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert tested.returncode == 0, tested.stdout

    for template in TEMPLATES:
        done = run("validate", f"./environments/made_{template.replace('-', '_')}", "--json")
        statuses = {name: status for name, (status, _) in checks_of(done).items()}
        assert done.code == 0, done.out
        if template != "judge":
            assert set(statuses.values()) == {"pass"}
        else:
            assert (statuses["rows"], statuses["gold"]) == ("pass", "skip")


def test_init_keeps_what_is_there_unless_it_is_forced(run):
    run("init", "fresh-env")
    file = Path("environments/fresh_env/fresh_env.py")
    file.write_text("mine")

    kept = run("init", "fresh-env")
    readme = run("init", "fresh-env", "--rewrite-readme")
    forced = run("init", "fresh-env", "--force")

    assert (kept.code, kept.out.count("kept"), kept.out.count("wrote")) == (0, 4, 0)
    assert "wrote  environments/fresh_env/README.md" in readme.out
    assert (forced.out.count("wrote"), file.read_text() == "mine") == (4, False)


def test_a_package_layout_loads_too(run):
    run("init", "my-pack", "--multi-file", "-t", "tool")

    assert Path("environments/my_pack/my_pack/__init__.py").is_file()
    assert run("validate", "./environments/my_pack").code == 0
    assert run("init", "my-pack").code == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bad name!", "For example: bad-name"),
        ("My-Env", "For example: my-env"),
        ("1env", "For example: env"),
        ("json", "hide the module"),
        ("class", "keyword of Python"),
        ("pydantic", "already installed"),
        ("../up", "not a valid"),
    ],
)
def test_a_name_that_cannot_be_a_module_is_refused(run, name, said):
    done = run("init", name)

    assert (done.code, said in done.err) == (2, True), done.err
    assert not Path("environments").exists()


def test_an_unknown_template_names_the_known_ones(run):
    assert "single-turn, multi-turn, tool, judge, group" in run("init", "x-env", "-t", "tols").err


# -------------------------------------------------------------------------------------------- vf-build


def test_build_gives_a_wheel_with_the_environment_and_its_suggestions(run):
    run("init", "built-env")

    done = run("build", "built-env", "--json")

    assert done.code == 0, done.err
    wheel = done.json["wheel"]
    assert (done.json["module"], len(wheel["sha256"])) == ("built_env", 64)
    assert {"built_env.py", "built_env.pyproject.toml"} <= set(
        zipfile.ZipFile(wheel["path"]).namelist()
    )
    assert run("build", "built-env", "--json").json["wheel"]["sha256"] == wheel["sha256"]


def test_build_takes_the_current_folder_without_a_name(run, monkeypatch):
    run("init", "here-env")
    monkeypatch.chdir("environments/here_env")

    assert "here_env-0.1.0-py3-none-any.whl" in run("build").out


def test_build_refuses_a_wheel_without_the_environment(run):
    run("init", "empty-env")
    Path("environments/empty_env/empty_env.py").write_text("x = 1")

    done = run("build", "empty-env")

    assert (done.code, "defines load_environment" in done.err) == (1, True)


def test_build_of_what_is_no_project_is_wrong_usage(run):
    Path("environments/bare").mkdir(parents=True)

    assert "no pyproject.toml" in run("build", "bare").err
    assert run("build", "missing").code == 2


# ------------------------------------------------------------------------------------------ vf-install


def test_install_puts_a_folder_into_the_python_that_runs_it(run, tmp_path):
    """In a virtual environment of its own, which sees this one's packages through a path file."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    site = next(venv.glob("lib/python*/site-packages"))
    visible = [path for path in sys.path if path and Path(path).is_dir()]
    (site / "seen.pth").write_text("\n".join(visible))
    run("init", "local-env")
    pyproject = Path("environments/local_env/pyproject.toml")
    pyproject.write_text(pyproject.read_text().replace('dependencies = ["verifiers>=1.0"]', ""))
    python = venv / "bin" / "python"

    installed = subprocess.run(
        [
            python,
            "-c",
            "import sys; from vf_cli.main import install_main; sys.exit(install_main())",
            "local-env",
        ],
        capture_output=True,
        text=True,
    )
    found = subprocess.run(
        [python, "-c", "import local_env; print(local_env.__file__)"],
        capture_output=True,
        text=True,
    )

    assert installed.returncode == 0, installed.stderr
    assert "installed  local-env" in installed.stdout
    assert found.stdout.strip() == str(Path("environments/local_env/local_env.py").resolve())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing"], 2, "There is no environment folder environments/missing"),
        (["owner/name@1.0"], 2, "No hub is configured"),
        (["name", "-r"], 2, "--repo"),
        (["gone.whl"], 2, "There is no wheel gone.whl"),
        (["a/b/c"], 2, "owner/name@version"),
    ],
)
def test_install_says_what_is_missing(run, arguments, code, said):
    done = run("install", *arguments)
    assert (done.code, said in done.err) == (code, True), done.err


def test_an_installer_that_fails_is_exit_code_1_with_its_last_lines(run):
    folder = Path("environments/broken")
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "broken"\nversion = "not a version"\n'
    )

    done = run("install", "broken")

    assert (done.code, "Installing failed" in done.err) == (1, True)


# ----------------------------------------------------------------------------------------- vf-validate


def test_a_sound_environment_passes_every_check(run, make_environment):
    done = run("validate", make_environment(SOUND), "--json")

    assert done.code == 0
    assert {status for status, _ in checks_of(done).values()} == {"pass"}


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (("== answer", "== 'purple'"), "gold", "does not score 1: row 0 gets 0"),
        (("== answer", "== answer or True"), "empty", "An empty answer scores 1"),
        (('"question": f"Say {word}."', '"quesion": "x"'), "rows", "neither 'prompt' nor 'question'"),
        (('"question": f"Say {word}."', '"prompt": [{"role": "robot", "content": "x"}]'), "rows", "robot"),
        (('"answer": word', '"answer": word, "info": {"x": {1}}'), "rows", "JSON"),
        (("Say {word}.", "Say {word} {__import__('random').random()}."), "same-rows", "differs when"),
        (("float(completion", "__import__('random').random() * float(completion"), "gold", "row"),
        (("def load_environment():", "def load_environment():\n    raise KeyError('boom')"), "load", "boom"),
    ],
)  # fmt: skip
def test_a_fault_fails_its_check_and_says_what_to_do(run, make_environment, change, check, said):
    assert change[0] in SOUND
    done = run("validate", make_environment(SOUND.replace(*change)), "--json")

    found = checks_of(done)
    assert done.code == 1
    assert (found[check][0], said in found[check][1]) == ("fail", True), found


def test_scores_that_change_are_found(run, make_environment):
    counting = SOUND.replace(
        "def says_it(completion, answer):\n",
        "calls = []\n\ndef says_it(completion, answer):\n    calls.append(1)\n",
    ).replace("float(completion", "(1 + len(calls) / 1000) * float(completion")

    found = checks_of(run("validate", make_environment(counting), "--json"))

    assert found["same-scores"][0] == "fail"
    assert "the first time" in found["same-scores"][1]


def test_rollouts_that_share_what_they_change_are_found(run, make_environment):
    sharing = """
import asyncio
import verifiers as vf

class Sharing(vf.MultiTurnEnv):
    said = ""

    async def setup_state(self, state):
        self.said = ""
        return state

    @vf.stop
    async def done(self, state):
        return len(state["trajectory"]) >= 2

    async def env_response(self, messages, state, **kwargs):
        self.said += str(messages[-1]["content"])
        await asyncio.sleep(0)
        return [{"role": "user", "content": "go on"}]

def gold_completion(row):
    return [row["answer"], "."]

def load_environment():
    rows = [{"question": word, "answer": word} for word in ("red", "green")]
    environment = Sharing(dataset=rows)

    def says_it(answer):
        return float(environment.said == answer)

    environment.rubric.add_reward_func(says_it)
    return environment
"""
    found = checks_of(run("validate", make_environment(sharing), "--json"))

    assert (found["gold"][0], found["isolation"][0]) == ("pass", "fail"), found
    assert "share something that they change" in found["isolation"][1]


def test_a_conversation_without_gold_replies_is_skipped_not_passed(run, make_environment):
    talking = SOUND.replace("return vf.SingleTurnEnv(", "return vf.ToolEnv(tools=[], ")

    done = run("validate", make_environment(talking), "--json")

    assert (done.code, checks_of(done)["gold"][0]) == (0, "skip")
    assert "define gold_completion(row)" in checks_of(done)["gold"][1]


def test_gold_replies_that_are_too_few_are_a_failure(run, make_environment):
    talking = SOUND.replace("return vf.SingleTurnEnv(", "return vf.MultiTurnEnv(max_turns=3, ")
    talking = talking.replace("vf.MultiTurnEnv", "Talking") + (
        "\nclass Talking(vf.MultiTurnEnv):\n    async def env_response(self, messages, state, **kwargs):\n"
        "        return [{'role': 'user', 'content': '?'}]\n\ndef gold_completion(row):\n    return row['answer']\n"
    )

    found = checks_of(run("validate", make_environment(talking), "--json"))

    assert found["gold"][0] == "fail"
    assert "has 1 replies, but the environment asked for number 2" in found["gold"][1]


def test_scoring_that_never_returns_is_cut_off(run, make_environment):
    hanging = SOUND.replace(
        "def says_it(completion, answer):\n",
        "async def says_it(completion, answer):\n    import asyncio\n    await asyncio.Event().wait()\n",
    )

    done = run("validate", make_environment(hanging), "--play-limit", "0.2", "--json")

    assert "took longer than 0.2 s" in checks_of(done)["gold"][1]


def test_a_reward_function_that_never_gives_way_is_cut_off(run, make_environment):
    looping = SOUND.replace(
        "def says_it(completion, answer):\n",
        "def says_it(completion, answer):\n    while True:\n        pass\n",
    )

    done = run("validate", make_environment(looping), "--play-limit", "0.2", "--json")

    assert "took longer than 0.2 s" in checks_of(done)["gold"][1]


def test_the_table_says_pass_fail_skip_and_the_next_step(run, make_environment):
    done = run("validate", make_environment(SOUND))

    assert "pass  gold" in done.out
    assert "8 passed, 0 failed, 0 skipped   next: vf-eval" in done.out


def test_validate_of_nothing_is_a_failed_load(run):
    done = run("validate", "not-there-env", "--json")

    assert done.code == 1
    assert checks_of(done)["load"][0] == "fail"


def test_names_are_checked_for_the_library_too():
    assert create_environment("an_env", "made").folder == Path("made/an_env")


def test_an_environment_without_rewards_is_skipped_not_passed(run, make_environment):
    path = make_environment(
        "import verifiers as vf\n"
        "def load_environment():\n"
        "    return vf.SingleTurnEnv(dataset=[{'question': 'q', 'answer': 'a'}], rubric=vf.Rubric())\n"
    )

    checks = {check["name"]: check for check in run("validate", path, "--json").json["checks"]}

    assert checks["gold"]["status"] == "skip"
    assert "no reward function has a positive weight" in checks["gold"]["detail"]


def test_the_next_step_after_a_folder_names_the_folder(run, make_environment):
    path = make_environment()

    assert f"next: vf-eval {path} -m MODEL" in run("validate", path).out


HARBOR = """
import verifiers as vf

def load_environment():
    return vf.HarborEnv("true", "tasks", memory_gb=0.125, disk_size_gb=0.01)
"""


def test_the_tasks_of_an_environment_are_checked_with_their_solutions_and_without(run):
    for name in ("tests", "solution"):
        Path("tasks/answer", name).mkdir(parents=True)
    Path("harbor_answer.py").write_text(HARBOR)
    Path("tasks/answer/task.toml").write_text("")
    Path("tasks/answer/instruction.md").write_text("Create /app/done.")
    Path("tasks/answer/tests/test.sh").write_text(
        "[ -e /app/done ] && echo 1 > $R || echo 0 > $R".replace("$R", "/logs/verifier/reward.txt")
    )
    solution = Path("tasks/answer/solution/solve.sh")
    solution.write_text("touch /app/done")
    only = ("--only", "oracle", "--only", "nop")
    done = run("validate", "./harbor_answer.py", *only)
    assert done.code == 0, done.err
    assert "oracle  1 solutions score 1" in done.out
    assert "nop     1 tasks score at most 0" in done.out
    solution.write_text("echo done")
    done = run("validate", "./harbor_answer.py", *only, "--json")
    assert done.code == 1
    checks = {check["name"]: check["status"] for check in done.json["checks"]}
    assert (checks["oracle"], checks["nop"]) == ("fail", "pass")
    done = run("validate", "./harbor_answer.py", "--only", "orakel")
    assert (done.code, "Choose from rows, same-rows" in done.err) == (2, True)

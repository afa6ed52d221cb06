"""A single Python file with `load_environment()` is an environment for every command."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from vf_cli.rollouts import _environment
from vf_cli.train import _prepared

SOURCE = """
import json
from pathlib import Path

import verifiers as vf

SUMS = json.loads(Path(__file__).with_name("sums.json").read_text())


def is_right(completion, answer):
    return 1.0 if f"<answer>{answer}</answer>" in completion[-1]["content"] else 0.0


def load_environment(count: int = 4):
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=SUMS[:count], rubric=vf.Rubric(funcs=[is_right], parser=parser), parser=parser
    )
"""
SUMS = [{"question": f"What is {a} + 1?", "answer": str(a + 1)} for a in range(6)]


@pytest.fixture
def file() -> Path:
    path = Path("my-sums.v1.py")
    path.write_text(SOURCE)
    path.with_name("sums.json").write_text(json.dumps(SUMS))
    return path


def run_folders() -> list[Path]:
    return [path.parent for path in Path("outputs").rglob("metadata.json")]


@pytest.mark.parametrize("workers", [(), ("--num-workers", 1)], ids=["in process", "worker"])
def test_a_file_is_evaluated_and_its_run_holds_the_hash_of_the_file(run, endpoint, file, workers):
    options = ("-m", "m", "-b", endpoint.url, "-n", 2, "-r", 1, "-s", "--json", *workers)
    done = run("eval", f"./{file}", *options)
    assert done.code == 0, done.err
    [report] = done.json["evaluations"]
    assert (report["env_id"], report["summary"]["reward"]["mean"]) == ("my-sums-v1", 1.0)
    [folder] = run_folders()
    saved = json.loads((folder / "metadata.json").read_text())
    assert saved["env_id"] == "my-sums-v1"
    source = saved["provenance"]["environment"]
    assert source["source_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (source["package"], source["version"], source["wheel_sha256"]) == (None, None, None)


def test_a_run_of_a_file_is_resumed(run, endpoint, file):
    options = ("-m", "m", "-b", endpoint.url, "-r", 1)
    assert run("eval", str(file), *options, "-n", 1, "-s").code == 0
    assert run("eval", str(file), *options, "-n", 3, "--resume").code == 0
    [folder] = run_folders()
    assert len((folder / "results.jsonl").read_text().splitlines()) == 3


def test_a_file_stands_in_a_configuration(run, endpoint, file):
    Path("runs.toml").write_text(
        f'model = "m"\napi_base_url = "{endpoint.url}"\n'
        f'[[eval]]\nenv_id = "./{file}"\nnum_examples = 1\n'
        f'[[eval]]\nenv_id = "{file}"\nnum_examples = 2\nenv_args = {{ count = 2 }}\n'
    )
    done = run("eval", "runs.toml", "--json")
    assert done.code == 0, done.err
    assert [one["env_id"] for one in done.json["evaluations"]] == ["my-sums-v1"] * 2


def test_a_file_is_validated(run, file):
    done = run("validate", str(file))
    assert done.code == 0, done.out
    assert "my-sums-v1: " in done.out


def test_several_files_are_mixed_under_their_ids_or_under_their_paths_when_these_are_equal(file):
    Path("there").mkdir()
    for name in ("other.py", "there/other.py", "there/sums.json", "sums.json"):
        Path(name).write_text(SOURCE if name.endswith(".py") else json.dumps(SUMS))
    assert _environment([str(file), "other.py"], {}).env_names == ["my-sums-v1", "other"]  # type: ignore[attr-defined]
    both = ["./other.py", "./there/other.py"]
    assert _environment(both, {}).env_names == both  # type: ignore[attr-defined]


def test_installing_a_file_says_that_it_needs_no_installation(run, file):
    done = run("install", str(file))
    assert done.code == 2, done
    assert f"`vf-eval {file}`" in done.err.replace("\n", " ")


def test_the_examples_work_without_the_environments_being_installed(endpoint, tmp_path):
    """In an empty folder, with an import path that has the library and not the editable environments."""
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if '/environments/' not in p]\n"
        "from vf_cli.main import eval_main; sys.exit(eval_main())"
    )
    for env_id in ("reverse-text", "addition", "higher_lower"):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                code,
                env_id,
                "-m",
                "m",
                "-b",
                endpoint.url,
                "-n",
                "1",
                "--json",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        [report] = json.loads(done.stdout)["evaluations"]
        assert report["env_id"] == env_id.replace("_", "-")


@pytest.mark.parametrize("named", ["./my-sums.v1.py", "my-sums.v1.py", "run.toml"])
def test_a_file_is_trained_on_and_a_resumed_run_finds_it_from_another_folder(
    file, named, monkeypatch
):
    Path("run.toml").write_text(
        f'steps = 1\nenvironment = {{ id = "{file}", args = {{ count = 2 }} }}\n'
        "source = { groups_per_batch = 1, rollouts_per_group = 2 }\n"
    )
    settings, folder, loaded = _prepared(named, False, None, None, {})
    assert loaded.environment.env_id == "my-sums-v1"
    assert settings.environment.id == str(file.resolve())
    assert folder.path.name == ("run" if named.endswith("toml") else "my-sums-v1")
    resumed = folder.path.resolve()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    _, _, loaded = _prepared(None, False, resumed, None, {})
    assert loaded.environment.loaded_from == Path(settings.environment.id)
    assert loaded.environment.env_args == ({"count": 2} if named == "run.toml" else {})


def test_training_on_what_is_neither_a_configuration_nor_an_environment_names_both(run):
    for name in ("nothing_here", "nothing.toml", "./nothing.py"):
        done = run("train", name)
        assert done.code == 2, done
        assert "nothing" in done.err
    assert "higher_lower, reverse_text" in run("train", "nothing_here").err.replace("\n", " ")

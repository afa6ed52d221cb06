"""What every environment of this repository keeps to: packaging, documentation, gold and empty answers, determinism."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.endpoint import endpoint_process
from verifiers.loading import load_path
from verifiers.packages.validation import ValidationLimits, validate
from verifiers.testing import ScriptedClient
from verifiers.training import validation
from verifiers.training.samples import samples_of

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "environments").glob("*/pyproject.toml"))
ARGUMENT_ROW = re.compile(r"^\| `(\w+)` \| `(.+?)` \| `(.+?)` \| .+ \|$", re.MULTILINE)
SMALL = {"num_train_examples": 5, "num_eval_examples": 4}
BOUGHT = {"judge_essay"}
"""Environments that need a judge; it is scripted here."""
NEEDS = {"mcp_notes": "mcp", "reasoning_gym_env": "reasoning_gym"}
"""Environment → the optional package it cannot be without."""

every = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def module_of(folder: Path) -> Any:
    if folder.name in NEEDS:
        pytest.importorskip(NEEDS[folder.name])
    return load_path(folder).module


def small(folder: Path, **options: Any) -> vf.Environment:
    load = module_of(folder).load_environment
    known = inspect.signature(load).parameters
    return load(**{name: value for name, value in {**SMALL, **options}.items() if name in known})


def pyproject(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def section(readme: str, title: str) -> str:
    return readme.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_environments_of_the_plan_are_there():
    assert [folder.name for folder in FOLDERS] == [
        "addition",
        "bash_files",
        "code_tests",
        "countdown",
        "gsm8k",
        "higher_lower",
        "judge_essay",
        "math_group",
        "mcp_notes",
        "python_tool_math",
        "reasoning_gym_env",
        "reverse_text",
        "tool_calculator",
        "wordle",
    ]


@every
def test_the_package_is_named_after_its_module_and_complete(folder: Path):
    data = pyproject(folder)
    project = data["project"]
    assert project["name"] == folder.name.replace("_", "-")
    assert any(re.match(r"verifiers(\[\w+\])?>=", text) for text in project["dependencies"])
    assert not any("<" in text or "==" in text for text in project["dependencies"])
    included = data["tool"]["hatch"]["build"]["targets"]["wheel"]["include"]
    assert f"{folder.name}.py" in included
    present = {path.name for path in folder.iterdir() if path.is_file()}
    assert set(included) <= present
    left_out = present - set(included) - {"pyproject.toml", "README.md", f"test_{folder.name}.py"}
    assert left_out == set()


@every
def test_it_uses_only_the_public_library(folder: Path):
    for source in folder.glob("*.py"):
        if source.name.startswith("test_"):
            continue
        for node in ast.walk(ast.parse(source.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert not name.startswith("verifiers."), f"{source.name} imports {name}"


@every
def test_the_readme_documents_the_arguments_as_they_are(folder: Path):
    readme = (folder / "README.md").read_text()
    project = pyproject(folder)["project"]
    assert readme.startswith(f"# {project['name']}\n\n{project['description']}\n")
    assert f"vf-eval {project['name']} " in readme
    parameters = inspect.signature(module_of(folder).load_environment).parameters.values()
    described = [
        (name, kind.replace("\\|", "|"), default)
        for name, kind, default in ARGUMENT_ROW.findall(section(readme, "Arguments"))
    ]
    assert described == [
        (p.name, annotation_text(p.annotation), repr(p.default)) for p in parameters
    ]


def annotation_text(annotation: Any) -> str:
    plain = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    text = str(annotation) if "[" in str(annotation) else plain
    return text.replace("typing.", "")


@every
def test_the_readme_names_every_reward_function_and_its_weight(folder: Path):
    table = section((folder / "README.md").read_text(), "Reward")
    env = small(folder)
    weights = {}
    for one in env.envs if isinstance(env, vf.EnvGroup) else [env]:
        names, values = one.rubric.get_reward_func_names(), one.rubric.get_reward_weights()
        weights.update(zip(names, values, strict=True))
    for name, weight in weights.items():
        if name == "num_turns" or name.endswith("_calls"):
            continue
        [row] = [line for line in table.splitlines() if f"`{name}`" in line]
        shown = row.split("|")[2].strip()
        assert shown == ("metric" if weight == 0 else f"{weight:g}")


@every
async def test_it_is_sound(folder: Path):
    module_of(folder)
    known = inspect.signature(load_path(folder).module.load_environment).parameters
    arguments = {name: value for name, value in SMALL.items() if name in known}
    found = await validate(
        str(folder), arguments, limits=ValidationLimits(max_rows=8, max_played=2)
    )
    assert [check for check in found.checks if check.status == "fail"] == []
    if folder.name not in BOUGHT:
        assert [check.name for check in found.checks if check.status == "skip"] == []


@every
def test_rows_depend_on_the_seed_and_splits_do_not_share_a_question(folder: Path):
    def rows(split: str, **options: Any) -> list[Any]:
        return small(folder, **options).source(split).inputs(4)

    def asked(row: Any) -> tuple[str, str]:
        return row["question"], row.get("answer", "")

    assert rows("eval") == rows("eval")
    if "seed" in inspect.signature(module_of(folder).load_environment).parameters:
        assert rows("eval") != rows("eval", seed=1)
    train, evaluation = map(asked, rows("train")), map(asked, rows("eval"))
    assert not set(train) & set(evaluation)


@every
def test_a_scripted_model_is_evaluated_from_synchronous_code(folder: Path):
    options = {"judge_client": ScriptedClient(then="Points: 5")} if folder.name in BOUGHT else {}
    env = small(folder, **options)
    results = env.evaluate_sync(
        ScriptedClient(then="I do not know."), "scripted", num_examples=2, rollouts_per_example=2
    )
    assert len(results.outputs) == 4
    for output in results.outputs:
        assert (output["error"], output["errors"]) == (None, [])
        assert output["reward"] == 0.0


# -------------------------------------------------------------------------------------- with a real model


@pytest.fixture(scope="module")
def endpoint():
    with endpoint_process() as running:
        yield running


@pytest.mark.parametrize("name", ["reverse_text", "addition"])
def test_the_embedded_model_solves_it_mostly_but_not_always(name: str, endpoint: Any):
    env = small(ROOT / "environments" / name, num_eval_examples=40)
    client = vf.ClientConfig(api_base_url=endpoint.base_url, api_key_var="UNUSED")
    results = env.evaluate_sync(
        client, endpoint.model, {"temperature": 1.0, "max_tokens": 64, "seed": 1}, num_examples=40
    )
    rewards = [output["reward"] for output in results.outputs]
    assert sum(rewards) / len(rewards) > 0.5
    assert not any(output["error"] for output in results.outputs)


@every
def test_rollouts_of_a_model_become_samples_that_the_validator_passes(folder: Path, endpoint: Any):
    options = {"judge_client": ScriptedClient(then="Points: 5")} if folder.name in BOUGHT else {}
    env = small(folder, **options)
    client = vf.ClientConfig(
        client_type="openai_chat_completions_token",
        api_base_url=endpoint.base_url,
        api_key_var="UNUSED",
    )
    results = env.evaluate_sync(
        client,
        endpoint.model,
        {"temperature": 1.0, "max_tokens": 24, "seed": 1},
        num_examples=2,
        rollouts_per_example=2,
        state_columns=["trajectory"],
    )
    assert len(results.outputs) == 4
    for output in results.outputs:
        assert (output["error"], output["errors"]) == (None, [])
        samples = samples_of(output)
        report = validation.validate(samples, output)
        report.raise_for_problems()
        assert report.trained_count == report.sampled_count > 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_wheel_is_built_installed_beside_the_library_and_evaluated(tmp_path: Path, endpoint: Any):
    uv = Path(sys.executable).with_name("uv")
    installer = [str(uv), "pip"] if uv.exists() else [sys.executable, "-m", "pip"]
    python = tmp_path / "venv" / "bin" / "python"
    folder = ROOT / "environments" / "reverse_text"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    target = ["--python", str(python)]
    subprocess.run([*installer, "install", *target, str(ROOT), str(wheel)], check=True)
    program = (
        "import json, verifiers as vf\n"
        "env = vf.load_environment('reverse-text', num_train_examples=1, num_eval_examples=5)\n"
        f"client = vf.ClientConfig(api_base_url={endpoint.base_url!r}, api_key_var='UNUSED')\n"
        f"results = env.evaluate_sync(client, {endpoint.model!r}, {{'max_tokens': 64}}, num_examples=5)\n"
        "print(json.dumps([o['reward'] for o in results.outputs]))\n"
    )
    done = subprocess.run(
        [python, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    rewards = ast.literal_eval(done.stdout.splitlines()[-1])
    assert len(rewards) == 5
    assert max(rewards) > 0.5

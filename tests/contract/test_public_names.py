"""Public names: the list that type checkers read, `__all__`, and what can be imported are the same names."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import verifiers as vf
from verifiers.lazy_names import modules_of_names
from verifiers.v0.trainer_names import REPLACEMENTS

ROOT = Path(__file__).parents[2]
HEAVY = {
    "aiohttp",
    "anthropic",
    "asyncio",
    "datasets",
    "fastapi",
    "httpx",
    "math_verify",
    "numpy",
    "openai",
    "orjson",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "torch",
    "transformers",
    "typer",
}


LAZY_PACKAGES = (
    "verifiers",
    "verifiers.clients",
    "verifiers.endpoint",
    "verifiers.serve",
    "verifiers.utils",
)


def names_for_type_checkers(package: str) -> dict[str, str]:
    """Name → module in the TYPE_CHECKING block."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "`import x as x` is what re-exports a name"
            found[alias.name] = node.module or ""
    return found


@pytest.mark.parametrize("package", LAZY_PACKAGES)
def test_the_lazy_names_are_those_of_the_type_checkers(package: str) -> None:
    module = importlib.import_module(package)
    names = names_for_type_checkers(package)
    assert modules_of_names(package) == names
    assert module.__all__ == sorted(names)
    assert set(names) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in names)
    near = module.__all__[0][:-1] + "ß"
    assert not hasattr(module, near)
    with pytest.raises(AttributeError, match=f"Did you mean '{module.__all__[0]}'"):
        getattr(module, near)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Rubrik'"):
        _ = vf.Rubrik  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(REPLACEMENTS))
@pytest.mark.parametrize("package", ["verifiers", "verifiers.utils"])
def test_a_name_of_the_old_trainers_is_absent_and_says_what_to_use(package: str, name: str) -> None:
    module = importlib.import_module(package)
    assert not hasattr(module, name)
    assert getattr(module, name, None) is None
    advice = rf"{package}.{name} belonged to .*verifiers\.training.*docs/migrating\.md"
    with pytest.raises(ImportError, match=advice):
        exec(f"from {package} import {name}")
    with pytest.raises(AttributeError, match=advice):
        getattr(module, name)


@pytest.mark.parametrize("module", ["trainers", "trainers.grpo_trainer", "inference.vllm_client"])
def test_a_module_of_the_old_trainers_is_not_found_and_says_what_to_use(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"verifiers\.training.*docs/migrating\.md"):
        importlib.import_module(f"verifiers.{module}")
    assert f"verifiers.{module.partition('.')[0]}" not in sys.modules


def test_submodules_are_attributes() -> None:
    assert vf.types.State is vf.State
    assert vf.testing.ScriptedClient.__name__ == "ScriptedClient"


def test_importing_the_library_imports_nothing_heavy() -> None:
    code = "import sys, verifiers; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "verifiers" in imported
    assert sorted(HEAVY & set(imported)) == []


def test_the_library_says_nothing_until_it_is_asked_to() -> None:
    code = (
        "import logging, verifiers as vf; "
        "vf.SingleTurnEnv(dataset=[{'question': 'q', 'answer': 'a'}]).logger.warning('unheard'); "
        "assert logging.getLogger().handlers == []; assert logging.getLogger('verifiers').propagate"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("SingleTurnEnvironment", "SingleTurnEnv"), ("load_enviroment", "load_environment")],
)
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(name: str, meant: str):
    with pytest.raises(AttributeError, match=f"Did you mean '{meant}'"):
        getattr(vf, name)

"""`verifiers.__all__`, what can really be imported, and what type checkers are told: three times the same names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import verifiers as vf

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


def mirrored() -> dict[str, str]:
    """Name → module in the TYPE_CHECKING block."""
    tree = ast.parse((ROOT / "verifiers" / "__init__.py").read_text())
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


def test_the_type_checkers_mirror_says_what_the_table_says() -> None:
    assert mirrored() == vf._EXPORTS


def test_all_is_the_table() -> None:
    assert vf.__all__ == sorted(vf._EXPORTS)


@pytest.mark.parametrize("name", vf.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(vf, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Rubrik'"):
        _ = vf.Rubrik  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(vf._GONE))
def test_names_of_the_oldest_releases_say_what_to_use(name: str) -> None:
    with pytest.raises(ImportError, match="older release"):
        exec(f"from verifiers import {name}")
    with pytest.raises(AttributeError, match="older release"):
        getattr(vf, name)


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

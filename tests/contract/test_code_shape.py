"""Sizes of modules and functions, who may print, and what must not stand in tracked files."""

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("verifiers", "hub_server", "cli")
LONGEST_MODULE = 500
LONGEST_FUNCTION = 80

LONGEST_ADAPTER = 100
"""Lines of code, without docstrings, comments and empty lines: an adapter that needs more is no adapter."""

LONG_MODULES: dict[str, int] = {}
"""Path → its length, and beside it why it may be that long."""
LONG_FUNCTIONS: dict[str, int] = {
    "hub_server/migrations/versions/0001_first_tables.py:upgrade": 410,  # one statement a table
}
"""`path:function` → its length, and beside it why it may be that long."""

MAY_PRINT = {"cli/vf_cli/output.py"}

FORBIDDEN = re.compile(
    r"""/wor[k]/ (?:main|shared) | /tmp/[o]racle | \.\./[s]hared                 # paths of one machine
      | pypi\.org | pythonhosted\.org | hub\.primeintellect\.ai | piwheels # hosts of package registries
    """,
    re.VERBOSE,
)
MAY_NAME_REGISTRIES: dict[str, str] = {}
"""Tracked file → why it names the host of a registry."""

SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "templates" not in path.parts
)


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_modules_and_functions_fit_on_a_few_screens(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= LONG_MODULES.get(shown(path), LONGEST_MODULE)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            longest = LONG_FUNCTIONS.get(f"{shown(path)}:{node.name}", LONGEST_FUNCTION)
            assert length <= longest, f"{node.name} has {length} lines"


def code_lines(text: str) -> int:
    """Lines with code on them; docstrings are the strings that stand alone."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - prose)


NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
ADAPTERS = sorted((ROOT / "verifiers/training/adapters").glob("*.py"))


def test_lines_of_code_are_those_with_code() -> None:
    text = '"""A\ndocstring."""\n\n# why\nx = [\n    1,\n]  # so\n\n\ndef f():\n    """What."""\n    return x\n'
    assert code_lines(text) == 5


@pytest.mark.parametrize("path", ADAPTERS, ids=shown)
def test_adapters_are_thin(path: Path) -> None:
    assert code_lines(path.read_text()) < LONGEST_ADAPTER


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_only_the_output_module_prints(path: Path) -> None:
    calls = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "pprint", "breakpoint")
    ]
    assert shown(path) in MAY_PRINT or not calls


def test_the_lists_of_exceptions_name_only_what_exists() -> None:
    files = {shown(path) for path in SOURCES}
    assert set(LONG_MODULES) <= files
    assert {name.partition(":")[0] for name in LONG_FUNCTIONS} <= files
    assert files >= MAY_PRINT


def test_tracked_files_name_no_machine_and_no_registry() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in filter(None, tracked.stdout.split("\0")):
        if name == shown(Path(__file__)) or name in MAY_NAME_REGISTRIES:
            continue
        try:
            text = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []

"""Sizes of modules and functions, who may print, and what must not stand in tracked files."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("verifiers", "hub_server", "cli")
LONGEST_MODULE = 700
LONGEST_FUNCTION = 80

LONG_MODULES: dict[str, int] = {}
"""Path → its length, and beside it why it may be that long."""
LONG_FUNCTIONS: dict[str, int] = {
    "hub_server/migrations/versions/0001_first_tables.py:upgrade": 410,  # one statement a table
}
"""`path:function` → its length, and beside it why it may be that long."""

SHORTEST_MODULE = 60
SHORT_FOLDERS = (
    "verifiers/utils/",
    "verifiers/scripts/",
    "verifiers/gepa/",
    "verifiers/rubrics/experimental/",
    "verifiers/envs/experimental/",
)
"""Folders of import paths of older releases."""
SHORT_MODULES = {
    "hub_server/changes/models.py": "every room of the hub keeps its tables in `models`",
    "hub_server/logins/models.py": "every room of the hub keeps its tables in `models`",
    "hub_server/migrations/env.py": "Alembic executes this file",
    "hub_server/operations/routes.py": "every room of the hub keeps its HTTP in `routes`",
    "hub_server/publishing/models.py": "every room of the hub keeps its tables in `models`",
    "hub_server/secrets/models.py": "every room of the hub keeps its tables in `models`",
    "verifiers/clients/anthropic_messages_client.py": "import path of v0",
    "verifiers/clients/openai_chat_completions_client.py": "import path of v0",
    "verifiers/clients/openai_completions_client.py": "import path of v0",
    "verifiers/clients/openai_responses_client.py": "import path of v0",
    "verifiers/endpoint/__main__.py": "entry point of a process",
    "verifiers/endpoint/errors.py": "every module of the endpoint raises these errors",
    "verifiers/envs/harbor_env.py": "former import path",
    "verifiers/envs/reasoninggym_env.py": "import path of v0",
    "verifiers/envs/rlm/old_names.py": "arguments of older releases only",
    "verifiers/envs/scoring_path.py": "uploaded into sandboxes as text",
    "verifiers/envs/singleturn_env.py": "import path of v0",
    "verifiers/envs/stateful_tool_env.py": "import path of v0",
    "verifiers/envs/textarena_env.py": "import path of v0",
    "verifiers/hub/errors.py": "every module of the hub client raises these errors",
    "verifiers/inference.py": "import path of older releases",
    "verifiers/lazy_names.py": "imported by every package before anything else",
    "verifiers/legacy.py": "import path of v0",
    "verifiers/parsers/answers.py": "one module per parser, as in v0",
    "verifiers/parsers/maybe_think_parser.py": "one module per parser, as in v0",
    "verifiers/parsers/think_parser.py": "one module per parser, as in v0",
    "verifiers/rollouts/garbage.py": "one setting of the interpreter for a whole run",
    "verifiers/rollouts/retries.py": "the one policy of repetitions, which several folders import",
    "verifiers/sandboxes/server.py": "former import path of the sandbox server",
    "verifiers/training/adapters/play.py": "every adapter plays its groups with it",
    "verifiers/training/adapters/rllm_engine.py": "former import path",
    "verifiers/training/adapters/trl_async.py": "former import path",
    "verifiers/training/adapters/weight_push.py": "former import path",
    "verifiers/training/adapters/weight_transfer.py": "former import path",
    "verifiers/trainers.py": "import path of older releases",
    "verifiers/v0/rubric_accessors.py": "the one entry of rubrics to older accessors",
    "verifiers/v0/unknown_arguments.py": "constructors of current classes import it and nothing else of v0",
}
"""Path → why a module of fewer than 60 lines stands alone."""

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


def test_short_modules_have_a_reason() -> None:
    short = {
        shown(path)
        for path in SOURCES
        if path.name != "__init__.py"
        and path.read_text().count("\n") < SHORTEST_MODULE
        and not shown(path).startswith(SHORT_FOLDERS)
    }
    assert short - set(SHORT_MODULES) == set(), (
        "merge with the module of its subject, or add a reason"
    )
    assert set(SHORT_MODULES) - short == set(), "no longer short, or gone: remove its reason"


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
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):  # a link to a folder
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []

"""What the commands accept, and what they cost to start."""

import logging
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from typing import get_args

import pytest
import typer.main
from rich.table import Table

from verifiers.clients.connect import PROVIDERS
from verifiers.run_options import FILE_OPTIONS, Provider
from vf_cli import command, output
from vf_cli.eval import with_resume_value

COMMANDS = ("eval", "init", "install", "build", "validate", "endpoint")

OPTIONS_OF_0_1_14 = {
    "eval": """--env-args -a --env-dir-path --provider -p --endpoints-path -e --model -m --api-client-type
        --api-key-var -k --api-base-url -b --header --header-from-state --num-examples -n --rollouts-per-example -r
        --max-concurrent -c --max-tokens -t --temperature -T --sampling-args -S --output-dir -o --verbose -v
        --no-interleave-scoring -N --state-columns -C --save-results -s --resume -R --independent-scoring -i
        --save-to-hf-hub -H --hf-hub-dataset-name -D --extra-env-kwargs -x --timeout --fullscreen -f
        --disable-tui -d --max-retries --disable-env-server --num-workers -w --abbreviated-summary -A
        --heartbeat-url""",
    "init": "--path -p --rewrite-readme --multi-file --openenv",
    "install": "--path -p --from-repo -r --branch -b",
    "build": "--path -p",
}
OURS = """--json --dry-run --fail-under --max-concurrent-scoring --max-total-tokens --max-cost --prices --strict
    --yes --seed --version"""


def parameters(command: str) -> list:
    return typer.main.get_command(import_module(f"vf_cli.{command}").app).params


def option_names(command: str) -> list[str]:
    return [
        name for parameter in parameters(command) for name in parameter.opts if name.startswith("-")
    ]


@pytest.mark.parametrize("command", OPTIONS_OF_0_1_14)
def test_every_option_of_0_1_14_is_there_with_its_short_name(command):
    pairs = OPTIONS_OF_0_1_14[command].split()
    assert set(pairs) <= set(option_names(command))
    shorts = {
        parameter.opts[-1]: parameter.opts[0]
        for parameter in parameters(command)
        if len(parameter.opts) == 2
    }
    for long, short in pairwise(pairs):
        if short.startswith("-") and not short.startswith("--"):
            assert shorts[short] == long


def test_our_own_options_are_there():
    assert set(OURS.split()) <= set(option_names("eval"))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_is_declared_twice_and_each_has_help(command):
    names = option_names(command)
    assert len(names) == len(set(names))
    assert all(getattr(parameter, "help", None) for parameter in parameters(command))


def test_the_help_names_every_provider_and_kind_of_api():
    assert get_args(Provider) == tuple(PROVIDERS)
    for name in ("provider", "api_client_type"):
        assert ", ".join(get_args(FILE_OPTIONS[name].type)[0].__args__) in FILE_OPTIONS[name].help


@pytest.mark.parametrize(
    ("given", "completed"),
    [
        (["e", "--resume"], ["e", "--resume", "latest"]),
        (["e", "-R", "-s"], ["e", "-R", "latest", "-s"]),
        (["e", "--resume", "path"], ["e", "--resume", "path"]),
        (["e", "--resume=path"], ["e", "--resume=path"]),
    ],
)
def test_resume_may_stand_without_a_path(given, completed):
    assert with_resume_value(given) == completed


def test_help_imports_nothing_heavy():
    """`tests/benchmarks/bench_library.py` measures its time."""
    code = "import sys; sys.argv = ['vf-eval', '--help']; from vf_cli.main import eval_main; eval_main();"
    code += "heavy = {'asyncio', 'datasets', 'openai', 'aiohttp', 'numpy', 'pydantic'};"
    code += "print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_without_a_terminal_no_line_is_broken(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "a long value " * 40
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("label", long + "END")
    monkeypatch.setattr(logging.getLogger("verifiers"), "propagate", True)

    output.show(table)
    output.show(long + "TEXT")
    for say in (output.note, output.warn, output.error):
        say(long + "SAID")
    command.configure_logging(is_verbose=False)
    logging.getLogger("verifiers.somewhere").warning("%s LOGGED", long)
    out, err = capsys.readouterr()

    lines = (
        out.splitlines() + err.replace("  (-v shows further messages like this)", "").splitlines()
    )
    assert [line.split()[-1] for line in lines] == ["END", "TEXT", "SAID", "SAID", "SAID", "LOGGED"]
    assert all(len(line) > 500 for line in lines)


def test_a_set_width_breaks_the_rows_of_tables(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    table = Table.grid()
    table.add_column(overflow="fold")
    table.add_row("x" * 100)

    output.show(table)

    assert [len(line) for line in capsys.readouterr().out.splitlines()] == [40, 40, 40]

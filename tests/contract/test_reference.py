"""The generated reference is what the code says."""

import dataclasses
import re
import sys
import tomllib
from importlib import import_module, util
from pathlib import Path

import typer.main
from rich.text import Text

from verifiers.envs.options import GenerateOptions

ROOT = Path(__file__).parents[2]

_spec = util.spec_from_file_location(
    "write_reference", Path(__file__).with_name("write_reference.py")
)
assert _spec is not None
assert _spec.loader is not None
write_reference = util.module_from_spec(_spec)
sys.modules["write_reference"] = write_reference
_spec.loader.exec_module(write_reference)


def test_the_command_reference_is_up_to_date_and_lists_every_option():
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")

    assert page == write_reference.command_page(), "run `make docs`"
    for name in write_reference.COMMANDS:
        assert f"## {name}\n" in page
    for command in ("prime env push", "vf-hub user add", "vf-sandboxes serve"):
        assert f"### {command}\n" in page


def test_the_command_reference_has_every_installed_program():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {*write_reference.COMMANDS, "prime"} == set(project["scripts"])


def every_command():
    for name, module in (*write_reference.COMMANDS.items(), ("prime", "vf_cli.prime.main")):
        command = typer.main.get_command(import_module(module).app)
        yield name, command
        if hasattr(command, "commands"):
            yield from write_reference.leaves(command, name)


def test_help_loses_no_words_in_brackets():
    for name, command in every_command():
        texts = [command.help or "", *(getattr(one, "help", None) or "" for one in command.params)]
        for text in texts:
            meant = write_reference.without_escapes(text).replace("\b", "")
            assert Text.from_markup(text).plain == meant, f"{name}: write \\[ for a bracket"


def test_the_api_reference_documents_the_methods_of_classes():
    page = write_reference.api_page()
    for method in (
        "evaluate_sync(",
        "generate_sync(",
        "to_pandas(",
        "get_dataset(",
        "start_server(",
    ):
        assert re.search(rf"^\* `(async )?{re.escape(method)}", page, re.MULTILINE), method
    for option in dataclasses.fields(GenerateOptions):
        assert f"* `{option.name}: " in page, option.name


def test_the_api_reference_has_every_public_name():
    import verifiers

    page = write_reference.api_page()
    for name in verifiers.__all__:
        assert f"### {name}\n" in page or write_reference.entry_of(name) is None

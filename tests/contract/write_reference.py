"""Write `docs/reference/` from the code: every command with its options, every public name with its docstring.

python tests/contract/write_reference.py            write the pages
python tests/contract/write_reference.py --check    exit with 1 when a page is not what would be written
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main

import verifiers

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
COMMANDS = ("eval", "init", "install", "build", "validate", "gepa", "endpoint", "train", "rollouts")
COMMON_PANEL = "Output"
"""What every command of `prime` has; described once."""
NOTICE = "<!-- Written by tests/contract/write_reference.py; change the code, then run `make docs`. -->\n"


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--check", action="store_true", help="only compare")
    is_check = arguments.parse_args().check
    stale = []
    for name, text in pages().items():
        page = FOLDER / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not is_check:
                page.parent.mkdir(parents=True, exist_ok=True)
                page.write_text(text, encoding="utf-8")
    if stale and is_check:
        sys.stderr.write(f"Out of date in docs/reference: {', '.join(stale)}. Run `make docs`.\n")
        return 1
    return 0


def pages() -> dict[str, str]:
    """File name → text."""
    return {"cli.md": command_page(), "api.md": api_page()}


# ------------------------------------------------------------------------------------------------ commands


def command_page() -> str:
    """Every `vf-…` command with its arguments and options, and all of `prime`."""
    parts = ["# Commands", NOTICE, "For everybody. Each command says the same with `--help`.\n"]
    for name in COMMANDS:
        command = typer.main.get_command(import_module(f"vf_cli.{name}").app)
        parts += described_command("##", f"vf-{name}", command)
    root = typer.main.get_command(import_module("vf_cli.prime.main").app)
    parts += described_command("##", "prime", root)
    everywhere = [p for p in root.commands["whoami"].params if panel_of(p) == COMMON_PANEL]
    parts.append("Every command below also has:\n")
    parts += parameter_table(everywhere)
    for path, command in leaves(root, "prime"):
        parts += described_command("###", path, command, left_out=COMMON_PANEL)
    return "\n".join(parts)


def leaves(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups in it, by their full names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def described_command(mark: str, name: str, command: Any, left_out: str | None = None) -> list[str]:
    """Heading, help and tables of one command; the panel `left_out` is described elsewhere."""
    parts = [f"{mark} {name}\n", help_text(command.help or "")]
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False) and panel_of(parameter) != left_out:
            panels.setdefault(panel_of(parameter), []).append(parameter)
    for panel, parameters in panels.items():
        parts.append(f"**{panel}**\n")
        parts += parameter_table(parameters)
    return parts


def parameter_table(parameters: list[Any]) -> list[str]:
    """One row a parameter."""
    rows = [f"| {names_of(parameter)} | {described(parameter)} |" for parameter in parameters]
    return ["| | |\n|---|---|", *rows, ""]


def help_text(text: str) -> str:
    """A command's help as Markdown; the lines after a form feed mark are typed as they stand."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            paragraphs.append("```text\n" + paragraph.lstrip("\b\n") + "\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs) + "\n"


def panel_of(parameter: Any) -> str:
    """The heading a parameter stands under."""
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"


def names_of(parameter: Any) -> str:
    """`--model`, `-m`, or an argument's name."""
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).strip('[]')}`"
    return ", ".join(f"`{name}`" for name in parameter.opts)


def described(parameter: Any) -> str:
    """The help, with the default and the environment variable that also sets it."""
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    default = parameter.default
    if (
        default not in (None, False, ())
        and parameter.param_type_name != "argument"
        and not callable(default)
    ):
        text += f" Default: `{default}`."
    if getattr(parameter, "envvar", None):
        text += f" Also set by `{parameter.envvar}`."
    return text


# ----------------------------------------------------------------------------------------------- public names


def api_page() -> str:
    """Every name of `verifiers.__all__`, by the module it lives in."""
    parts = [
        "# Python API",
        NOTICE,
        "Every public name of `import verifiers as vf`, by the module it lives in.\n",
    ]
    by_module: dict[str, list[str]] = {}
    for name in verifiers.__all__:
        by_module.setdefault(verifiers._EXPORTS.get(name, "verifiers"), []).append(name)
    for module in sorted(by_module):
        entries = [
            entry for name in sorted(by_module[module]) if (entry := entry_of(name)) is not None
        ]
        if entries:
            parts.append(f"## `{module}`\n")
            parts += entries
    return "\n".join(parts)


def entry_of(name: str) -> str | None:
    """Heading, signature and first paragraph of one name; None for submodules and for names of extras not installed."""
    try:
        value = getattr(verifiers, name)
    except ImportError as error:
        return f"### {name}\n\n{' '.join(str(error).split())}\n"
    if inspect.ismodule(value):
        return None
    lines = [f"### {name}\n"]
    if (signature := signature_of(name, value)) is not None:
        lines += ["```text", signature, "```\n"]
    if inspect.isclass(value) or inspect.isroutine(value):
        lines.append(first_paragraph(value) + "\n")
    else:
        lines.append(f"`{short(re.sub(r' at 0x[0-9a-f]+', '', repr(value)))}`\n")
    return "\n".join(lines)


def signature_of(name: str, value: Any) -> str | None:
    """`name(arguments)` as the source writes it; None when there is nothing to say."""
    if not callable(value):
        return None
    function = value.__init__ if inspect.isclass(value) else value
    if inspect.isclass(value) and not inspect.isfunction(function):
        return None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    shown = str(signature.replace(parameters=parameters))
    if inspect.isclass(value):
        shown = shown.partition(" -> ")[0]
    shown = re.sub(r"<(\w+)[^>]*>", r"<\1>", shown.replace("'", ""))
    one_line = f"{name}{shown}"
    if len(one_line) <= 100:
        return one_line
    listed = ",\n    ".join(
        re.sub(r"<(\w+)[^>]*>", r"<\1>", str(p).replace("'", "")) for p in parameters
    )
    arrow = shown.rpartition(") -> ")[2] if ") -> " in shown else ""
    return f"{name}(\n    {listed},\n)" + (f" -> {arrow}" if arrow else "")


def first_paragraph(value: Any) -> str:
    """The docstring up to its first empty line, on one line."""
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split())


def short(text: str) -> str:
    """At most 200 characters."""
    return text if len(text) <= 200 else text[:199] + "…"


if __name__ == "__main__":
    sys.exit(main())

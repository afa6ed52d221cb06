"""Write `docs/reference/` from the code: every command with its options, every public name with its docstring.

python tests/contract/write_reference.py            write the pages
python tests/contract/write_reference.py --check    exit with 1 when a page is not what would be written
"""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer.main

import verifiers
from verifiers.envs.options import GenerateOptions
from verifiers.lazy_names import modules_of_names
from verifiers.run_options import FILE_OPTIONS, RUN_OPTIONS, Option, RunOptions
from vf_cli.eval_options import OPTIONS

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
COMMANDS = {
    "vf-eval": "vf_cli.eval",
    "vf-init": "vf_cli.init",
    "vf-install": "vf_cli.install",
    "vf-build": "vf_cli.build",
    "vf-validate": "vf_cli.validate",
    "vf-compare": "vf_cli.compare",
    "vf-plan": "vf_cli.plan",
    "vf-export": "vf_cli.export",
    "vf-rescore": "vf_cli.rescore",
    "vf-gepa": "vf_cli.gepa",
    "vf-endpoint": "vf_cli.endpoint",
    "vf-train": "vf_cli.train",
    "vf-rollouts": "vf_cli.rollouts",
    "vf-view": "vf_cli.view",
    "vf-sandboxes": "vf_cli.sandboxes",
    "vf-hub": "hub_server.cli",
}
"""Program → the module that holds its Typer app; `prime` is described after them."""
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
    parts = [
        "# Commands",
        NOTICE,
        "Every command, its arguments and its options, as `--help` prints them.\n",
    ]
    for name, module in COMMANDS.items():
        command = typer.main.get_command(import_module(module).app)
        parts += described_command("##", name, command)
        if name == "vf-eval":
            parts += described_keys()
        if hasattr(command, "commands"):
            for path, leaf in leaves(command, name):
                parts += described_command("###", path, leaf)
    root = typer.main.get_command(import_module("vf_cli.prime.main").app)
    parts += described_command("##", "prime", root)
    everywhere = [p for p in root.commands["whoami"].params if panel_of(p) == COMMON_PANEL]
    parts.append("Every command below also has:\n")
    parts += parameter_table(everywhere)
    for path, command in leaves(root, "prime"):
        parts += described_command("###", path, command, left_out=COMMON_PANEL)
    return "\n".join(parts)


def described_keys() -> list[str]:
    """The keys of configuration files that are not options of the command."""
    keys = [(key, one) for key, one in FILE_OPTIONS.items() if not one.flags]
    rows = [f"| `{key}` | {one.help} |" for key, one in keys]
    return [
        "The keys of a table in a configuration file are the options of the command, with `_` for `-`: "
        "`max_tokens = 512`. Files also have these keys:\n",
        "| | |\n|---|---|",
        *rows,
        "",
    ]


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
    for paragraph in inspect.cleandoc(without_escapes(text)).split("\n\n"):
        if paragraph.startswith("\b"):
            paragraphs.append("```text\n" + paragraph.lstrip("\b\n") + "\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs) + "\n"


def without_escapes(text: str) -> str:
    """Help as it is shown: Typer reads `[…]` as markup, so that a bracket of the text is written `\\[`."""
    return text.replace("\\[", "[")


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
    text = " ".join(without_escapes(parameter.help or "").split()).replace("|", "\\|")
    one = OPTIONS.get(parameter.name)
    if one is not None and one.flags and one.flags[0] in parameter.opts and one.full_help in text:
        text += f" In Python: `{one.name}`." * (one.name != one.key and one.key in FILE_OPTIONS)
        text += since(one)
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
        "Every public name of `import verifiers as vf`, by the module that defines it. A class lists the methods and "
        "properties that it adds to its base class.\n",
    ]
    modules = modules_of_names("verifiers")
    by_module: dict[str, list[str]] = {}
    for name in verifiers.__all__:
        by_module.setdefault(modules[name], []).append(name)
    for module in sorted(by_module):
        entries = [
            entry for name in sorted(by_module[module]) if (entry := entry_of(name)) is not None
        ]
        if entries:
            parts.append(f"## `{module}`\n")
            parts += entries
    return "\n".join([*parts, *described_options()])


def described_options() -> list[str]:
    """The options of `generate` and `evaluate`: those of `RunOptions`, then the other fields of `GenerateOptions`."""
    lines = ["## Options of `evaluate` and `generate`\n"]
    defaults = {one.name: one.default for one in dataclasses.fields(RunOptions)}
    for one in RUN_OPTIONS:
        kind = (
            one.type.__name__
            if isinstance(one.type, type)
            else str(one.type).replace("typing.", "")
        )
        help = re.sub(
            r"--([\w-]+)", lambda m: f"`{FILE_OPTIONS[m[1].replace('-', '_')].name}`", one.help
        )
        lines.append(f"* `{one.name}: {kind} = {defaults[one.name]!r}`: {help}{since(one)}")
    [owner] = (
        node
        for node in ast.walk(ast.parse(inspect.getsource(GenerateOptions)))
        if isinstance(node, ast.ClassDef)
    )
    for field, text in pairwise(owner.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            default = ast.unparse(field.value) if field.value is not None else ""
            shown = f" = {default}" if "(" not in default or default == "()" else ""
            described = " ".join(ast.literal_eval(text.value).split())
            lines.append(
                f"* `{ast.unparse(field.target)}: {ast.unparse(field.annotation)}{shown}`: {described}"
            )
    return [*lines, ""]


def since(one: Option) -> str:
    """The version that added an option, if later than 0.1.14."""
    return "" if one.since == "0.1.14" else f" Since {one.since}."


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
        if inspect.isclass(value):
            lines += described_members(value)
    else:
        lines.append(f"`{short(re.sub(r' at 0x[0-9a-f]+', '', repr(value)))}`\n")
    return "\n".join(lines)


def described_members(owner: type) -> list[str]:
    """The documented methods and properties of a class, and the public bases that have further ones."""
    lines: list[str] = []
    bases: list[str] = []
    seen: set[str] = set()
    for one in owner.__mro__:
        if not one.__module__.startswith("verifiers"):
            continue
        if one is not owner and is_public(one):
            bases.append(one.__name__)
            seen |= {name for base in one.__mro__ for name in vars(base)}
            continue
        for name, member in vars(one).items():
            if name.startswith("_") or name in seen:
                continue
            seen.add(name)
            if (line := described_member(name, member)) is not None:
                lines.append(line)
    found = sorted(lines)
    if found:
        found.append("")
    if bases:
        found.append(f"Further methods: {', '.join(f'`{name}`' for name in bases)}.\n")
    return found


def is_public(value: type) -> bool:
    """Whether a class has an entry of its own on the page."""
    return value.__name__ in verifiers.__all__ and getattr(verifiers, value.__name__) is value


def described_member(name: str, member: Any) -> str | None:
    """One line for a method or a property; None for anything else and for what has no docstring of its own."""
    function = (
        member.fget
        if isinstance(member, property)
        else inspect.unwrap(getattr(member, "__func__", member))
    )
    if not inspect.isfunction(function) or not function.__doc__:
        return None
    shown = (
        name
        if isinstance(member, property)
        else " ".join((signature_of(name, function) or f"{name}(…)").replace("self, ", "").split())
        .replace("( ", "(")
        .replace(", )", ")")
        .replace("(cls, ", "(")
        .replace("(cls)", "()")
    )
    mark = "async " if inspect.iscoroutinefunction(function) else ""
    return f"* `{mark}{shown}`: {first_paragraph(function)}"


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

"""Shared by all commands of `prime`: output options, the connection to the hub, tables, questions and progress."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    cast,
    get_type_hints,
)

import typer

from vf_cli import output
from vf_cli.command import EXIT_FAILED

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.config import HubSettings
    from verifiers.packages.published import HubEnvironment


Result = TypeVar("Result")
SHORTEST_FOLDED_CELL = 11
TABLE_GAP = 3
FORMATS = ("table", "json", "pretty")


class CommonOptions(NamedTuple):
    """Values of the options that every command has."""

    format: Literal["table", "json", "pretty"] | None = None
    """None selects the command's default, usually a table."""
    is_plain: bool = False
    is_verbose: bool = False
    context: str | None = None


_chosen: ContextVar[CommonOptions] = ContextVar("_chosen")


def chosen() -> CommonOptions:
    """Return the common options of the running command."""
    return _chosen.get(CommonOptions())


def choose(**changes: Any) -> None:
    """Change some of the common options."""
    _chosen.set(chosen()._replace(**changes))


def forget_choices() -> None:
    """Reset the common options before another command."""
    _chosen.set(CommonOptions())


HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_PANEL = "Output"


def _take_json(value: bool) -> None:
    if value:
        choose(format="json")


def _take_format(value: str | None) -> None:
    if value is None:
        return
    if value not in FORMATS:
        raise typer.BadParameter(f"--output must be one of {', '.join(FORMATS)}, not {value!r}.")
    choose(format=value)


def _take_plain(value: bool) -> None:
    if value:
        choose(is_plain=True)


def _take_verbose(value: bool) -> None:
    if value:
        choose(is_verbose=True)


def _common(taken: set[str]) -> dict[str, Any]:
    """Return the options that every command has, by their long names, except those that the command uses itself."""
    common = {"expose_value": False, "rich_help_panel": _PANEL}
    output_names = ["--output"] if "-o" in taken else ["--output", "-o"]
    json_help = "Print one JSON document; the same as --output json."
    options = {
        "--json": Annotated[
            bool, typer.Option("--json", help=json_help, callback=_take_json, **common)
        ],
        "--output": Annotated[
            str | None,
            typer.Option(
                *output_names,
                metavar="FORMAT",
                help="table, json or pretty.",
                callback=_take_format,
                **common,
            ),
        ],
        "--plain": Annotated[
            bool,
            typer.Option(
                "--plain",
                help="Print terse lines with tabs between columns.",
                callback=_take_plain,
                **common,
            ),
        ],
        "--verbose": Annotated[
            bool,
            typer.Option(
                "--verbose",
                help="Log everything, and show tracebacks.",
                callback=_take_verbose,
                **common,
            ),
        ],
    }
    # A command with its own --json prints in its own formats.
    left_out = taken | ({"--output", "--plain"} if "--json" in taken else set())
    return {name: option for name, option in options.items() if name not in left_out}


def with_common_options(function: Callable[..., int]) -> Callable[..., int]:
    """Return the function with `--json`, `--output` (and `-o`, if it is free), `--plain` and `--verbose`."""
    hints = get_type_hints(function, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
    ]
    taken: set[str] = {
        str(name)
        for hint in hints.values()
        for info in getattr(hint, "__metadata__", ())
        # Inside Annotated, Typer keeps the first name in `default` until it reads the signature.
        for name in (getattr(info, "default", None), *(getattr(info, "param_decls", None) or ()))
    }
    added = [
        inspect.Parameter(
            f"_common_{name.strip('-')}",
            inspect.Parameter.KEYWORD_ONLY,
            default=None if name == "--output" else False,
            annotation=option,
        )
        for name, option in _common(taken).items()
    ]

    def call(*args: Any, **kwargs: Any) -> int:
        own = {name: value for name, value in kwargs.items() if not name.startswith("_common_")}
        return function(*args, **own)

    call.__name__, call.__doc__ = function.__name__, _one_line_paragraphs(function.__doc__ or "")
    call.__annotations__ = {p.name: p.annotation for p in (*parameters, *added)}
    call.__signature__ = inspect.Signature([*parameters, *added])  # pyright: ignore[reportFunctionMemberAccess]
    return call


def _one_line_paragraphs(text: str) -> str:
    """Return a docstring whose paragraphs the terminal may wrap. Paragraphs after a backspace mark stay as they are."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith("\b") else " ".join(p.split()) for p in paragraphs)


def command(
    app: typer.Typer, name: str | None = None, *, panel: str | None = None
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a function as a command of `app`, with the options that every command has."""

    def register(function: Callable[..., int]) -> Callable[..., int]:
        settings: dict[str, Any] = {"rich_help_panel": panel} if panel else {}
        app.command(name, context_settings=HELP_NAMES, **settings)(with_common_options(function))
        return function

    return register


def group(help: str) -> typer.Typer:
    """Return a new group of commands."""
    return typer.Typer(
        add_completion=False, help=help, no_args_is_help=True, context_settings=HELP_NAMES
    )


# --- the hub ----------------------------------------------------------------------------------


def settings() -> HubSettings:
    """Return the settings of the user's hub."""
    from verifiers.hub.config import hub_settings

    return hub_settings(chosen().context)


def refuse_temporary_context() -> None:
    """Raise ConfigError if a temporary context is active, because it would hide the change."""
    from verifiers.errors import ConfigError

    context = chosen().context or os.environ.get("PRIME_CONTEXT")
    if context:
        raise ConfigError(
            f"The temporary context {context!r} is read-only. Run `prime config use {context}`, then this without -c."
        )


def with_hub(
    work: Callable[[HubClient], Awaitable[Result]],
    *,
    needs_key: bool = False,
    at: HubSettings | None = None,
) -> Result:
    """Run `work` with a connection to the user's hub (or `at`), and return its result."""
    from verifiers.hub.client import HubClient
    from vf_cli.command import configure_logging
    from vf_cli.interrupts import run

    configure_logging(is_verbose=chosen().is_verbose)

    async def connected() -> Result:
        async with HubClient(at or settings()) as hub:
            if needs_key:
                hub.require_key()
            return await work(hub)

    return run(connected())


def environment_of(text: str, version: str | None = None) -> HubEnvironment:
    """Return the environment of `owner/name[@version]`, or of a local folder that was pushed or pulled."""
    from verifiers.errors import ConfigError
    from verifiers.hub.origin import known_hub_id
    from verifiers.packages.published import parse_hub_id

    name, at, own_version = text.partition("@")
    if "/" not in name or name.startswith((".", "/", "~")):
        found = known_hub_id(name)
        if found is None:
            raise ConfigError(
                f"{text!r} does not name an owner: write owner/name. (No folder of that name here was "
                "pushed or pulled.)"
            )
        text = found + at + own_version
    hub_id = parse_hub_id(text)
    if version not in (None, "latest"):
        if hub_id.version not in (None, version):
            raise typer.BadParameter(f"{text} and --version {version} name two versions.")
        hub_id = hub_id._replace(version=version)
    return hub_id


# --- showing ----------------------------------------------------------------------------------


def is_json(default: Literal["table", "json"] = "table") -> bool:
    """Return whether the output is for programs."""
    return (chosen().format or default) == "json"


def show_table(
    data: Any, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str = "nothing"
) -> None:
    """Show rows for people, or `data` for programs."""
    if is_json():
        output.show_json(data)
        return
    if chosen().is_plain:
        for row in rows:
            output.show_line("\t".join(_cell(cell).replace("\t", " ") for cell in row))
        return
    if not rows:
        output.show(empty)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    cells = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    gaps = TABLE_GAP * (len(columns) - 1)
    is_wide = not output.is_bounded()
    folded = set[int]() if is_wide else _folded(widths, output.stdout().width - gaps)
    for place, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=place not in folded)
    for row in cells:
        table.add_row(*row)
    output.show_wide(table, sum(widths) + gaps) if is_wide else output.show(table)


def _folded(widths: Sequence[int], room: int) -> set[int]:
    """Return the columns whose cells are wrapped, so that nothing is cut: the widest ones, until the others fit.

    The first column, which identifies a row, is wrapped last. Numbers and words of their length are never wrapped.
    """
    folded: set[int] = set()
    needed = sum(widths)
    for place in sorted(range(len(widths)), key=lambda place: (place == 0, -widths[place])):
        if needed <= room:
            break
        if widths[place] > SHORTEST_FOLDED_CELL:
            needed -= widths[place] - SHORTEST_FOLDED_CELL
            folded.add(place)
    return folded


def show_facts(
    data: Any, facts: Sequence[tuple[str, Any]], *, next_step: str | None = None
) -> None:
    """Show labels and values for people, or `data` for programs. Values that are None or empty are left out."""
    if is_json():
        output.show_json(data)
        return
    given = [(label, _cell(value)) for label, value in facts if value not in (None, "", [])]
    width = max((len(label) for label, _ in given), default=0)
    for label, value in given:
        if chosen().is_plain:
            output.show_line(f"{label}\t{value}")
        else:
            output.show(f"{label.ljust(width)}  {value}")
    if next_step is not None and not chosen().is_plain:
        output.show(f"{'next'.ljust(width)}  {next_step}")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(str(item) for item in value)
    return output.safe("" if value is None else str(value))


def moment(text: Any) -> str:
    """Return a time of the hub, to the minute."""
    return str(text or "")[:16].replace("T", " ")


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

# --- asking -----------------------------------------------------------------------------------


def confirm(question: str, *, is_sure: bool, option: str = "--yes") -> None:
    """Continue only if the user agrees. Without a terminal `option` must be given."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            f"{question} Confirm with {option}: there is no terminal for a question."
        )
    if not typer.confirm(question, err=True):
        output.note("Nothing was changed.")
        raise typer.Exit(EXIT_FAILED)


def ask(label: str, given: str | None, *, is_secret: bool = False) -> str:
    """Return the given value; for `-` or without a terminal one line of stdin; otherwise ask the user."""
    if given is not None and given != "-":
        return given
    if given == "-" or not sys.stdin.isatty():
        line = sys.stdin.readline().rstrip("\r\n")
        if not line:
            raise typer.BadParameter(f"{label} is missing: give it as an argument or on stdin.")
        return line
    return cast(str, typer.prompt(label, hide_input=is_secret, err=True))


# --- progress ---------------------------------------------------------------------------------


class Transfers:
    """Shows steps and the bytes of files while it is entered."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._step: Any = None

    def __enter__(self) -> Self:
        if output.stderr().is_terminal and not chosen().is_plain:
            from rich import progress

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(30),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=output.stderr(),
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def step(self, text: str) -> None:
        """Report the beginning of a step."""
        if self._bars is None:
            if not is_json():
                output.note(f"{text} …")
            return
        self._bars.console.print(output.safe(f"{text} …"), style="dim")

    def progress(self, name: str, done: int, total: int | None) -> None:
        """Report how many bytes of a file are transferred."""
        if self._bars is None:
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(output.safe(name)[:40], total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)

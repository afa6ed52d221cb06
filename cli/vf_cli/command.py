"""Run a command: arguments → exit code, errors → messages on stderr, and the log.

0    done
1    some rollouts failed, a threshold was missed, or something broke
2    wrong usage: an option, a configuration, an environment that does not exist, a key that is not set
130  interrupted
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import Counter
from functools import cache
from typing import Any

import typer
import typer.main

from vf_cli import output
from vf_cli.interrupts import Guard, guarded

MAX_SAME_WARNINGS = 1
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# Typer contains click, in newer releases under a private name; Typer's own error class leads to click's in all of them.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickException: Any = typer.BadParameter.__mro__[2]


def run(
    app: typer.Typer,
    name: str,
    arguments: list[str] | None = None,
    *,
    verbose: str = r"--verbose|-[A-Za-z]*v[A-Za-z]*",
    grace_s: float | None = None,
) -> int:
    """Run an app under its name. Return the exit code; exceptions become messages on stderr.

    `verbose` matches the arguments that request tracebacks. `grace_s`: time for an orderly end after a second Ctrl-C
    or a SIGTERM, in seconds.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    with guarded(grace_s) as guard:
        return _run(app, name, arguments, verbose, guard)


def _run(
    app: typer.Typer, name: str, arguments: list[str], verbose: str, guard: Guard | None
) -> int:
    is_verbose = any(re.fullmatch(verbose, argument) for argument in arguments)
    try:
        code = _click_command(app)(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED and guard is not None and guard.has_interrupted:
            # Typer returns the code of Ctrl-C instead of raising. A command that returns the code has printed more.
            output.note("Interrupted.")
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        # The reader of the output (`| head`) has gone: no message can reach it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except _ClickException as error:
        return _usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        output.note("Interrupted.")
        return EXIT_INTERRUPTED
    except typer.Exit as exit_request:
        if exit_request.exit_code == EXIT_INTERRUPTED:  # Typer's form of Ctrl-C
            output.note("Interrupted.")
        return exit_request.exit_code
    except Exception as error:  # noqa: BLE001  # the one place where a command's failure becomes its exit code
        return failure(error, is_verbose=is_verbose)


@cache
def _click_command(app: typer.Typer) -> Any:
    """Return the app's tree of commands. Typer builds it again for every call, which takes 60 ms for `prime`."""
    return typer.main.get_command(app)


def failure(error: BaseException, *, is_verbose: bool) -> int:
    """Print the reason of a failure, with the traceback if requested. Return the exit code."""
    from verifiers.clients.failures import NoSuchRoute
    from verifiers.errors import (
        AuthenticationError,
        ConfigError,
        EnvironmentNotFound,
        Error,
        MissingKeyError,
    )
    from verifiers.runs.store import RunNotFound

    while isinstance(error, BaseExceptionGroup):  # a task group wraps the error that stopped it
        error = error.exceptions[0]
    if is_verbose:
        output.traceback_of(error)
    if isinstance(error, Error | MissingKeyError):
        output.error(str(error))
    elif isinstance(error, OSError):
        output.error(f"{type(error).__name__}: {error}")
    else:
        output.error(f"{type(error).__name__}: {error}")
        if not is_verbose:
            output.note(
                "This error is unexpected. Run the command again with -v to see the traceback."
            )
    is_usage = isinstance(
        error,
        ConfigError
        | EnvironmentNotFound
        | MissingKeyError
        | AuthenticationError
        | RunNotFound
        | NoSuchRoute,
    )
    return EXIT_USAGE if is_usage else EXIT_FAILED


def _usage_error(error: Any) -> int:
    message = error.format_message()
    if message:
        output.error(message)
    if re.match(r"No such option: --[\w-]+\.", message):
        output.note(
            "Options with dots are those of verifiers 0.4 and later, which has other commands "
            '(docs/migrating.md, "From v1 back").'
        )
    context = getattr(error, "ctx", None)
    if (
        context is not None and message
    ):  # without a message it is the help, which has just been printed
        output.note(f"See `{context.command_path} --help`.")
    return error.exit_code


class _Repeats(logging.Filter):
    """Passes the first messages of each kind only, because thousands of rollouts may fail for one reason."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._seen: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to print the message."""
        kind = (record.name, str(record.msg))
        self._seen[kind] += 1
        if self._seen[kind] == self._most:
            record.msg = f"{record.msg}  (-v shows further messages like this)"
        return self._seen[kind] <= self._most


def configure_logging(*, is_verbose: bool, least: int = logging.WARNING) -> None:
    """Send the library's log to stderr: the first message of each kind from `least` on, or everything with -v."""
    handler: logging.Handler = output.LogLines()
    if output.stderr().is_terminal:
        from rich.logging import RichHandler

        handler = RichHandler(
            console=output.stderr(), show_path=False, show_time=is_verbose, markup=False
        )
    handler.setFormatter(
        logging.Formatter("%(message)s" if not is_verbose else "%(name)s: %(message)s")
    )
    if not is_verbose:
        handler.addFilter(_Repeats(MAX_SAME_WARNINGS))
    logger = logging.getLogger("verifiers")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.DEBUG if is_verbose else least)
    logger.propagate = False

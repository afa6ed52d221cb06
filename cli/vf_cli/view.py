"""`vf-view`: look at saved runs in a browser, from a server on this machine."""

from __future__ import annotations

import asyncio
import os
import socket
import webbrowser
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vf_cli import output
from vf_cli.interrupts import stop_on_signal

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(add_completion=False)

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@app.command()
def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER...]",
            help="Run folders, or folders that contain runs. Default: ./outputs and environments/*/outputs. "
            "`bundle RUN -o DIR` writes one run as static files instead.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", "-p", min=0, max=65535, help="Port; 0 uses a free port."),
    ] = 8300,
    token: Annotated[
        bool,
        typer.Option(
            "--token/--no-token",
            help="Require the token of the printed address. --no-token is possible on loopback only.",
        ),
    ] = True,
    target: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for `bundle RUN`: one run as static files."),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser", help="Open the address in the default browser.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON document.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log all messages and show tracebacks.")
    ] = False,
) -> int:
    """Show saved runs in a browser until Ctrl-C: rewards, errors, messages, and runs that are still being written."""
    from vf_cli.command import configure_logging

    configure_logging(is_verbose=verbose)
    if target is not None or (folders and str(folders[0]) == "bundle" and not folders[0].is_dir()):
        return _bundle(folders or [], target, json_output=json_output)
    if not token and host not in LOOPBACK:
        raise typer.BadParameter(
            f"--no-token would show all runs to everyone who reaches {host}. Use 127.0.0.1, or leave the token on."
        )
    chosen = _folders(folders or [])
    asyncio.run(
        _serve(chosen, host, port, has_token=token, opens_browser=browser, json_output=json_output)
    )
    return 0


def _bundle(arguments: Sequence[Path], target: Path | None, *, json_output: bool) -> int:
    """Write the pages of one run as static files."""
    if target is None or len(arguments) != 2 or str(arguments[0]) != "bundle":
        raise typer.BadParameter(
            "Static files need one run and a folder: vf-view bundle RUN -o DIR"
        )
    _needs_extra()
    from verifiers.runs.folders import is_run_folder
    from verifiers.view.bundle import write_bundle

    folder = arguments[1].resolve()
    if not is_run_folder(folder):
        raise typer.BadParameter(f"{arguments[1]} is not a run folder.")
    pages = write_bundle(folder, target)
    if json_output:
        output.show_json({"folder": str(target), "pages": pages})
    else:
        output.show(f"written    {pages} pages in {target}; start with {target / 'index.html'}")
    return 0


def _folders(folders: Sequence[Path]) -> list[Path]:
    from verifiers.view.sources import default_folders

    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise typer.BadParameter(f"There is no folder {', '.join(missing)}.")
    return [folder.resolve() for folder in folders] or default_folders(Path.cwd())


def _needs_extra() -> None:
    try:
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise typer.BadParameter(
            f"vf-view needs packages that are not installed ({error.name} is missing): "
            "pip install fastapi jinja2 python-multipart uvicorn"
        ) from error


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise typer.BadParameter(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose with --host and --port; "
            "port 0 takes a free one."
        ) from error
    return listener


async def _serve(
    folders: list[Path],
    host: str,
    port: int,
    *,
    has_token: bool,
    opens_browser: bool,
    json_output: bool,
) -> None:
    _needs_extra()
    import uvicorn

    from verifiers.view.app import create_app, new_token
    from verifiers.view.sources import FolderSource

    source = FolderSource(folders)
    with _listening(host, port) as listener:
        port = listener.getsockname()[1]
        token = new_token() if has_token else None
        names = {host, *LOOPBACK} if host in LOOPBACK else {host}
        is_any = host in ("0.0.0.0", "::")
        hosts = {f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names}
        # A server on all addresses cannot list its names; the token protects the runs.
        application = create_app(source, token=token, hosts=() if is_any else hosts)
        config = uvicorn.Config(
            application, log_level="warning", access_log=False, server_header=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        # This command handles the signals itself.
        server.capture_signals = nullcontext  # pyright: ignore[reportAttributeAccessIssue]
        shown = "127.0.0.1" if is_any else host
        address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
        if token is not None:
            address += f"?token={token}"
        with stop_on_signal() as stop:
            serving = asyncio.create_task(server.serve([listener]))
            _announce(address, folders, len(source.runs()), json_output=json_output)
            if opens_browser:
                await asyncio.to_thread(webbrowser.open, address)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            server.should_exit = server.force_exit = True
            await serving


def _announce(address: str, folders: list[Path], count: int, *, json_output: bool) -> None:
    if json_output:
        output.show_json({"url": address, "runs": count, "pid": os.getpid()})
        return
    output.show(f"viewing    {address}")
    output.show(f"runs       {count} in {', '.join(map(str, folders))}   Ctrl-C stops")

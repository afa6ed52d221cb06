"""`vf-endpoint`: serve the embedded model, or another small Llama checkpoint, to OpenAI clients."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vf_cli import output
from vf_cli.interrupts import stop_on_signal

if TYPE_CHECKING:
    from verifiers.endpoint import EmbeddedEndpoint, EndpointConfig

app = typer.Typer(add_completion=False)


@app.command()
def endpoint(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=0, max=65535, help="Port; 0 uses a free port and prints it."
        ),
    ] = 8000,
    model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--model-name",
            "-m",
            help="Name of the model for clients; repeat for more. Default: embedded.",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights",
            "-w",
            help="Folder with config.json and model.safetensors, instead of the built-in weights.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            envvar="VF_ENDPOINT_API_KEY",
            help="API key that clients must send; prefer the variable.",
        ),
    ] = None,
    max_running: Annotated[
        int,
        typer.Option(
            "--max-running",
            min=1,
            help="Maximum number of generations at once; further requests wait.",
        ),
    ] = 128,
    admin: Annotated[
        bool | None,
        typer.Option(
            "--admin/--no-admin",
            help="Routes that change weights and pause. Default: on for an address of this machine or with a key.",
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the address as one JSON document.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log all messages and show tracebacks.")
    ] = False,
) -> int:
    """Serve the embedded model at /v1/chat/completions and /v1/completions until Ctrl-C.

    No key, no network, no GPU: a model of 0.3 million parameters that ships with the package. It can solve
    the bundled environments reverse-text and addition, and little else.
    """
    from verifiers.endpoint.process import BLAS_THREAD_VARIABLES
    from vf_cli.command import configure_logging

    configure_logging(is_verbose=verbose)
    for name in BLAS_THREAD_VARIABLES:  # numpy reads them when it loads, which is below
        os.environ.setdefault(name, "1")
    from verifiers.endpoint import EndpointConfig

    config = EndpointConfig(
        host=host,
        port=port,
        model_names=tuple(model_name or ("embedded",)),
        weights=weights,
        api_key=api_key,
        max_running=max_running,
        admin=admin,
    )
    asyncio.run(_serve(config, json_output=json_output))
    return 0


async def _serve(config: EndpointConfig, *, json_output: bool) -> None:
    from verifiers.endpoint import EmbeddedEndpoint

    async with AsyncExitStack() as stack:
        stop = stack.enter_context(stop_on_signal())
        try:
            running = await stack.enter_async_context(EmbeddedEndpoint(config))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise
            raise typer.BadParameter(
                f"Cannot listen on {config.host}:{config.port}: {os.strerror(error.errno)}. Choose with --host and "
                "--port; port 0 takes a free one."
            ) from error
        _announce(running, json_output=json_output)
        await stop.wait()


def _announce(running: EmbeddedEndpoint, *, json_output: bool) -> None:
    config = running.config
    if json_output:
        output.show_json(
            {"base_url": running.base_url, "models": config.model_names, "pid": os.getpid()}
        )
        return
    model = config.model_names[0]
    output.show(f"serving    {running.base_url}")
    output.show(
        f"model      {', '.join(config.model_names)}   context {running.engine.context_length} tokens"
    )
    output.show(
        f"weights    {config.weights or 'built in'}   changing them: {'on' if config.admin_is_open else 'off'}"
    )
    output.show(f"API key    {'needed' if config.api_key else 'not needed'}")
    output.show(f"next       vf-eval reverse-text -m {model} -b {running.base_url}   Ctrl-C stops")

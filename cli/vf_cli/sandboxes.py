"""`vf-sandboxes`: serve this machine's sandboxes to others; list and stop those of a server."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vf_cli import output
from vf_cli.interrupts import stop_on_signal

if TYPE_CHECKING:
    import httpx

    from verifiers.sandbox_server import SandboxServer, ServerConfig, TokenConfig

DEFAULT_URL = "http://127.0.0.1:8700"
REQUEST_TIMEOUT_S = 60.0
BATCH = 500

app = typer.Typer(add_completion=False, no_args_is_help=True)

_Url = Annotated[
    str, typer.Option("--url", envvar="VF_SANDBOXES_URL", help="Address of the server.")
]
_Token = Annotated[
    str | None,
    typer.Option("--token", envvar="VF_SANDBOXES_TOKEN", help="Token; prefer the variable."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log everything, show tracebacks.")]


@app.callback()
def sandboxes() -> None:
    """Sandboxes of this machine for other machines, and those of a server."""


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=0, max=65535, help="Port; 0 takes a free one and prints it."
        ),
    ] = 8700,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            help="TOML file: \\[name] with token or sha256, and quotas. "
            "Default: one token, from VF_SANDBOXES_TOKEN or made up and printed.",
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url", help="Where clients reach the server, if a proxy is in front."
        ),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            help="Image name to accept, wildcards allowed; repeat. Default: host, python:*.",
        ),
    ] = None,
    packages: Annotated[
        str | None,
        typer.Option("--packages", help='Importable inside: "host", or a virtual environment.'),
    ] = None,
    network: Annotated[
        str, typer.Option("--network", help='"none", or "full" to let clients ask for a network.')
    ] = "none",
    max_sandboxes: Annotated[
        int, typer.Option("--max-sandboxes", min=1, help="Living sandboxes of all tokens.")
    ] = 1024,
    json_output: _Json = False,
    verbose: _Verbose = False,
) -> int:
    """Serve sandboxes in the protocol of Prime Sandboxes until Ctrl-C, which ends them all."""
    from pydantic import ValidationError

    from verifiers.errors import ConfigError
    from verifiers.sandbox_server import ServerConfig, read_tokens_file
    from verifiers.sandboxes import SandboxSpec
    from vf_cli.command import configure_logging

    configure_logging(is_verbose=verbose)
    made_up = None
    if tokens is not None:
        accounts = read_tokens_file(tokens)
    else:
        made_up, account = _single_token()
        accounts = (account,)
    try:
        config = ServerConfig(
            host=host,
            port=port,
            tokens=accounts,
            public_url=public_url,
            images=tuple(image or ("host", "python:*")),
            template=SandboxSpec(packages=packages),
            network=_network(network),
            max_sandboxes=max_sandboxes,
        )
    except ValidationError as error:
        # Its own text would show the configuration, digests of the tokens included.
        raise ConfigError("; ".join(str(each["msg"]) for each in error.errors())) from None
    if not _is_this_machine(host) and not (public_url or "").startswith("https://"):
        output.warn(
            f"{host} is reachable from other machines without TLS: tokens and code travel in the clear. "
            "Put a proxy that ends TLS in front and name it with --public-url."
        )
    asyncio.run(_serve(config, made_up, json_output=json_output))
    return 0


def _network(chosen: str) -> Literal["none", "full"]:
    from verifiers.errors import ConfigError

    if chosen not in ("none", "full"):
        raise ConfigError(f"--network must be none or full, got {chosen!r}.")
    return "full" if chosen == "full" else "none"


def _single_token() -> tuple[str | None, TokenConfig]:
    from verifiers.sandbox_server import TokenConfig

    given = os.environ.get("VF_SANDBOXES_TOKEN")
    token = given or secrets.token_urlsafe(32)
    return (None if given else token), TokenConfig.of("default", token)


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(config: ServerConfig, made_up: str | None, *, json_output: bool) -> None:
    from verifiers.sandbox_server import SandboxServer
    from verifiers.sandboxes.local import LocalBackend

    backend = LocalBackend()
    info = await backend.probe(
        config.template
    )  # says now, not at the first request, what is missing
    with stop_on_signal() as stop:
        async with SandboxServer(config, backend) as server:
            _announce(server, made_up, f"{info.isolation} (local)", json_output=json_output)
            await stop.wait()


def _announce(
    server: SandboxServer, made_up: str | None, isolation: str, *, json_output: bool
) -> None:
    config = server.config
    names = [token.name for token in config.tokens]
    if json_output:
        facts: dict[str, Any] = {"base_url": server.base_url, "tokens": names, "pid": os.getpid()}
        output.show_json({**facts, "token": made_up} if made_up else facts)
        return
    output.show(f"serving    {server.base_url}   isolation {isolation}   network {config.network}")
    output.show(f"tokens     {', '.join(names)}   at most {config.max_sandboxes} sandboxes")
    if made_up:
        output.show(f"token      {made_up}   (for this run; keep one with --tokens FILE)")
    shown = made_up or "…"
    output.show(f"next       PRIME_API_BASE_URL={server.base_url} PRIME_API_KEY={shown} python …")


@app.command("list")
def list_(
    url: _Url = DEFAULT_URL,
    token: _Token = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Ended ones too.")] = False,
    json_output: _Json = False,
    verbose: _Verbose = False,
) -> int:
    """List the sandboxes of a token."""
    with _client(url, token) as client:
        found = _pages(client, only_active=not every)
    if json_output:
        output.show_json(found)
        return 0
    from rich.table import Table

    table = Table(box=None)
    for heading in ("id", "name", "status", "memory", "started", "labels", "why it ended"):
        table.add_column(heading, no_wrap=heading in ("id", "status"))
    for each in found:
        table.add_row(
            each["id"],
            output.safe(each["name"]),
            each["status"],
            f"{each['memoryGB']:g} GB",
            each["startedAt"] or "",
            output.safe(", ".join(each["labels"])),
            output.safe(each["errorMessage"] or ""),
        )
    output.show(table)
    output.note(f"{len(found)} sandboxes")
    return 0


@app.command()
def stop(
    ids: Annotated[list[str] | None, typer.Argument(help="Sandboxes to end.")] = None,
    url: _Url = DEFAULT_URL,
    token: _Token = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", help="End those with all these labels; repeat.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="End every sandbox of the token.")] = False,
    json_output: _Json = False,
    verbose: _Verbose = False,
) -> int:
    """End sandboxes: by id, by label, or all of a token."""
    from verifiers.errors import ConfigError
    from vf_cli.command import EXIT_FAILED

    if [bool(ids), bool(label), every].count(True) != 1:
        raise ConfigError("Say which sandboxes to end: ids, or --label, or --all.")
    succeeded: list[str] = []
    failed: list[dict[str, Any]] = []
    with _client(url, token) as client:
        bodies: list[dict[str, Any]]
        if label:
            bodies = [{"labels": label}]
        else:
            wanted = ids or [each["id"] for each in _pages(client, only_active=True)]
            bodies = [
                {"sandbox_ids": wanted[first : first + BATCH]}
                for first in range(0, len(wanted), BATCH)
            ]
        for body in bodies:
            answer = _ask(client, "DELETE", "/sandbox", json=body)
            succeeded += answer["succeeded"]
            failed += answer["failed"]
    if json_output:
        output.show_json({"succeeded": succeeded, "failed": failed})
    else:
        output.show(f"{len(succeeded)} ended")
        for each in failed:
            output.error(f"{each['sandbox_id']}: {each['error']}")
    return EXIT_FAILED if failed else 0


def _client(url: str, token: str | None) -> httpx.Client:
    import httpx

    from verifiers.errors import ConfigError

    if not token:
        raise ConfigError("Give the server's token: set VF_SANDBOXES_TOKEN, or --token.")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must begin with http:// or https://, got {url!r}.")
    return httpx.Client(
        base_url=url.rstrip("/") + "/api/v1",
        headers={"Authorization": f"Bearer {token}"},
        timeout=REQUEST_TIMEOUT_S,
        trust_env=False,
    )


def _ask(client: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    import httpx

    from verifiers.errors import ConfigError, SandboxError

    try:
        response = client.request(method, path, **options)
    except httpx.TransportError as error:
        raise SandboxError(
            f"The sandbox server at {client.base_url} does not answer: {error}. Is `vf-sandboxes serve` running there?"
        ) from error
    if response.status_code == 401:
        raise ConfigError(f"{client.base_url} does not know this token.")
    if response.is_error:
        raise SandboxError(
            f"{client.base_url} answered {response.status_code}: {response.text[:500]}"
        )
    content: dict[str, Any] = response.json()
    return content


def _pages(client: httpx.Client, *, only_active: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    query: dict[str, Any] = {"per_page": BATCH, **({"is_active": "true"} if only_active else {})}
    page = 1
    while True:
        answer = _ask(client, "GET", "/sandbox", params={**query, "page": page})
        found += answer["sandboxes"]
        if not answer["hasNext"]:
            return found
        page += 1

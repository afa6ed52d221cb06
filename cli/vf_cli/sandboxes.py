"""`vf-sandboxes`: serve the sandboxes of this machine to other machines; list and stop the sandboxes of a server."""

from __future__ import annotations

import ipaddress
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vf_cli import output
from vf_cli.interrupts import run, stop_on_signal

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
    typer.Option(
        "--token",
        envvar="VF_SANDBOXES_TOKEN",
        help="Token of the server. Prefer the environment variable.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show log messages and tracebacks.")
]


@app.callback()
def sandboxes() -> None:
    """Serve the sandboxes of this machine to other machines; list and stop the sandboxes of a server."""


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", min=0, max=65535, help="Port; 0 selects a free port and prints it."
        ),
    ] = 8700,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            help="TOML file with one table \\[name] per account: token or sha256, and quotas. "
            "Default: one token, from VF_SANDBOXES_TOKEN, or a random token that is printed.",
        ),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(
            "--public-url", help="Address for clients, if a proxy is in front of the server."
        ),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            help="Image name to accept, with wildcards; repeat the option for more. Default: host, python:*.",
        ),
    ] = None,
    packages: Annotated[
        str | None,
        typer.Option("--packages", help='Importable packages: "host", or a virtual environment.'),
    ] = None,
    network: Annotated[
        str,
        typer.Option("--network", help='"none", or "full" to allow networks that clients request.'),
    ] = "none",
    max_sandboxes: Annotated[
        int,
        typer.Option(
            "--max-sandboxes",
            min=1,
            help="Maximum number of live sandboxes of all tokens together.",
        ),
    ] = 1024,
    json_output: _Json = False,
    verbose: _Verbose = False,
) -> int:
    """Serve sandboxes in the protocol of Prime Sandboxes until Ctrl-C, which ends every sandbox."""
    from pydantic import ValidationError

    from verifiers.errors import ConfigError
    from verifiers.sandbox_server import ServerConfig, read_tokens_file
    from verifiers.sandboxes import SandboxSpec
    from vf_cli.command import configure_logging

    configure_logging(is_verbose=verbose)
    new_token = None
    if tokens is not None:
        accounts = read_tokens_file(tokens)
    else:
        new_token, account = _single_token()
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
        # Pydantic's own text would show the configuration, including the digests of tokens.
        raise ConfigError("; ".join(str(each["msg"]) for each in error.errors())) from None
    _warn_without_tls(host, public_url)
    run(_serve(config, new_token, json_output=json_output))
    return 0


def _warn_without_tls(host: str, public_url: str | None) -> None:
    if not _is_this_machine(host) and not (public_url or "").startswith("https://"):
        output.warn(
            f"{host} is reachable from other machines without TLS, so tokens and code are transferred in clear text. "
            "Put a proxy that ends TLS in front of the server, and set its address with --public-url."
        )


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


async def _serve(config: ServerConfig, new_token: str | None, *, json_output: bool) -> None:
    from verifiers.sandbox_server import SandboxServer
    from verifiers.sandboxes.local import LocalBackend

    backend = LocalBackend()
    info = await backend.probe(
        config.template
    )  # reports a missing requirement now, not at the first request
    with stop_on_signal() as stop:
        async with SandboxServer(config, backend) as server:
            _announce(server, new_token, f"{info.isolation} (local)", json_output=json_output)
            await stop.wait()


def _announce(
    server: SandboxServer, new_token: str | None, isolation: str, *, json_output: bool
) -> None:
    config = server.config
    names = [token.name for token in config.tokens]
    if json_output:
        facts: dict[str, Any] = {"base_url": server.base_url, "tokens": names, "pid": os.getpid()}
        output.show_json({**facts, "token": new_token} if new_token else facts)
        return
    output.show(f"serving    {server.base_url}   isolation {isolation}   network {config.network}")
    output.show(f"tokens     {', '.join(names)}   at most {config.max_sandboxes} sandboxes")
    if new_token:
        output.show(
            f"token      {new_token}   (for this run; set a permanent one with --tokens FILE)"
        )
    shown = new_token or "…"
    output.show(f"next       PRIME_API_BASE_URL={server.base_url} PRIME_API_KEY={shown} python …")


@app.command("list")
def list_(
    url: _Url = DEFAULT_URL,
    token: _Token = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Include ended sandboxes.")] = False,
    json_output: _Json = False,
    verbose: _Verbose = False,
) -> int:
    """List the sandboxes of a token."""
    with _client(url, token) as client:
        listed = _pages(client, only_active=not every)
    if json_output:
        output.show_json(listed)
        return 0
    from rich.table import Table

    table = Table(box=None)
    for heading in ("id", "name", "status", "memory", "started", "labels", "why it ended"):
        table.add_column(heading, no_wrap=heading in ("id", "status"))
    for each in listed:
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
    output.note(f"{len(listed)} sandboxes")
    return 0


@app.command()
def stop(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of the sandboxes to end.")] = None,
    url: _Url = DEFAULT_URL,
    token: _Token = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            help="End the sandboxes that have this label; repeat the option to require several labels.",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="End every sandbox of the token.")] = False,
    json_output: _Json = False,
    verbose: _Verbose = False,
) -> int:
    """End sandboxes: by id, by label, or all sandboxes of a token."""
    from verifiers.errors import ConfigError
    from vf_cli.command import EXIT_FAILED

    if [bool(ids), bool(label), every].count(True) != 1:
        raise ConfigError("Choose the sandboxes to end: pass ids, or --label, or --all.")
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
        raise ConfigError("The server needs a token: set VF_SANDBOXES_TOKEN, or pass --token.")
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
        raise ConfigError(
            f"{client.base_url} does not accept this token. Check VF_SANDBOXES_TOKEN or --token."
        )
    if response.is_error:
        raise SandboxError(
            f"{client.base_url} answered {response.status_code}: {response.text[:500]}"
        )
    content: dict[str, Any] = response.json()
    return content


def _pages(client: httpx.Client, *, only_active: bool) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = []
    query: dict[str, Any] = {"per_page": BATCH, **({"is_active": "true"} if only_active else {})}
    page = 1
    while True:
        answer = _ask(client, "GET", "/sandbox", params={**query, "page": page})
        listed += answer["sandboxes"]
        if not answer["hasNext"]:
            return listed
        page += 1

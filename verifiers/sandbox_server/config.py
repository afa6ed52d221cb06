"""Configuration of the sandbox server: addresses, limits, tokens and their quotas."""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from verifiers.errors import ConfigError
from verifiers.sandboxes.spec import SandboxSpec

MIN_TOKEN_CHARS = 16
DAY_S = 86_400.0
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class Quota(BaseModel):
    """The maximum that one token may use at the same time, and the maximum size of one of its sandboxes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_sandboxes: int = Field(default=256, ge=1)
    """Number of sandboxes alive at once."""
    max_memory_mb: int = Field(default=65_536, ge=32)
    """Sum of the memory limits of all live sandboxes, in MiB."""
    max_sandbox_memory_mb: int = Field(default=16_384, ge=32)
    """Memory limit of one sandbox, in MiB."""
    max_sandbox_disk_mb: int = Field(default=65_536, ge=1)
    """Disk limit of one sandbox, in MiB."""
    max_lifetime_s: float = Field(default=DAY_S, gt=0)
    """Maximum lifetime of a sandbox. It also ends the sandboxes of clients that crashed."""
    max_commands: int = Field(default=512, ge=1)
    """Commands and file transfers, running or waiting, at once."""


class TokenConfig(BaseModel):
    """One account: a name, the digest of its secret token, and its quota."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Appears in lists, metrics and logs: lower-case letters, digits and `-`."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False)
    """SHA-256 of the token in hexadecimal. The token itself is not stored."""
    quota: Quota = Quota()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a valid name: use lower-case letters, digits and '-'."
            )
        return name

    @classmethod
    def of(cls, name: str, token: str, quota: Quota | None = None) -> TokenConfig:
        """Create the configuration from the token itself. Raises ConfigError if the token is too short to be safe."""
        if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
            raise ConfigError(
                f"The token of {name!r} must have at least {MIN_TOKEN_CHARS} printable ASCII characters, got "
                f"{len(token)}. Create one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        return cls(name=name, sha256=digest_of(token), quota=quota or Quota())


class ServerConfig(BaseModel):
    """The options of `vf-sandboxes serve`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: tuple[TokenConfig, ...] = Field(min_length=1)
    host: str = "127.0.0.1"
    """Address to listen on. HTTP without TLS: for other machines, put a proxy that ends TLS in front."""
    port: int = Field(default=8700, ge=0, le=65_535)
    """0 selects a free port."""
    public_url: str | None = None
    """Address for clients (`https://sandboxes.example.org`). None: the host that each request names."""
    template: SandboxSpec = SandboxSpec()
    """Defaults of every sandbox: packages, preloaded modules, interpreter, limits for processes and files."""
    images: tuple[str, ...] = ("host", "python:*")
    """Image names that clients may request, with wildcards. Each stands for this machine's system, read-only. The
    server pulls nothing, and refuses other names, because it cannot provide them."""
    network: Literal["none", "full"] = "none"
    """"none": no sandbox has a network, whether or not clients request one. "full": sandboxes have the network that the
    client requests, through the filtering proxy.
    """
    max_sandboxes: int = Field(default=1024, ge=1)
    """Live sandboxes of all tokens together."""
    max_json_bytes: int = Field(default=1 << 20, ge=1 << 10)
    """Body of a request, commands included, except uploads."""
    max_stdin_bytes: int = Field(default=4 << 20, ge=1 << 10)
    """One piece of input for a running command."""
    max_upload_bytes: int = Field(default=1 << 30, ge=1)
    """One uploaded file. The server streams it and does not hold it in memory."""
    max_output_bytes: int = Field(default=8 << 20, ge=1 << 10)
    """stdout and stderr of a command whose output is one response: each loses its middle beyond this size."""
    max_read_bytes: int = Field(default=10 << 20, ge=1 << 10)
    """Text of one read-file response."""
    max_connections: int = Field(default=4096, ge=1)
    """Open connections. The server closes further ones at once."""
    client_timeout_s: float = Field(default=60.0, gt=0)
    """The server disconnects a client that neither sends nor receives a byte for this long."""
    create_wait_s: float = Field(default=5.0, ge=0)
    """A creation request is answered when the sandbox is up, or after this time with "PENDING"."""
    status_wait_s: float = Field(default=5.0, ge=0)
    """A status request for a sandbox that is starting is answered when the sandbox is up, or after this time."""
    keepalive_s: float = Field(default=15.0, gt=0)
    """Interval of keepalive messages while a running command prints nothing."""
    kept_records: int = Field(default=10_000, ge=0)
    """Number of ended sandboxes whose records are kept."""

    @model_validator(mode="after")
    def _tokens_differ(self) -> ServerConfig:
        for field in ("name", "sha256"):
            values = [getattr(token, field) for token in self.tokens]
            if len(set(values)) != len(values):
                twice = sorted(t.name for t in self.tokens if values.count(getattr(t, field)) > 1)
                raise ValueError(
                    f"two tokens have the same {'name' if field == 'name' else 'token'}: {', '.join(twice)}"
                )
        return self

    @field_validator("public_url")
    @classmethod
    def _address_of_a_server(cls, public_url: str | None) -> str | None:
        if public_url is not None:
            parts = urlsplit(public_url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
                raise ValueError(
                    f"{public_url!r} is not the address of a server; write it as https://sandboxes.example.org"
                )
        return public_url


def digest_of(token: str) -> str:
    """Return the digest of a token, which the server stores instead of the token."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_owner(tokens: Sequence[TokenConfig], presented: str) -> TokenConfig | None:
    """Return the configuration of a token, or None. The comparison takes the same time for every token."""
    digest = digest_of(presented)
    match = None
    for token in tokens:
        if hmac.compare_digest(token.sha256, digest):
            match = token
    return match


def read_tokens_file(path: Path) -> tuple[TokenConfig, ...]:
    """Read tokens from a TOML file: one table per name, with `token` or `sha256` and the fields of `Quota`.

    Raises ConfigError that names the file and the entry.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"The tokens file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The tokens file {path} is not TOML: {error}.") from error
    if not tables:
        raise ConfigError(f'The tokens file {path} is empty. Add a table [name] with token = "…".')
    return tuple(_token_from_table(path, name, table) for name, table in tables.items())


def _token_from_table(path: Path, name: str, table: object) -> TokenConfig:
    if not isinstance(table, dict) or ("token" in table) == ("sha256" in table):
        raise ConfigError(f"{path}: [{name}] must be a table with either `token` or `sha256`.")
    fields = dict(table)
    token, digest = fields.pop("token", None), fields.pop("sha256", None)
    try:
        quota = Quota(**fields)
        if token is None:
            return TokenConfig(name=name, sha256=digest, quota=quota)
        return TokenConfig.of(name, str(token), quota)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: [{name}] {where}: {first['msg']}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error

"""Published environments: ids on a hub, and wheels at their one address. Shared by `packages` and `hub`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from verifiers.errors import ConfigError
from verifiers.loading import path_of


class HubEnvironment(NamedTuple):
    """`owner/name@version`; version None means the newest."""

    owner: str
    name: str
    version: str | None


class PublishedWheel(NamedTuple):
    """A wheel at its one address. Nothing in it is secret except what the files named in `variables` hold."""

    name: str
    version: str
    url: str
    """Address without credentials and without a fragment."""
    sha256: str
    url_dependencies: Sequence[str] = ()
    """Dependencies that name an address: resolvers want to hear of them directly, not through the wheel."""
    variables: Mapping[str, str] = {}
    """Environment variables for the installer, e.g. the netrc file with which a private wheel is read."""
    dependencies: Sequence[str] = ()
    """`name @ url#sha256=…` of other environments of the hub that it requires: no index is asked for their names."""
    requires: Sequence[str] = ()
    """All its requirements, as the wheel has them."""
    yanked: str | None = None
    """Why the version was taken back; None when it was not."""

    @property
    def requirement(self) -> str:
        """`name @ url#sha256=…`: no index is asked for the name, and the installer checks the hash."""
        return f"{self.name} @ {self.url}#sha256={self.sha256}"


class PublishedSource(Protocol):
    """Where published environments come from. `verifiers.hub.installation.HubSource` is one."""

    def wheel(self, environment: HubEnvironment) -> PublishedWheel:
        """What to install for it; EnvironmentNotFound without it."""
        ...


def parse_hub_id(env_id: str) -> HubEnvironment:
    """`owner/name` or `owner/name@version`; ConfigError otherwise."""
    match = re.fullmatch(r"([\w][\w.-]*)/([\w][\w.-]*)(?:@([\w.!+-]*))?", env_id)
    if match is None:
        raise ConfigError(
            f"{env_id!r} is not an id on a hub: write owner/name or owner/name@version."
        )
    version = match[3]
    return HubEnvironment(
        match[1], match[2], version if version not in (None, "", "latest") else None
    )


def is_hub_env(env_id: str) -> bool:
    """Return whether the id names an environment on a hub; a path to a folder or file here does not."""
    return "/" in env_id and path_of(env_id) is None

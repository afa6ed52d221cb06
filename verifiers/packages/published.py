"""Published environments: ids on a hub, and wheels at their address. Shared by `packages` and `hub`."""

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
    """A wheel at its address. Only the files named in `variables` contain secrets."""

    name: str
    version: str
    url: str
    """Address without credentials and without a fragment."""
    sha256: str
    url_dependencies: Sequence[str] = ()
    """Dependencies with an address. Resolvers require them directly, not through the wheel."""
    variables: Mapping[str, str] = {}
    """Environment variables for the installer, e.g. the netrc file that allows to read a private wheel."""
    dependencies: Sequence[str] = ()
    """`name @ url#sha256=…` of the other environments of the hub that it requires, so that no index is asked for them.
    """
    requires: Sequence[str] = ()
    """All requirements of the wheel."""
    yanked: str | None = None
    """Reason why the version was yanked; None if it was not."""

    @property
    def requirement(self) -> str:
        """`name @ url#sha256=…`: no index is asked for the name, and the installer checks the hash."""
        return f"{self.name} @ {self.url}#sha256={self.sha256}"


class PublishedSource(Protocol):
    """A source of published environments, such as `verifiers.hub.installation.HubSource`."""

    def wheel(self, environment: HubEnvironment) -> PublishedWheel:
        """Return the wheel to install. Raises EnvironmentNotFound without one."""
        ...


def parse_hub_id(env_id: str) -> HubEnvironment:
    """Parse `owner/name` or `owner/name@version`. Raises ConfigError otherwise."""
    match = re.fullmatch(r"([\w][\w.-]*)/([\w][\w.-]*)(?:@([\w.!+-]*))?", env_id)
    if match is None:
        raise ConfigError(
            f"Invalid environment ID: {env_id!r} is not an id on a hub. Write owner/name or owner/name@version."
        )
    version = match[3]
    return HubEnvironment(
        match[1], match[2], version if version not in (None, "", "latest") else None
    )


def is_hub_env(env_id: str) -> bool:
    """Return whether the id names an environment on a hub. A path to a local folder or file does not."""
    return "/" in env_id and path_of(env_id) is None

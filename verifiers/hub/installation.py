"""Installing from a hub by exact address and hash, so that no other index can answer for the name.

The address of a private environment contains a short-lived token that only reads this environment. The token is
written to a netrc file of mode 0600 in a temporary folder. Installers find it by `NETRC`, and no command line or log
contains it.
"""

from __future__ import annotations

import asyncio
import netrc
import os
import re
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from verifiers.errors import EnvironmentNotFound
from verifiers.hub.client import (
    HubClient,
    RetryPolicy,
    body_of,
    data_of,
    environment_path,
    member,
)
from verifiers.hub.config import HubSettings, origin
from verifiers.hub.errors import HubMisbehaved, HubNotFound, HubRefused
from verifiers.hub.wire import InstallTokenRequest
from verifiers.packages.published import HubEnvironment, PublishedWheel

_SHA256 = re.compile(r"sha256=([0-9a-f]{64})")


class HubSource:
    """A hub as a source of environments for installers. A context manager, because it has temporary files.

    `run` replaces `asyncio.run`. Commands pass a function that their signal handlers can cancel.
    """

    def __init__(
        self,
        settings: HubSettings,
        retries: RetryPolicy | None = None,
        run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
    ) -> None:
        self.settings = settings
        self.retries = retries
        self._run = run
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def wheel(self, environment: HubEnvironment) -> PublishedWheel:
        """Return the wheel of an environment. Raises EnvironmentNotFound, HubError.

        Blocking; must not be called from a running event loop.
        """
        return self._run(self._wheel(environment))

    def access(self, environments: Sequence[HubEnvironment]) -> dict[str, str]:
        """Return variables with which an installer may read all of these environments at once. Raises HubError.

        Blocking; must not be called from a running event loop.
        """
        return self._run(self._access(environments))

    async def _access(self, environments: Sequence[HubEnvironment]) -> dict[str, str]:
        async with HubClient(self.settings, self.retries) as hub:
            names = [f"{environment.owner}/{environment.name}" for environment in environments]
            body = body_of(InstallTokenRequest, environments=names)
            answer = data_of(await hub.post("/environmentshub/install-token", body))
        host = urlsplit(self.settings.base_url).hostname or ""
        return {"NETRC": str(self._netrc(host, "__token__", str(member(answer, "token"))))}

    async def _wheel(self, environment: HubEnvironment) -> PublishedWheel:
        async with HubClient(self.settings, self.retries) as hub:
            try:
                details = await details_of(hub, environment)
            except HubNotFound as error:
                shown = f"{environment.owner}/{environment.name}"
                if environment.version:
                    shown += f"@{environment.version}"
                raise EnvironmentNotFound(
                    f"{self.settings.base_url} has no {shown} that you may read: {error} "
                    f"`prime env search {environment.name}` searches for it."
                ) from error
        return self._published(environment, details)

    def _published(self, environment: HubEnvironment, details: dict[str, Any]) -> PublishedWheel:
        shown = f"{environment.owner}/{environment.name}"
        version = details.get("semantic_version")
        install = details.get("install") or {}
        # `wheel_url` may be a copy for installers that accept one address; `install` has the published bytes.
        url = install.get("wheel_url") or details.get("wheel_url")
        if details.get("install_refused"):
            raise HubRefused(f"{shown} cannot be installed: {details['install_refused']}")
        if not version:
            raise EnvironmentNotFound(f"{shown} has no published version yet.")
        if not isinstance(url, str) or (found := _SHA256.search(urlsplit(url).fragment)) is None:
            raise HubMisbehaved(
                f"The hub gives no wheel with a hash for {shown} {version}, so it cannot be installed safely."
            )
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HubMisbehaved(f"The hub's address of the wheel of {shown} is not http or https.")
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        plain = parts._replace(netloc=f"{host}{port}", fragment="").geturl()
        variables = {}
        if parts.password:
            if origin(plain) != origin(self.settings.base_url):
                raise HubMisbehaved(f"The wheel of {shown} is on another host than its hub.")
            login = (unquote(parts.username or ""), unquote(parts.password))
            variables["NETRC"] = str(self._netrc(parts.hostname, *login))
        project = details.get("name") or environment.name
        return PublishedWheel(
            name=str(project),
            version=str(version),
            url=plain,
            sha256=found[1],
            url_dependencies=[str(text) for text in details.get("url_dependencies") or []],
            variables=variables,
            dependencies=[self._pinned(shown, line) for line in install.get("dependencies") or []],
            requires=[str(text) for text in details.get("requires_dist") or []],
            yanked=str(details.get("yanked_reason") or "") if details.get("yanked") else None,
        )

    def _pinned(self, shown: str, line: Any) -> str:
        """Return a requirement of the hub with an address and a hash. Raises HubMisbehaved."""
        name, _, url = str(line).partition(" @ ")
        is_safe = re.fullmatch(r"[A-Za-z0-9._-]+", name) and not re.search(r"\s", url)
        if not is_safe or _SHA256.search(urlsplit(url).fragment) is None:
            raise HubMisbehaved(
                f"The hub names a dependency of {shown} without an address and a hash: {line!r}."
            )
        return f"{name} @ {url}"

    def _netrc(self, host: str, login: str, token: str) -> Path:
        """Return a new netrc file with this token, and the user's own entries for other hosts."""
        folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="prime-")))
        file = folder / "netrc"
        lines = [_entry(host, login, "", token)]
        for name, (user, account, password) in _own_netrc().items():
            if name != host and user and password:
                lines.append(_entry(name, user, account, password))
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write("".join(sorted(lines, key=lambda line: line.startswith("default"))))
        return file


async def details_of(hub: HubClient, environment: HubEnvironment) -> dict[str, Any]:
    """Return the hub's details of one version of an environment. Raises HubNotFound."""
    reference = environment.version or "latest"
    path = environment_path(environment.owner, environment.name, reference)
    return dict(data_of(await hub.get(path)))


def target_python(variables: dict[str, str] | os._Environ[str]) -> Path | None:
    """Return the interpreter into which `prime env install` installs; None means the one of the command.

    In this order: `UV_PROJECT_ENVIRONMENT`, the active virtual environment, `.venv` of the project in this folder
    or above.
    """
    folders = [variables.get("UV_PROJECT_ENVIRONMENT"), variables.get("VIRTUAL_ENV")]
    here = Path.cwd()
    project = next((f for f in (here, *here.parents) if (f / "pyproject.toml").is_file()), None)
    if project is not None:
        folders.append(str(project / ".venv"))
    for folder in filter(None, folders):
        for name in ("bin/python", "Scripts/python.exe"):
            if (python := Path(folder).absolute() / name).exists():
                return python
    return None


def _own_netrc() -> dict[str, tuple[str, str, str]]:
    path = os.environ.get("NETRC") or str(Path.home() / ".netrc")
    try:
        return dict(netrc.netrc(path).hosts)
    except (OSError, netrc.NetrcParseError):
        return {}  # missing, or unreadable for installers too


def _entry(host: str, login: str, account: str, password: str) -> str:
    head = "default" if host == "default" else f"machine {host}"
    middle = f" account {_quoted(account)}" if account else ""
    return f"{head} login {_quoted(login)}{middle} password {_quoted(password)}\n"


def _quoted(text: str) -> str:
    if re.fullmatch(r"[^\s\"\\]+", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

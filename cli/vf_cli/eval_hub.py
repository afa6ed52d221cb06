"""`vf-eval` and the hub: install missing environments before a run, and push the run afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vf_cli import output

if TYPE_CHECKING:
    from verifiers.hub.config import HubSettings
    from verifiers.packages.published import HubEnvironment
    from vf_cli.report import Finished


def install_missing(env_ids: Iterable[str], *, is_sure: bool) -> bool:
    """Install the `owner/name[@version]` that are missing, after a confirmation. Return whether any was missing.

    Raises ConfigError if no user can confirm, HubNotConfigured without a hub.
    """
    if not any("/" in env_id for env_id in env_ids):
        return False  # the usual case needs no import
    from verifiers.errors import ConfigError
    from verifiers.hub.config import hub_settings
    from verifiers.hub.installation import HubSource
    from verifiers.packages import install as packages
    from verifiers.packages.published import is_hub_env, parse_hub_id
    from vf_cli.interrupts import run

    requested = [parse_hub_id(i) for i in dict.fromkeys(env_ids) if is_hub_env(i)]
    missing = [(one, why) for one in requested if (why := _missing_because(one)) is not None]
    if not missing:
        return False
    for one, _ in missing:
        if Path(_shown(one)).is_dir():
            raise ConfigError(
                f"{_shown(one)} is a folder here, but contains no environment. Write './{_shown(one)}' to see what is "
                f"missing, or install the hub's environment first: `vf-install {_shown(one)}@VERSION`."
            )
    at = hub_settings()
    listed = "; ".join(f"{_shown(one)} ({why})" for one, why in missing)
    if not is_sure:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            names = " ".join(_shown(one) for one, _ in missing)
            raise ConfigError(
                f"Not installed: {listed}. Install with `vf-install {names}`, or add --yes."
            )
        output.note(f"Not installed: {listed}.")
        typer.confirm(f"Install from {at.base_url}?", default=True, abort=True, err=True)
    with HubSource(at, run=run) as source:
        for one, _ in missing:
            with _status(f"installing {_shown(one)} from {at.base_url} …"):
                packages.install_published(one, source)
            output.note(f"installed {_shown(one)}")
    return True


def check_push(env_ids: Iterable[str]) -> None:
    """Return if runs of these environments can be pushed. Raises ConfigError otherwise, before the run costs
    anything.
    """
    from verifiers.errors import ConfigError
    from verifiers.hub.client import HubClient
    from verifiers.hub.config import hub_settings
    from verifiers.hub.evaluations import published_id

    HubClient(hub_settings()).require_key()
    for env_id in env_ids:
        if published_id(env_id) is None:
            raise ConfigError(
                f"--push: {env_id} was not published from this machine, so the hub has no environment for its run. "
                "Publish it with `prime env push`, or evaluate it as owner/name."
            )


def push(finished: Finished, *, as_json: bool) -> dict[str, Any] | None:
    """Upload a finished run. Return the hub's record of the run, or None with the reason on stderr."""
    from verifiers.errors import Error
    from verifiers.hub.config import hub_settings
    from verifiers.hub.evaluations import InterruptedPush, RunPush
    from vf_cli.interrupts import run

    folder = finished.saved_to
    if folder is None or not finished.is_complete:
        output.note(f"{finished.name} was not pushed: the run is not complete.")
        return None
    options = RunPush(environment=_as_evaluated(finished))
    try:
        with _status(f"pushing {folder} …"):
            done = run(_push(hub_settings(), folder, options))
    except Error as error:
        again = f" Again: prime eval push {folder} --env {options.environment}"
        # The message of InterruptedPush has a better command.
        again = "" if isinstance(error, InterruptedPush) else again
        output.error(f"The run is saved in {folder}, but was not pushed: {error}{again}")
        return None
    for line in done.damaged:
        output.warn(f"Line {line.number} of results.jsonl cannot be read and was skipped.")
    if done.too_large:
        output.warn(f"{done.too_large} rollouts are too large for the hub and were skipped.")
    if not as_json:
        output.show(f"pushed  {done.samples:,} rollouts to {done.url}")
    return {
        "evaluation_id": done.evaluation_id,
        "environment": done.environment,
        "samples": done.samples,
        "url": done.url,
    }


async def _push(at: HubSettings, folder: Path, options: Any) -> Any:
    from verifiers.hub.client import HubClient
    from verifiers.hub.evaluations import push_run

    async with HubClient(at) as hub:
        return await push_run(hub, folder, options)


def _as_evaluated(finished: Finished) -> str | None:
    from verifiers.hub.evaluations import published_id

    return published_id(finished.config.env_id)


def _missing_because(requested: HubEnvironment) -> str | None:
    """Return the reason why an environment must be installed; None if it is installed."""
    from packaging.version import InvalidVersion, Version

    from verifiers.packages.install import installed_from

    installed = installed_from(requested.name)
    if installed is None:
        return "not installed"
    version, url = installed
    if requested.version is not None:
        try:
            if Version(version) != Version(requested.version):
                return f"{version} is installed"
        except InvalidVersion:
            return f"{version} is installed"
    owner = _owner_in(url or "")
    return None if owner in (None, requested.owner) else f"the environment of {owner} is installed"


def _owner_in(url: str) -> str | None:
    """Return the owner in the URL of a hub's wheel; None for folders and other URLs."""
    head, _, rest = url.partition("/files/")
    parts = rest.split("/")
    return parts[0] if head.startswith("http") and len(parts) == 4 else None


def _shown(requested: HubEnvironment) -> str:
    version = f"@{requested.version}" if requested.version else ""
    return f"{requested.owner}/{requested.name}{version}"


def _status(text: str) -> Any:
    return output.stderr().status(text) if output.stderr().is_terminal else nullcontext()

"""`prime env install`, `uninstall` and `pull`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vf_cli import output
from vf_cli.command import EXIT_FAILED
from vf_cli.prime.command import (
    Transfers,
    chosen,
    environment_of,
    is_json,
    settings,
    show_facts,
    show_table,
    with_hub,
)
from vf_cli.prime.env_find import EnvId, Version

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.installation import HubSource
    from verifiers.packages.install import Installer
    from verifiers.packages.published import HubEnvironment, PublishedWheel

MAX_SOURCE_BYTES = 1024**3
With = Annotated[
    str | None,
    typer.Option("--with", metavar="PROGRAM", help="uv or pip. (default: uv if it is available)"),
]
Python = Annotated[
    str | None,
    typer.Option(
        "--python",
        help="Interpreter to install into. (default: UV_PROJECT_ENVIRONMENT, the active virtual environment, "
        ".venv of this project, the interpreter of this command)",
    ),
]


class Installed(NamedTuple):
    """Result of installing one environment."""

    environment: str
    version: str | None
    status: str
    """`installed`, `kept` or `failed`."""
    error: str | None = None
    sha256: str | None = None
    yanked: str | None = None
    """Reason why the version was yanked; None if it was not."""


def install(
    env_ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ENV_IDS...", help="owner/name\\[@version], or names of folders in --path."
        ),
    ],
    program: With = None,
    path: Annotated[
        str, typer.Option("--path", "-p", help="Folder of local environments.")
    ] = "./environments",
    no_upgrade: Annotated[
        bool,
        typer.Option("--no-upgrade", help="Do not change environments that are already installed."),
    ] = False,
    prerelease: Annotated[
        bool, typer.Option("--prerelease", help="Allow pre-releases of dependencies.")
    ] = False,
    python: Python = None,
    lock: Annotated[
        bool,
        typer.Option(
            "--lock", help="Also write a lock of the environments and all their dependencies."
        ),
    ] = False,
    lock_file: Annotated[
        str, typer.Option("--lock-file", help="File that --lock writes (PEP 751).")
    ] = "pylock.toml",
) -> int:
    """Install environments: from your hub by exact address and hash, or editable from local folders.

    No index is asked for the name of an environment, nor for other environments of the hub that it requires, so no
    package of the same name can replace them. The library `verifiers` is the one that the Python has, else the hub's,
    else the one of this command. Private environments are read with a token that only reads them, and no command line
    contains the token. The exit code is 1 if any environment failed.

    JSON: {python, environments: [{environment, version, status, error, sha256, yanked}], lock}
    """
    from verifiers.errors import Error
    from verifiers.hub.installation import HubSource
    from verifiers.packages.published import is_hub_env

    installer = _installer(program, python, prerelease=prerelease)
    published = {env: environment_of(env) for env in env_ids if is_hub_env(env)}
    if lock and len(published) < len(env_ids):
        raise typer.BadParameter(
            "--lock needs environments of a hub; local folders cannot be pinned."
        )
    done: list[Installed] = []
    wheels: list[PublishedWheel] = []
    written = None
    with Transfers() as transfers, _source(bool(published)) as source:
        assert isinstance(source, HubSource | None)
        for env in env_ids:
            transfers.step(f"installing {env}")
            done.append(
                _install(env, published.get(env), path, source, installer, no_upgrade, wheels)
            )
        is_good = all(one.status != "failed" for one in done)
        if lock and is_good:
            transfers.step("locking")
            try:
                written = _lock(published, wheels, source, installer, Path(lock_file))
            except Error as error:  # installed environments are reported nevertheless
                output.error(f"{lock_file} was not written: {error}")
                is_good = False
    _show(done, installer.python, written)
    return 0 if is_good else EXIT_FAILED


def uninstall(
    env_name: Annotated[str, typer.Argument(metavar="ENV_NAME", help="Name of the environment.")],
    program: With = None,
    python: Python = None,
) -> int:
    """Uninstall an environment. Its dependencies stay."""
    from verifiers.packages.install import uninstall as remove

    installer = _installer(program, python)
    name = env_name.rpartition("/")[2].partition("@")[0]
    remove(name, installer)
    data = {"uninstalled": name, "python": installer.python}
    show_facts(data, [("uninstalled", name), ("from", installer.python)])
    return 0


def pull(
    env_id: EnvId,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", "-t", help="Folder to create. (default: ./environments/NAME, or ./NAME)"
        ),
    ] = None,
    version: Version = "latest",
) -> int:
    """Download the source of an environment into a new folder, so that you can change and push it.

    The archive's hash is checked. Links and paths that leave the folder are refused.
    """
    hub_id = environment_of(env_id, version)
    folder = _new_folder(hub_id.name, target)
    with Transfers() as transfers:

        async def download(hub: HubClient) -> dict[str, Any]:
            return await _pull(hub, hub_id, folder, transfers)

        done = with_hub(download)
    facts = [
        ("pulled", f"{done['environment']} {done['version']}"),
        ("to", done["folder"]),
        ("files", done["files"]),
        ("sha256", done["sha256"]),
    ]
    show_facts(done, facts, next_step=f"vf-install {done['folder']}")
    return 0


def _installer(program: str | None, python: str | None, *, prerelease: bool = False) -> Installer:
    import sys

    from verifiers.errors import ConfigError
    from verifiers.hub.installation import target_python
    from verifiers.packages.install import Installer, installer_command
    from vf_cli.command import configure_logging

    configure_logging(is_verbose=chosen().is_verbose)
    if program is not None and program != "uv" and program != "pip":
        raise typer.BadParameter(f"--with must be uv or pip, not {program!r}.")
    if python is not None and not Path(python).exists():
        raise ConfigError(f"There is no interpreter {python}.")
    found = str(python or target_python(os.environ) or sys.executable)
    installer = Installer(python=found, program=program)
    is_uv = Path(installer_command(installer)[0]).stem == "uv"
    allow = ["--prerelease=allow"] if is_uv else ["--pre"]
    return installer._replace(options=allow if prerelease else [])


def _source(is_needed: bool) -> Any:
    from contextlib import nullcontext

    from verifiers.hub.installation import HubSource
    from vf_cli.interrupts import run

    return HubSource(settings(), run=run) if is_needed else nullcontext(None)


def _install(
    env: str,
    hub_id: HubEnvironment | None,
    path: str,
    source: HubSource | None,
    installer: Installer,
    no_upgrade: bool,
    wheels: list[PublishedWheel],
) -> Installed:
    """Install one environment. A failure is a result, so that the others continue."""
    from verifiers.errors import Error
    from verifiers.packages import install as packages

    try:
        name = hub_id.name if hub_id else Path(env).name
        there = packages.installed_from(name, installer.python) if no_upgrade else None
        if there is not None:
            return Installed(env, there[0], "kept")
        if hub_id is None or source is None:
            name = packages.install(env, path, installer=installer)
            there = packages.installed_from(name, installer.python)
            return Installed(name, there[0] if there else None, "installed")
        wheel = source.wheel(hub_id)
        packages.install_wheel(wheel, installer)
        wheels.append(wheel)
        return Installed(
            f"{hub_id.owner}/{hub_id.name}",
            wheel.version,
            "installed",
            None,
            wheel.sha256,
            wheel.yanked,
        )
    except Error as error:
        return Installed(env, None, "failed", str(error))


def _lock(
    published: dict[str, HubEnvironment],
    wheels: list[PublishedWheel],
    source: HubSource | None,
    installer: Installer,
    file: Path,
) -> Path:
    from verifiers.packages.lock import write_lock

    assert source is not None, "only environments of a hub are locked"
    if len(wheels) < len(published):  # --no-upgrade kept some
        wheels = [source.wheel(hub_id) for hub_id in published.values()]
    if sum(bool(wheel.variables) for wheel in wheels) > 1:
        # Each wheel came with its own token, and installers accept only one per host.
        access = source.access(list(published.values()))
        wheels = [wheel._replace(variables=access) for wheel in wheels]
    write_lock(wheels, file, installer)
    return file


def _show(done: list[Installed], python: str, lock: Path | None) -> None:
    for one in done:
        if one.error is not None:
            output.error(f"{one.environment}: {one.error}")
    data = {
        "python": python,
        "environments": [one._asdict() for one in done],
        "lock": str(lock) if lock else None,
    }
    rows = [[one.status, one.environment, one.version] for one in done]
    show_table(data, ["", "environment", "version"], rows)
    if is_json() or chosen().is_plain:
        return
    good = next((one for one in done if one.status != "failed"), None)
    if good is None:
        return  # nothing was installed
    output.show(f"into  {python}")
    if lock is not None:
        output.show(f"lock  {lock}")
    output.show(f"next  vf-eval {good.environment} -m MODEL")


def _new_folder(name: str, target: str | None) -> Path:
    """Return the folder to create: one that does not exist, or a named empty one."""
    from verifiers.errors import ConfigError

    if target is not None:
        folder = Path(target).expanduser()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} exists and is not an empty folder; name another --target.")
        return folder
    parent = Path("environments") if Path("environments").is_dir() else Path()
    plain = name.replace("-", "_")
    folder, number = parent / plain, 0
    while folder.exists():
        number += 1
        folder = parent / f"{plain}-{number}"
    return folder


async def _pull(
    hub: HubClient, hub_id: HubEnvironment, folder: Path, transfers: Transfers
) -> dict[str, Any]:
    import asyncio
    import tempfile
    from datetime import datetime

    from verifiers.hub import publishing
    from verifiers.hub.errors import HubNotFound
    from verifiers.hub.installation import details_of
    from verifiers.hub.origin import write_origin
    from verifiers.hub.source_archive import unpack

    details = await details_of(hub, hub_id)
    full = f"{details['owner']['name']}/{details['name']}"
    url = details.get("tracked_package_url") or details.get("package_url")
    if not url:
        raise HubNotFound(
            f"{full} {details.get('semantic_version') or ''} has no source to pull.", 404
        )
    number = details.get("semantic_version")
    rows = await publishing.versions(hub, hub_id.owner, hub_id.name)
    files = next((row.get("files") or [] for row in rows if row.get("version") == number), [])
    expected = next((file["sha256"] for file in files if file.get("kind") == "source"), None)
    transfers.step(f"downloading {full} {number}")
    with tempfile.TemporaryDirectory(prefix="prime-pull-") as scratch:
        archive = Path(scratch) / "source.tar.gz"
        digest = await hub.download(
            url,
            archive,
            sha256=expected,
            max_bytes=MAX_SOURCE_BYTES,
            on_progress=lambda done, total: transfers.progress(full, done, total),
        )
        members = await asyncio.to_thread(unpack, archive, folder)
    metadata = details.get("metadata") or {}
    write_origin(
        folder,
        environment_id=details.get("id"),
        owner=details["owner"]["name"],
        name=details["name"],
        version=number,
        origin=metadata.get("origin"),
        fork_chain=metadata.get("fork_chain") or [],
        pulled_at=datetime.now().isoformat(),
    )
    return {
        "environment": full,
        "version": number,
        "folder": str(folder),
        "files": len(members),
        "sha256": digest,
        "is_verified": expected is not None,
    }

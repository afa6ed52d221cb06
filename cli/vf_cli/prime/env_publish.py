"""`prime env push`, `yank`, `delete`, `version delete` and `fork`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vf_cli import output
from vf_cli.prime.command import (
    Transfers,
    chosen,
    confirm,
    environment_of,
    settings,
    show_facts,
    with_hub,
)
from vf_cli.prime.env_find import EnvId, visibility_of

if TYPE_CHECKING:
    from verifiers.hub.publishing import Bump, Pushed

Force = Annotated[bool, typer.Option("--force", "-f", "--yes", "-y", help="Do not ask.")]

Visibility = Annotated[
    str | None,
    typer.Option(
        "--visibility",
        "-v",
        help="PUBLIC or PRIVATE. (default: unchanged; a new environment gets the hub's default, or stays private if it "
        "was private under another owner or name)",
    ),
]


def push(
    env_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV_ID",
            help="Name of an environment's folder. Without it, --path is the project.",
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(
            "--path",
            "-p",
            help="The project, or with ENV_ID the folder of environments. (default: . or ./environments)",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Name on the hub. (default: the project's)")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", "-o", help="User or team to publish for.")
    ] = None,
    team: Annotated[
        str | None,
        typer.Option("--team", "-t", help="Team to publish for. (default: the configured one)"),
    ] = None,
    visibility: Visibility = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            "--runtime",
            help="API that the package uses: v0 or v1. (default: from its requirements)",
        ),
    ] = None,
    auto_bump: Annotated[
        bool,
        typer.Option("--auto-bump", help="If the content is new, raise the patch version first."),
    ] = False,
    rc: Annotated[
        bool, typer.Option("--rc", help="If the content is new, make the next release candidate.")
    ] = False,
    post: Annotated[
        bool, typer.Option("--post", help="If the content is new, make the next post-release.")
    ] = False,
) -> int:
    """Build an environment and publish it on your hub as a new version.

    Content that is already published is not sent again; the command succeeds and changes nothing. A published version
    cannot be replaced. --auto-bump raises the version in pyproject.toml and restores it if the push fails.

    JSON: {environment, version, is_new, is_first, visibility, environment_id, version_id, content_hash, wheel_sha256,
    url}
    """
    from verifiers.hub import publishing

    if auto_bump + rc + post > 1:
        raise typer.BadParameter("--auto-bump, --rc and --post exclude each other.")
    if owner and team:
        raise typer.BadParameter("--owner and --team exclude each other.")
    if runtime not in (None, "v0", "v1"):
        raise typer.BadParameter(f"--runtime must be v0 or v1, not {runtime!r}.")
    shown_to = visibility_of(visibility)
    bump: Bump | None = "patch" if auto_bump else "rc" if rc else "post" if post else None
    request = publishing.PushRequest(
        folder=project_folder(env_id, path),
        name=name,
        owner=owner,
        team=team,
        visibility=shown_to,
        runtime=runtime,
        bump=bump,
    )
    with Transfers() as transfers:
        watcher = publishing.PushWatcher(transfers.step, transfers.progress)
        done = with_hub(lambda hub: publishing.push(hub, request, watcher), needs_key=True)
    _show_pushed(done)
    return 0


def project_folder(env_id: str | None, path: str | None) -> Path:
    """Return the project to push. Raises ConfigError if it is not a project."""
    from verifiers.errors import ConfigError

    folder = Path(path or ("./environments" if env_id else ".")).expanduser()
    if env_id is not None:
        given = Path(env_id).expanduser()
        if path is None and (given / "pyproject.toml").is_file():
            folder = given
        else:
            folder = folder / env_id.rpartition("/")[2].replace("-", "_")
    if not (folder / "pyproject.toml").is_file():
        there = sorted(p.parent.name for p in folder.parent.glob("*/pyproject.toml"))
        listed = f" {folder.parent} has {', '.join(there)}." if env_id and there else ""
        raise ConfigError(
            f"{folder} is not a project: it has no pyproject.toml.{listed} `prime env init NAME` creates one."
        )
    return folder


def _show_pushed(done: Pushed) -> None:
    full = f"{done.owner}/{done.name}"
    data: dict[str, Any] = {"environment": full, **done._asdict()}
    what = "published" if done.is_new else "unchanged"
    facts = [
        (what, f"{full} {done.version}"),
        ("", None if done.is_new else "This content is already on the hub; nothing was sent."),
        ("visibility", _explained(done)),
        ("content", done.content_hash),
        ("page", done.url),
    ]
    show_facts(data, facts, next_step=f"prime env install {full}@{done.version}")


def _explained(done: Pushed) -> str | None:
    """Return the visibility with its meaning."""
    if done.visibility == "PUBLIC":
        return "PUBLIC: everyone on this hub can read it; --visibility PRIVATE hides it"
    if done.visibility == "PRIVATE":
        return f"PRIVATE: only {done.owner} can read it"
    return done.visibility


def yank(
    env_id: EnvId,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Reason shown to users.")] = "",
    undo: Annotated[bool, typer.Option("--undo", help="Undo the yank.")] = False,
) -> int:
    """Yank a version: it is installed only if its exact number is requested."""
    from verifiers.hub.client import body_of, data_of, environment_path
    from verifiers.hub.wire import YankRequest

    hub_id = environment_of(env_id)
    if hub_id.version is None:
        raise typer.BadParameter("Name the version: owner/name@version.")
    path = environment_path(hub_id.owner, hub_id.name, hub_id.version) + "/yank"
    body = body_of(YankRequest, yanked=not undo, reason=reason)
    row = data_of(with_hub(lambda hub: hub.post(path, body), needs_key=True))
    full = f"{hub_id.owner}/{hub_id.name} {row.get('version')}"
    show_facts(
        row, [("restored" if undo else "yanked", full), ("reason", row.get("yanked_reason"))]
    )
    return 0


def delete(env_id: EnvId, force: Force = False) -> int:
    """Delete an environment with all its versions, or one version (owner/name@version). Version numbers stay used."""
    hub_id = environment_of(env_id)
    if hub_id.version is not None:
        return _delete_version(hub_id.owner, hub_id.name, hub_id.version, force)
    from verifiers.hub.client import environment_path

    settings()  # a missing hub is reported before the question
    full = f"{hub_id.owner}/{hub_id.name}"
    confirm(f"Delete {full} with all its versions, for everyone?", is_sure=force, option="--force")
    path = environment_path(hub_id.owner, hub_id.name)
    with_hub(lambda hub: hub.request("DELETE", path), needs_key=True)
    show_facts({"deleted": full}, [("deleted", full)])
    return 0


def delete_version(
    env_id: EnvId,
    content_hash: Annotated[
        str,
        typer.Argument(
            metavar="CONTENT_HASH", help="Content hash (8 or more characters), or the version."
        ),
    ],
    force: Force = False,
) -> int:
    """Delete one version. Its number stays used. `prime env yank` keeps it for those who use it."""
    hub_id = environment_of(env_id)
    return _delete_version(hub_id.owner, hub_id.name, content_hash, force)


def _delete_version(owner: str, name: str, reference: str, force: bool) -> int:
    from verifiers.hub.client import data_of, environment_path

    settings()
    full = f"{owner}/{name}@{reference}"
    confirm(f"Delete {full}, for everyone?", is_sure=force, option="--force")
    path = environment_path(owner, name, reference)
    done = data_of(with_hub(lambda hub: hub.request("DELETE", path), needs_key=True))
    version = done.get("version", reference)
    data = {"deleted": f"{owner}/{name}", "version": version}
    show_facts(data, [("deleted", f"{owner}/{name} {version}")])
    return 0


def fork(
    environment: Annotated[str, typer.Argument(metavar="ENVIRONMENT", help="owner/name")],
    team: Annotated[
        str | None,
        typer.Option(
            "--team",
            "-t",
            help="Team to copy the environment to. (default: the configured one, else you)",
        ),
    ] = None,
) -> int:
    """Copy the newest version of an environment to you or a team, under the same name.

    JSON: {success, message, environment_id, version_id, name, owner, slug}
    """
    from verifiers.hub.client import data_of, environment_path
    from verifiers.hub.publishing import TEAM_ID

    hub_id = environment_of(environment)
    if hub_id.version is not None:
        raise typer.BadParameter("A fork copies the newest version; leave @version out.")
    at = settings()
    target = team or at.team_id
    body = (
        {} if target is None else {"team_id" if TEAM_ID.fullmatch(target) else "team_slug": target}
    )
    path = environment_path(hub_id.owner, hub_id.name) + "/fork"
    done = data_of(
        with_hub(lambda hub: hub.post(path, body, is_repeatable=False), needs_key=True, at=at)
    )
    slug = done.get("slug")
    show_facts(
        done,
        [("forked", f"{hub_id.owner}/{hub_id.name}"), ("to", slug)],
        next_step=f"prime env pull {slug}",
    )
    if chosen().is_verbose:
        output.note(str(done.get("message", "")))
    return 0

"""`prime env list`, `search`, `info`, `status`, `inspect` and `versions`: commands that change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vf_cli import output
from vf_cli.prime.command import (
    chosen,
    environment_of,
    is_json,
    moment,
    settings,
    show_facts,
    show_table,
    with_hub,
)

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient

EnvId = Annotated[
    str,
    typer.Argument(
        metavar="ENV_ID", help="owner/name\\[@version], or the name of a folder that was pushed."
    ),
]
Version = Annotated[str, typer.Option("--version", "-v", help="Version to show.")]
Num = Annotated[int, typer.Option("--num", "-n", min=1, max=500, help="Number of items per page.")]
Page = Annotated[int, typer.Option("--page", "-p", min=1, help="Number of the page.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Only environments of this owner.")]
Visibility = Annotated[
    str | None, typer.Option("--visibility", help="Only PUBLIC or only PRIVATE environments.")
]
Tag = Annotated[
    list[str] | None,
    typer.Option("--tag", "-t", help="Only environments with this tag. Repeatable."),
]
Sort = Annotated[str, typer.Option("--sort", help="name, created_at, updated_at or stars.")]
Order = Annotated[str, typer.Option("--order", help="asc or desc.")]
Starred = Annotated[
    bool, typer.Option("--starred", help="Only environments that you have starred.")
]
Mine = Annotated[bool, typer.Option("--mine", help="Only environments of you and your teams.")]


def list_environments(
    num: Num = 20,
    page: Page = 1,
    owner: Owner = None,
    visibility: Visibility = None,
    search: Annotated[
        str | None, typer.Option("--search", "-s", help="Words in name, description or README.")
    ] = None,
    tag: Tag = None,
    sort: Sort = "created_at",
    order: Order = "desc",
    starred: Starred = False,
    mine: Mine = False,
) -> int:
    """List environments that you may see, newest first.

    JSON: .environments[] = {environment, description, visibility, version, stars, updated_at, tags[]}, .total, .page,
    .per_page
    """
    from verifiers.hub.client import member

    if sort not in ("name", "created_at", "updated_at", "stars"):
        raise typer.BadParameter(
            f"--sort must be name, created_at, updated_at or stars, not {sort!r}."
        )
    if order not in ("asc", "desc"):
        raise typer.BadParameter(f"--order must be asc or desc, not {order!r}.")
    query = {
        "include_teams": "true",
        "limit": num,
        "offset": (page - 1) * num,
        "sort_by": sort,
        "sort_order": order,
        "owner": owner,
        "visibility": visibility_of(visibility),
        "search": search,
        "tags": tag or None,
        "starred_only": "true" if starred else None,
        "mine_only": "true" if mine else None,
    }
    answer = with_hub(lambda hub: hub.get("/environmentshub/", **query), needs_key=starred or mine)
    found = answer["environments"] if "environments" in answer else member(answer, "data")
    total = int(answer.get("total_count", answer.get("total", len(found))))
    listed = [
        {
            "environment": f"{row['owner']['name']}/{row['name']}",
            "description": row.get("description") or "",
            "visibility": row.get("visibility"),
            "version": row.get("latest_version"),
            "stars": row.get("stars", 0),
            "updated_at": row.get("updated_at"),
            "tags": row.get("tags") or [],
        }
        for row in found
    ]
    rows = [
        [e["environment"], e["version"] or "-", e["visibility"], e["stars"], moment(e["updated_at"]), e["description"]]
        for e in listed
    ]  # fmt: skip
    show_table(
        {"environments": listed, "total": total, "page": page, "per_page": num},
        ["environment", "version", "visibility", "stars", "updated", "description"],
        rows,
        empty="No environment matches.",
    )
    if total > page * num and not is_json() and not chosen().is_plain:
        output.note(f"{total:,} in total; next: --page {page + 1}")
    return 0


def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS...", help="Words to search for.")],
    num: Num = 20,
    page: Page = 1,
    owner: Owner = None,
    tag: Tag = None,
) -> int:
    """Search environments by words in name, description and README. JSON: as `prime env list`."""
    return list_environments(num=num, page=page, owner=owner, search=" ".join(words), tag=tag)


def info(env_id: EnvId, version: Version = "latest") -> int:
    """Show one version of an environment, and how to install it."""
    details = _details(env_id, version)
    full = f"{details['owner']['name']}/{details['name']}"
    install = details.get("install") or {}
    is_private = details.get("visibility") == "PRIVATE"
    number = details.get("semantic_version")
    shown = _without_tokens(details)
    facts: list[tuple[str, Any]] = [
        ("environment", full),
        ("version", number or "no version is published yet"),
        ("description", (details.get("metadata") or {}).get("description")),
        ("visibility", details.get("visibility")),
        ("status", details.get("status")),
        ("yanked", (details.get("yanked_reason") or "yes") if details.get("yanked") else None),
        ("tags", details.get("tags")),
        ("stars", details.get("stars")),
        ("python", details.get("requires_python")),
        ("needs", details.get("requires_dist")),
        ("of this hub", [line.partition(" @ ")[0] for line in install.get("dependencies") or []]),
        ("no install", details.get("install_refused")),
        ("updated", moment(details.get("updated_at"))),
        ("sha256", install.get("sha256")),
    ]
    if number:
        facts.append(("install", f"prime env install {full}@{number}"))
        if not is_private and install.get("requirement"):
            lines = [install["requirement"], *(install.get("dependencies") or [])]
            quoted = " ".join(f"'{line}'" for line in lines)
            facts.append(("pip or uv", f"uv pip install {quoted}"))
        facts.append(("evaluate", f"vf-eval {full}@{number} -m MODEL"))
    show_facts(shown, facts)
    return 0


def status(env_id: EnvId) -> int:
    """Show an environment's visibility and newest version.

    JSON: {name, description, visibility, latest_version: {semantic_version, content_hash, created_at}}
    """
    from verifiers.hub.client import data_of, environment_path

    hub_id = environment_of(env_id)
    path = f"{environment_path(hub_id.owner, hub_id.name)}/status"
    found = data_of(with_hub(lambda hub: hub.get(path)))
    latest = found.get("latest_version") or {}
    facts = [
        ("environment", f"{hub_id.owner}/{found.get('name')}"),
        ("description", found.get("description")),
        ("visibility", found.get("visibility")),
        ("status", found.get("status")),
        ("because", found.get("status_reason")),
        ("downloads", found.get("downloads")),
        ("version", latest.get("semantic_version") or "no version is published yet"),
        ("content", latest.get("content_hash")),
        ("published", moment(latest.get("created_at"))),
    ]
    show_facts(found, facts)
    return 0


def inspect(
    env_id: EnvId,
    source_path: Annotated[
        str, typer.Argument(metavar="SOURCE_PATH", help="A file or folder of the source.")
    ] = "",
    version: Version = "latest",
    max_bytes: Annotated[
        int,
        typer.Option("--max-bytes", min=1, max=500_000, help="Maximum number of bytes of a file."),
    ] = 100_000,
) -> int:
    """Browse the source of an environment without installing or downloading it.

    JSON: {kind, path, version_id, entries[] | content, truncated, total_bytes}
    """
    from verifiers.hub.client import data_of, environment_path

    hub_id = environment_of(env_id, version)
    path = environment_path(hub_id.owner, hub_id.name, hub_id.version or "latest") + "/inspect"
    query = {"max_bytes": max_bytes, "path": source_path.strip("/") or None}
    found = data_of(with_hub(lambda hub: hub.request("GET", path, query=query)))
    if found.get("kind") == "file":
        if is_json():
            output.show_json(found)
            return 0
        output.show(str(found.get("content", "")).removesuffix("\n"))
        if found.get("truncated"):
            output.note(
                f"Cut after {max_bytes:,} of {found.get('total_bytes'):,} bytes; --max-bytes N shows more."
            )
        return 0
    entries = found.get("entries") or []
    rows = [
        [entry["path"] + ("/" if entry.get("is_directory") else ""), entry.get("size")]
        for entry in entries
    ]
    show_table(found, ["path", "bytes"], rows, empty="The folder is empty.")
    return 0


def versions(
    env_id: EnvId,
    full_hashes: Annotated[
        bool, typer.Option("--full-hashes", help="Show complete content hashes.")
    ] = False,
) -> int:
    """List the versions of an environment, newest first."""
    from verifiers.hub import publishing

    hub_id = environment_of(env_id)
    found = with_hub(lambda hub: publishing.versions(hub, hub_id.owner, hub_id.name))
    rows = []
    for row in found:
        content = str(row.get("content_hash") or row.get("sha256") or "")
        yanked = (
            f"yanked: {row.get('yanked_reason') or 'no reason given'}" if row.get("yanked") else ""
        )
        rows.append(
            [
                row.get("version"),
                moment(row.get("created_at")),
                content if full_hashes else content[:8],
                yanked,
            ]
        )
    data = {"environment": f"{hub_id.owner}/{hub_id.name}", "versions": found}
    show_table(
        data, ["version", "published", "content", ""], rows, empty="No version is published yet."
    )
    return 0


def visibility_of(text: str | None) -> Literal["PUBLIC", "PRIVATE"] | None:
    """Return the value of `--visibility` in the hub's spelling."""
    upper = text.upper() if text is not None else None
    if upper is None or upper == "PUBLIC" or upper == "PRIVATE":
        return upper
    raise typer.BadParameter(f"--visibility must be PUBLIC or PRIVATE, not {text!r}.")


def _details(env_id: str, version: str) -> dict[str, Any]:
    from verifiers.hub.installation import details_of

    hub_id = environment_of(env_id, version)

    async def read(hub: HubClient) -> dict[str, Any]:
        return await details_of(hub, hub_id)

    return with_hub(read, at=settings())


def _without_tokens(value: Any) -> Any:
    """Return the value without the tokens that addresses of private environments contain."""
    import re

    if isinstance(value, dict):
        return {key: _without_tokens(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_tokens(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(https?://)[^/@\s]*:[^/@\s]*@", r"\1", value)
    return value

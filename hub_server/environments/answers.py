"""Turn rows into the answers of the wire."""

from typing import NamedTuple
from urllib.parse import quote, urlsplit

from hub_server.accounts.models import Owner
from hub_server.database import iso
from hub_server.environments.models import File, Version
from hub_server.environments.service import OwnedEnvironment
from hub_server.index.service import file_path
from verifiers.hub.wire import (
    EnvironmentAnswer,
    EnvironmentRow,
    InstallAnswer,
    OwnerAnswer,
    VersionRow,
)

REFUSED = "0" * 64
"""Replaces the hash of a wheel in an address that answers why the wheel cannot be installed."""


class Dependencies(NamedTuple):
    """Facts that an installer needs beside the wheel, because a public index could answer for a dependency's name."""

    lines: tuple[str, ...] = ()
    """`name @ url#sha256=…` of every environment of this hub that is installed with the wheel."""
    wheel_sha256: str | None = None
    """Hash of the copy of the wheel that contains the lines; None if there is no copy."""
    refusal: str | None = None
    """Why the wheel cannot be installed; None if it can."""


class Address(NamedTuple):
    """The address of this hub, and the token that the caller's addresses must contain."""

    base_url: str
    token: str | None = None

    def of(self, path: str) -> str:
        """Return the address of a path, for a client that adds its own credentials."""
        return f"{self.base_url}/{path}"

    def with_token(self, path: str) -> str:
        """Return the address of a path, with the token if one is needed."""
        if self.token is None:
            return self.of(path)
        parts = urlsplit(self.base_url)
        authority = f"__token__:{quote(self.token)}@{parts.netloc}"
        return parts._replace(netloc=authority).geturl() + f"/{path}"


def owner_answer(owner: Owner) -> OwnerAnswer:
    """Return an owner. `name` is the slug, which clients write in `owner/name`."""
    kind = "team" if owner.kind == "team" else "user"
    return OwnerAnswer(id=owner.id, name=owner.slug, slug=owner.slug, type=kind)


def environment_row(found: OwnedEnvironment) -> EnvironmentRow:
    """Return an environment in a list."""
    environment = found.environment
    return EnvironmentRow(
        id=environment.id,
        name=environment.name,
        owner=owner_answer(found.owner),
        description=environment.description,
        visibility="PRIVATE" if environment.visibility == "PRIVATE" else "PUBLIC",
        latest_version=environment.latest_version,
        stars=environment.stars,
        tags=environment.tags,
        status=environment.status,
        created_at=iso(environment.created_at),
        updated_at=iso(environment.updated_at),
    )


def version_row(version: Version, files: list[File]) -> VersionRow:
    """Return a version in a list."""
    wheel = next((file for file in files if file.kind == "wheel"), None)
    return VersionRow(
        version=version.version,
        version_id=version.id,
        created_at=iso(version.created_at),
        sha256=version.content_hash or (wheel.sha256 if wheel else ""),
        size=len(files),
        content_hash=version.content_hash,
        yanked=version.is_yanked,
        yanked_reason=version.yanked_reason,
        files=[
            {"filename": f.filename, "kind": f.kind, "sha256": f.sha256, "size": f.size_bytes}
            for f in files
        ],
    )


def environment_answer(
    found: OwnedEnvironment,
    version: Version | None,
    files: list[File],
    address: Address,
    *,
    starred: bool,
    tell_index: bool,
    needs: Dependencies,
) -> EnvironmentAnswer:
    """Return an environment at one version. `tell_index` sends installers to its index, not to the wheel.

    If the environment requires other environments of this hub, `wheel_url` is a copy of the wheel with their
    addresses.
    """
    environment = found.environment
    wheel = next((file for file in files if file.kind == "wheel"), None)
    source = next((file for file in files if file.kind == "source"), None)
    manifest = version.manifest if version else {}
    package_url = address.of(file_path(found, source)) if source else None
    is_alone = not needs.lines and needs.refusal is None
    index_url = None
    if tell_index and wheel and is_alone:
        index_url = address.with_token(_index_path(found))
    install = None
    if wheel and version and needs.refusal is None:
        install = install_answer(found, version, wheel, address, needs)
    return EnvironmentAnswer(
        id=environment.id,
        name=environment.name,
        owner=owner_answer(found.owner),
        visibility="PRIVATE" if environment.visibility == "PRIVATE" else "PUBLIC",
        status=environment.status,
        status_reason=environment.status_reason,
        semantic_version=version.version if version else None,
        version_id=version.id if version else None,
        source_hash=version.content_hash if version else None,
        package_url=package_url,
        tracked_package_url=package_url,
        simple_index_url=index_url,
        install_index_url=index_url,
        wheel_url=_wheel_url(found, wheel, address, needs) if wheel else None,
        url_dependencies=manifest.get("url_dependencies", []),
        install=install,
        install_refused=needs.refusal,
        yanked=version.is_yanked if version else False,
        yanked_reason=version.yanked_reason if version else None,
        stars=environment.stars,
        starred=starred,
        tags=environment.tags,
        runtime_hint=version.runtime_hint if version else None,
        requires_python=manifest.get("requires_python"),
        requires_dist=manifest.get("requires_dist", []),
        readme=version.readme if version else "",
        created_at=iso(environment.created_at),
        updated_at=iso(environment.updated_at),
        metadata={
            **manifest,
            "description": environment.description,
            "tags": environment.tags,
            "origin": environment.forked_from,
            "fork_chain": [environment.forked_from] if environment.forked_from else [],
        },
    )


def _wheel_url(found: OwnedEnvironment, wheel: File, address: Address, needs: Dependencies) -> str:
    """Return the address that alone is enough to install the wheel with everything that it needs of this hub."""
    path = file_path(found, wheel)
    if not needs.lines and needs.refusal is None:
        return f"{address.with_token(path)}#sha256={wheel.sha256}"
    if needs.refusal is not None or needs.wheel_sha256 is None:
        return address.with_token(path.replace(f"/{wheel.sha256}/", f"/{REFUSED}/"))
    copy = path.replace(f"/{wheel.sha256}/", f"/{needs.wheel_sha256}/")
    return f"{address.with_token(copy)}#sha256={needs.wheel_sha256}"


def install_answer(
    found: OwnedEnvironment, version: Version, wheel: File, address: Address, needs: Dependencies
) -> InstallAnswer:
    """Return how to install the wheel of a version from this hub only."""
    name = found.environment.normalized_name
    wheel_url = f"{address.with_token(file_path(found, wheel))}#sha256={wheel.sha256}"
    index_url = address.of(_index_path(found))
    base = f"api/v1/environmentshub/{found.owner.slug}/{name}"
    index_name = f"{found.owner.slug}-{name}"
    return InstallAnswer(
        requirement=f"{name} @ {wheel_url}",
        wheel_url=wheel_url,
        sha256=wheel.sha256,
        dependencies=list(needs.lines),
        index_url=index_url,
        uv_sources=(
            f'[[tool.uv.index]]\nname = "{index_name}"\nurl = "{index_url}"\nexplicit = true\n\n'
            f'[tool.uv.sources]\n{name} = {{ index = "{index_name}" }}\n'
            + _uv_constraints(needs.lines)
        ),
        pylock_url=address.of(f"{base}/@{quote(version.version)}/pylock.toml"),
    )


def _uv_constraints(lines: tuple[str, ...]) -> str:
    if not lines:
        return ""
    listed = "".join(f'    "{line}",\n' for line in lines)
    return f"\n[tool.uv]\nconstraint-dependencies = [\n{listed}]\n"


def pylock(locked: list[tuple[OwnedEnvironment, Version, list[File]]], address: Address) -> str:
    """Return a pylock.toml (PEP 751) that pins a version and its dependencies on this hub, by address and hash.

    Other dependencies are missing: locking them needs a resolver and the caller's index.
    """
    version = locked[0][1]
    lines = [
        'lock-version = "1.0"',
        'created-by = "verifiers-hub"',
        *(
            [f'requires-python = "{version.manifest["requires_python"]}"']
            if version.manifest.get("requires_python")
            else []
        ),
    ]
    for found, release, wheels in locked:
        lines += [
            "",
            "[[packages]]",
            f'name = "{found.environment.normalized_name}"',
            f'version = "{release.version}"',
            f'index = "{address.of(_index_path(found))}"',
        ]
        for wheel in wheels:
            lines += [
                "[[packages.wheels]]",
                f'name = "{wheel.filename}"',
                f'url = "{address.of(file_path(found, wheel))}"',
                f"size = {wheel.size_bytes}",
                f'hashes = {{ sha256 = "{wheel.sha256}" }}',
            ]
    return "\n".join(lines) + "\n"


def _index_path(found: OwnedEnvironment) -> str:
    return f"{found.owner.slug}/{found.environment.normalized_name}/simple/"

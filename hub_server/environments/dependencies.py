"""Requirements that are environments of this hub: which environments, and which exact files satisfy them.

A requirement is only a name, and anyone can put a package of that name on a public index. The hub decides at publish
time which requirements are environments of the hub, and gives installers their addresses and hashes. A requirement
that is ambiguous or unreadable is refused, so that an installer never asks another index for such a name.

A name means, in this order:

1. the entry of the same name in `[project.urls]` of the wheel: the page of an environment, or any other address for
   the
   package index;
2. the library, for `verifiers`, if the operator has published it here;
3. the environment of that name of the same owner, even if it is private, yanked or deleted;
4. the package index. If the publisher can see environments of that name of other owners, the requirement is
   refused.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version as Number
from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import Action, Principal, may
from hub_server.accounts.models import Owner
from hub_server.environments.models import Environment, File, Version
from hub_server.environments.names import preference
from hub_server.environments.service import (
    OwnedEnvironment,
    files_of_version,
    readable_by,
    versions_of,
)
from hub_server.errors import BadRequest, Conflict

LIBRARY = "verifiers"
"""Name of the library, and of the owner under which an operator publishes it. No person or team can have this name."""
BOUND = "hub_dependencies"
"""Key of a version's manifest: name of a requirement → id of the environment that it means."""
MAX_DEPENDENCIES = 50
MAX_ROUNDS = 10
_PAGE = re.compile(r"/dashboard/environments/(?P<owner>[^/]+)/(?P<name>[^/]+?)/?$")
_FILE = re.compile(r"/files/(?P<owner>[^/]+)/(?P<name>[^/]+)/(?P<sha256>[0-9a-f]{64})/[^/]+\.whl")
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']|["']([^"']+)["']\s*==\s*extra\b""")


class Unresolved(Conflict):
    """A requirement means an environment of this hub, and the caller cannot get a version that satisfies it."""


class Dependency(NamedTuple):
    """A required environment, at the version that is installed."""

    found: OwnedEnvironment
    version: Version
    wheel: File
    is_addressed: bool
    """Whether the requirement contains the address of this wheel."""


class _Node(NamedTuple):
    dependency: Dependency
    extras: frozenset[str]


# --- publishing -------------------------------------------------------------------------------


async def bind(
    session: AsyncSession, caller: Principal, environment: Environment, manifest: dict[str, Any]
) -> dict[str, str]:
    """Return name → environment id, for requirements of a wheel that mean environments of this hub.

    Raises BadRequest for a name that is ambiguous or whose environment was deleted by its owner.
    """
    names = _index_names(manifest, environment) - {LIBRARY}
    if not names:
        return {}
    query = (
        select(Environment, Owner.slug)
        .join(Owner, Owner.id == Environment.owner_id)
        .where(
            Environment.normalized_name.in_(names),
            or_(Environment.owner_id == environment.owner_id, readable_by(caller)),
            # An environment without a version is only a name, which an evaluation may have created.
            select(Version.id).where(Version.environment_id == Environment.id).exists(),
        )
    )
    candidates: dict[str, list[tuple[Environment, str]]] = {}
    for row, slug in (await session.execute(query)).all():
        candidates.setdefault(row.normalized_name, []).append((row, slug))
    declared = _declared(manifest)
    bound = {}
    for name in sorted(names):
        chosen = _choose(name, candidates.get(name, []), declared.get(name), environment)
        if chosen is not None:
            bound[name] = chosen.id
    return bound


async def bound_for_a_fork(
    session: AsyncSession, environment: Environment, manifest: dict[str, Any]
) -> dict[str, str]:
    """Return what the requirements of an environment mean, to be stored with a fork."""
    declared = _declared(manifest)
    names = _index_names(manifest, environment) - {LIBRARY} - declared.keys()
    query = select(Environment.normalized_name, Environment.id).where(
        Environment.owner_id == environment.owner_id,
        Environment.normalized_name.in_(names),
        select(Version.id).where(Version.environment_id == Environment.id).exists(),
    )
    rows = (await session.execute(query)).all()
    own = {row.normalized_name: row.id for row in rows}
    return {**own, **(manifest.get(BOUND) or {})}


def _choose(
    name: str, rows: list[tuple[Environment, str]], declared: str | None, environment: Environment
) -> Environment | None:
    """Return the environment that the name means, or None for the package index."""
    if declared is not None:
        page = _PAGE.search(urlsplit(declared).path)
        if page is None or canonicalize_name(page["name"]) != name:
            return None
        named = next((row for row, slug in rows if slug == page["owner"]), None)
        if named is None or named.deleted_at is not None:
            raise BadRequest(
                f"{environment.full_name} requires {name!r} from {declared[:200]!r}, and this hub has no such"
                " environment that you can read. Correct the address in [project.urls]."
            )
        return named
    own = next((row for row, _ in rows if row.owner_id == environment.owner_id), None)
    if own is not None and own.deleted_at is not None:
        raise BadRequest(
            f"{environment.full_name} requires {name!r}, and {own.full_name} was deleted from this hub. A package of "
            f"that name on an index is not yours. Remove the requirement, or publish {own.full_name} again."
            f" {_how_to_mean_the_index(name)}"
        )
    if own is not None:
        return own
    if not rows:
        return None
    others = ", ".join(sorted(f"{slug}/{row.name}" for row, slug in rows))
    raise BadRequest(
        f"{environment.full_name} requires {name!r}. This hub has {others}, and a package index may have another"
        f' {name!r}. State which one you mean. For the hub\'s, add `{name} = "…/dashboard/environments/OWNER/{name}"`'
        f" (its page) to [project.urls] in pyproject.toml. {_how_to_mean_the_index(name)}"
    )


def _how_to_mean_the_index(name: str) -> str:
    return (
        f'For the package of an index, add `{name} = "https://…"` (its home page) to [project.urls] in'
        " pyproject.toml."
    )


def _declared(manifest: dict[str, Any]) -> dict[str, str]:
    """Return normalised label → address of the wheel's Project-URL lines."""
    urls = manifest.get("project_urls") or {}
    return {canonicalize_name(label): url for label, url in urls.items()}


def _requirements(manifest: dict[str, Any]) -> list[Requirement]:
    return [Requirement(text) for text in manifest.get("requires_dist", [])]


def _index_names(manifest: dict[str, Any], environment: Environment) -> set[str]:
    """Return the names that an installer would look for on an index."""
    names: set[str] = {canonicalize_name(r.name) for r in _requirements(manifest) if not r.url}
    return names - {environment.normalized_name}


# --- installing -------------------------------------------------------------------------------


async def dependencies(
    session: AsyncSession,
    caller: Principal,
    found: OwnedEnvironment,
    version: Version,
    base_url: str,
) -> list[Dependency]:
    """Return the environments of this hub that are installed with a version, directly or indirectly, sorted by name.

    Each has the newest version that satisfies all requirements. Raises Unresolved if the caller may not read one, if
    one is deleted, or if no version satisfies the requirements.
    """
    walk = _Walk(session, caller, base_url)
    chosen: dict[str, _Node] = {}
    for _ in range(MAX_ROUNDS):
        reached = await walk.round(found, version, chosen)
        if {key: _identity(node) for key, node in reached.items()} == {
            key: _identity(node) for key, node in chosen.items()
        }:
            return sorted(
                (node.dependency for node in chosen.values()),
                key=lambda one: one.found.environment.normalized_name,
            )
        chosen = reached
    raise Unresolved(
        f"{found.environment.full_name} cannot be installed: the versions of its dependencies require each other in a"
        " way that has no solution here."
    )


def _identity(node: _Node) -> tuple[str, frozenset[str]]:
    return node.dependency.wheel.id, node.extras


def lines_of(needed: Iterable[Dependency], base_url: str) -> tuple[str, ...]:
    """Return `name @ url#sha256=…` per dependency: a requirement that only this file satisfies."""
    return tuple(
        f"{one.found.environment.normalized_name} @ {base_url}/{_path(one)}#sha256={one.wheel.sha256}"
        for one in needed
        if not one.is_addressed
    )


def _path(one: Dependency) -> str:
    place = f"{one.found.owner.slug}/{one.found.environment.normalized_name}"
    return f"files/{place}/{one.wheel.sha256}/{one.wheel.filename}"


class _Walk:
    """Follows requirements from version to version."""

    def __init__(self, session: AsyncSession, caller: Principal, base_url: str) -> None:
        self._session = session
        self._caller = caller
        self._base_url = base_url
        self._versions: dict[str, list[Version]] = {}
        self._library: OwnedEnvironment | None = None
        self._knows_library = False

    async def round(
        self, root: OwnedEnvironment, version: Version, chosen: dict[str, _Node]
    ) -> dict[str, _Node]:
        """Return the dependencies that the versions of the last round require, as environment id → node."""
        limits: dict[str, SpecifierSet] = {}
        extras: dict[str, frozenset[str]] = {}
        fixed: dict[str, str] = {}
        founds: dict[str, OwnedEnvironment] = {}
        waiting: list[tuple[OwnedEnvironment, Version, frozenset[str]]] = [
            (root, version, frozenset())
        ]
        walked: set[tuple[str, frozenset[str]]] = set()
        while waiting:
            at, release, active = waiting.pop()
            if (at.environment.id, active) in walked:
                continue
            walked.add((at.environment.id, active))
            for requirement, target, sha256 in await self._edges(at, release, active):
                key = target.environment.id
                if key == root.environment.id:
                    continue
                founds[key] = target
                if len(founds) > MAX_DEPENDENCIES:
                    raise Unresolved(
                        f"{root.environment.full_name} requires more than {MAX_DEPENDENCIES} environments of this hub."
                    )
                limits[key] = limits.get(key, SpecifierSet()) & requirement.specifier
                extras[key] = extras.get(key, frozenset()) | requirement.extras
                if sha256 is not None:
                    fixed[key] = sha256
                if key in chosen:
                    waiting.append((target, chosen[key].dependency.version, extras[key]))
        reached = {}
        for key, target in founds.items():
            dependency = await self._best(root, target, limits[key], fixed.get(key))
            if dependency is not None:
                reached[key] = _Node(dependency, extras[key])
        return reached

    async def _edges(
        self, at: OwnedEnvironment, release: Version, active: frozenset[str]
    ) -> list[tuple[Requirement, OwnedEnvironment, str | None]]:
        """Return the requirements that mean environments of this hub, with the hash if an address names one."""
        requested = [r for r in _requirements(release.manifest) if _is_active(r, active)]
        by_name = await self._targets(at, release, {canonicalize_name(r.name) for r in requested})
        edges = []
        for requirement in requested:
            name = canonicalize_name(requirement.name)
            if name == at.environment.normalized_name:
                continue
            if requirement.url:
                target, sha256 = await self._addressed(requirement.url)
            else:
                target, sha256 = by_name.get(name), None
            if target is None:
                continue
            if not may(self._caller, Action.READ, target.environment.resource):
                raise Unresolved(
                    f"{at.environment.full_name} requires {name!r}, an environment of this hub that you may not read,"
                    f" or that was deleted. Ask {at.owner.slug}. A package of that name elsewhere is a different one."
                )
            edges.append((requirement, target, sha256))
        return edges

    async def _targets(
        self, at: OwnedEnvironment, release: Version, names: set[str]
    ) -> dict[str, OwnedEnvironment]:
        """Return what the names mean: the decision at publish time, else the owner's environments."""
        bound: dict[str, str] = release.manifest.get(BOUND) or {}
        declared = _declared(release.manifest)
        own = {name for name in names if name not in bound and name not in declared}
        query = (
            select(Environment, Owner)
            .join(Owner, Owner.id == Environment.owner_id)
            .where(
                or_(
                    Environment.id.in_([bound[name] for name in names if name in bound]),
                    (Environment.owner_id == at.environment.owner_id)
                    & Environment.normalized_name.in_(own - {LIBRARY})
                    & select(Version.id).where(Version.environment_id == Environment.id).exists(),
                    (Owner.slug == LIBRARY) & (Environment.normalized_name == LIBRARY)
                    if LIBRARY in names
                    else Environment.id.in_([]),
                )
            )
        )
        rows = (await self._session.execute(query)).all()
        return {row.normalized_name: OwnedEnvironment(row, owner) for row, owner in rows}

    async def _addressed(self, url: str) -> tuple[OwnedEnvironment | None, str | None]:
        """Return the environment whose wheel is at an address of this hub, or None for other addresses."""
        parts = urlsplit(url)
        plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
        if not plain.startswith(f"{self._base_url}/"):
            return None, None
        match = _FILE.fullmatch(plain.removeprefix(self._base_url))
        if match is None:
            return None, None
        query = (
            select(Environment, Owner)
            .join(Owner, Owner.id == Environment.owner_id)
            .join(File, File.environment_id == Environment.id)
            .where(File.sha256 == match["sha256"], File.kind == "wheel")
            .where(Environment.normalized_name == canonicalize_name(match["name"]))
            .where(Owner.slug == match["owner"])
        )
        row = (await self._session.execute(query)).first()
        return (OwnedEnvironment(*row), match["sha256"]) if row is not None else (None, None)

    async def _best(
        self,
        root: OwnedEnvironment,
        target: OwnedEnvironment,
        limit: SpecifierSet,
        sha256: str | None,
    ) -> Dependency | None:
        """Return the newest version that satisfies the limit, or the file of an address. None leaves the library to
        the index.
        """
        environment = target.environment
        if environment.id not in self._versions:
            self._versions[environment.id] = await versions_of(self._session, environment.id)
        versions = self._versions[environment.id]
        for release in sorted(_fitting(versions, limit), key=_order, reverse=True):
            for file in await files_of_version(self._session, release.id):
                if file.kind == "wheel" and sha256 in (None, file.sha256):
                    return Dependency(target, release, file, is_addressed=sha256 is not None)
        if environment.normalized_name == LIBRARY and target.owner.slug == LIBRARY:
            return None
        raise Unresolved(
            f"{root.environment.full_name} requires {environment.full_name} {limit}, and this hub has no such version"
            f" of it to install: it has {', '.join(_numbers(versions)) or 'none'}."
        )


def _numbers(versions: Iterable[Version]) -> list[str]:
    shown = sorted((v for v in versions if not v.is_yanked), key=_order)
    return [version.version for version in shown[-5:]]


def _order(version: Version) -> tuple[bool, Number]:
    return preference(version.version)


def _fitting(versions: Iterable[Version], limit: SpecifierSet) -> list[Version]:
    """Return the versions that a specifier allows. A yanked version counts only if it is named exactly (PEP 592)."""
    is_exact = any(s.operator in ("==", "===") and "*" not in s.version for s in limit)
    known = {v.version: v for v in versions if is_exact or not v.is_yanked}
    return [known[text] for text in limit.filter(known)]


def _is_active(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Return whether a requirement applies with these extras. The installer evaluates other conditions."""
    if requirement.marker is None:
        return True
    named = {canonicalize_name(a or b) for a, b in _EXTRA.findall(str(requirement.marker))}
    return not named or bool(named & {canonicalize_name(extra) for extra in extras})

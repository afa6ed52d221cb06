"""The one module that decides who may do what. Pure; every route and every query uses it.

A caller may do something to an environment when three things allow it: the caller's role with the owner, the actions
of the token, and the environments that the token is for.

Each route declares its `Access`: the action it needs and its subject. `admit` compares the declaration with the token
before the body of the request is read. `require` decides for one environment as soon as the environment is known.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from hub_server.errors import BadRequest, Forbidden, NotFound, Unauthorized


class Action(StrEnum):
    """Actions that a token can allow."""

    READ = "read"
    """See and download private environments and evaluations."""
    PUBLISH = "publish"
    """Create environments and publish versions."""
    MANAGE = "manage"
    """Yank, delete, change visibility, fork into a team."""
    EVALUATE = "evaluate"
    """Upload evaluations."""
    SECRETS = "secrets"
    """Read and change secrets and variables."""
    ACCOUNT = "account"
    """Create and revoke tokens, create teams, change members."""
    ADMIN = "admin"
    """Act on everything. Only for administrators."""


EVERYTHING = frozenset(Action)
ROLE_ACTIONS: Mapping[str, frozenset[Action]] = {
    "owner": EVERYTHING - {Action.ADMIN},
    "admin": EVERYTHING - {Action.ADMIN},
    "member": frozenset({Action.READ, Action.PUBLISH, Action.EVALUATE}),
    "reader": frozenset({Action.READ}),
}


class About(StrEnum):
    """The subject of a route."""

    PUBLIC = "public"
    """No data of an owner. Credentials are ignored."""
    ADDRESS = "address"
    """The address is a secret and grants the permission."""
    CALLER = "caller"
    """The caller's own identity, as far as the token allows."""
    ACCOUNT = "account"
    """An account, a team, personal secrets. Tokens that are bound to environments are refused."""
    ENVIRONMENT = "environment"
    """One environment, or all environments that the caller may see."""
    EVALUATION = "evaluation"
    """Evaluations of the environments that the token is for."""


class Access(NamedTuple):
    """The access that a route declares."""

    action: Action | None
    """The action that the token must allow; None accepts every token."""
    about: About
    is_open: bool = False
    """Whether callers without a token are admitted. They see public objects."""


class Resource(NamedTuple):
    """An environment with the fields that decide about permissions."""

    owner_id: str
    full_name: str
    """`owner/normalized-name`."""
    visibility: str
    is_open: bool
    """Whether everyone may see a public environment: it is neither deleted nor quarantined."""


@dataclass(frozen=True)
class Principal:
    """The caller of a request."""

    user_id: str | None = None
    slug: str | None = None
    is_admin: bool = False
    token_id: str | None = None
    expires_at: datetime | None = None
    """When the token expires; None for a token that never expires."""
    actions: frozenset[str] = frozenset()
    environments: tuple[str, ...] = ()
    """Patterns `owner/name` with `*`. A single `*` covers all environments."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Owner id → role. The caller's own id has the role `owner`."""
    sees_public: bool = True

    @property
    def is_known(self) -> bool:
        """Whether the request had valid credentials."""
        return self.user_id is not None

    @property
    def is_unlimited_admin(self) -> bool:
        """Whether the caller is an administrator and the token allows to act as one."""
        return self.is_admin and Action.ADMIN in self.actions

    @property
    def is_everywhere(self) -> bool:
        """Whether the token covers all environments of the caller."""
        return "*" in self.environments or "*/*" in self.environments

    def covers(self, full_name: str) -> bool:
        """Return whether the token covers this environment."""
        return self.is_everywhere or any(fnmatchcase(full_name, p) for p in self.environments)

    def covers_owner(self, slug: str) -> bool:
        """Return whether the token covers any environment of this owner."""
        patterns = (pattern.partition("/") for pattern in self.environments)
        return self.is_everywhere or any(fnmatchcase(slug, owner) for owner, _, _ in patterns)

    def readable_owners(self) -> list[str]:
        """Return the ids of the owners whose private environments the caller may read."""
        if Action.READ not in self.actions:
            return []
        return [o for o, role in self.roles.items() if Action.READ in ROLE_ACTIONS.get(role, ())]


ANONYMOUS = Principal()

_PATTERN = re.compile(r"[a-z0-9*-]+(/[a-z0-9*-]+)?")


def environment_patterns(requested: Collection[str]) -> list[str]:
    """Return the patterns in the normalized spelling of names. Raises BadRequest for a pattern that cannot match.

    An empty collection is refused: a token for no environment would look like a token for all environments.
    """
    if not requested:
        raise BadRequest("Name at least one environment, or `*` for all.")
    patterns = [re.sub(r"[-_.]+", "-", pattern.lower()) for pattern in requested]
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise BadRequest(
                f"{pattern[:200]!r} is not a valid pattern: use owner/name, owner/* or *."
            )
    return sorted(set(patterns))


def admit(caller: Principal, access: Access) -> None:
    """Raise Unauthorized or Forbidden if this token may not use a route with this declaration at all.

    Every request passes here. `require`, `require_owner` and `readable_by` check roles and single environments.
    """
    if access.about in (About.PUBLIC, About.ADDRESS):
        return
    if not caller.is_known:
        if access.is_open:
            return
        raise Unauthorized("Log in first: this needs an API token.")
    if access.action is not None and not access.is_open:
        require_account(caller, access.action)
    if access.about is About.ACCOUNT and not caller.is_everywhere:
        raise Forbidden(
            f"This token is for {', '.join(caller.environments)[:200]} only. Use a token for all environments (*)."
        )


def require_not_stronger(
    caller: Principal, actions: Collection[str], environments: Collection[str]
) -> None:
    """Raise Forbidden if the caller's token does not cover these actions and patterns.

    `environments` are in the spelling of `environment_patterns`. A pattern is covered if one of the caller's
    patterns matches
    it as text: a `*` in the pattern is then matched by a `*` of the caller's pattern.
    """
    excess = sorted(set(actions) - caller.actions)
    if excess:
        raise Forbidden(f"This token may not hand on {excess}, which it does not have.")
    for pattern in environments:
        if not caller.covers(pattern):
            raise Forbidden(f"This token does not cover {pattern!r} and cannot hand it on.")


def may(principal: Principal, action: Action, resource: Resource) -> bool:
    """Return whether the caller may do this to the environment."""
    if action is Action.READ and resource.visibility == "PUBLIC" and resource.is_open:
        return principal.sees_public or principal.is_known
    if action not in principal.actions or not principal.covers(resource.full_name):
        return False
    if principal.is_unlimited_admin:
        return True
    return action in ROLE_ACTIONS.get(principal.roles.get(resource.owner_id, ""), ())


def require(principal: Principal, action: Action, resource: Resource | None, what: str) -> None:
    """Raise an error that reveals nothing if the caller may not do this to the environment.

    Raises NotFound if the caller may not read the environment, so that a private one looks like a missing one;
    Unauthorized if the environment is visible and credentials are missing; Forbidden otherwise.
    """
    if resource is None or not may(principal, Action.READ, resource):
        raise NotFound(f"{what} not found.")
    if may(principal, action, resource):
        return
    if not principal.is_known:
        raise Unauthorized("Log in first: this needs an API token.")
    raise Forbidden(f"You or this token may not {action} {what}.")


def require_owner(principal: Principal, action: Action, owner_id: str, slug: str) -> None:
    """Raise Unauthorized or Forbidden if the caller may not act for this owner."""
    require_account(principal, action)
    role = principal.roles.get(owner_id, "")
    if principal.is_unlimited_admin or action in ROLE_ACTIONS.get(role, ()):
        return
    raise Forbidden(f"You may not {action} as {slug!r}.")


def require_account(principal: Principal, action: Action) -> None:
    """Raise Unauthorized or Forbidden if the token does not allow the action at all."""
    if not principal.is_known:
        raise Unauthorized("Log in first: this needs an API token.")
    if action not in principal.actions:
        raise Forbidden(f"This token may not {action}; it may {sorted(principal.actions)}.")

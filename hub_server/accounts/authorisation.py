"""Who may do what: the one resource that decides. Pure; every route and every query asks here.

A caller may do something to an environment when three things allow it: the role in the owning team
(or being the owner), the actions of the token in use, and the environments the token is for.

Each route declares its `Access`: the action it needs and what it is about. `admit` compares the declaration with the
token before the body of the request is read. `require` decides for one environment, as soon as it is known which one.
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
    """What a token can be allowed to do."""

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
    """Make and revoke tokens, found teams, change members."""
    ADMIN = "admin"
    """Act on everything; only for administrators."""


EVERYTHING = frozenset(Action)
ROLE_ACTIONS: Mapping[str, frozenset[Action]] = {
    "owner": EVERYTHING - {Action.ADMIN},
    "admin": EVERYTHING - {Action.ADMIN},
    "member": frozenset({Action.READ, Action.PUBLISH, Action.EVALUATE}),
    "reader": frozenset({Action.READ}),
}


class About(StrEnum):
    """What a route is about."""

    PUBLIC = "public"
    """No data of an owner. Credentials are not looked at."""
    ADDRESS = "address"
    """The address is secret and is the permission."""
    CALLER = "caller"
    """The caller's own identity, as far as the token goes."""
    ACCOUNT = "account"
    """An account, a team, personal secrets. A token that is bound to environments is refused."""
    ENVIRONMENT = "environment"
    """One environment, or those that the caller may see."""
    EVALUATION = "evaluation"
    """Evaluations of the environments that the token is for."""


class Access(NamedTuple):
    """What a route declares."""

    action: Action | None
    """What a token must be allowed to do; None for any token."""
    about: About
    is_open: bool = False
    """Whether callers without a token may ask; public things are shown to them."""


class Resource(NamedTuple):
    """An environment, as far as permission goes."""

    owner_id: str
    full_name: str
    """`owner/normalized-name`."""
    visibility: str
    is_open: bool
    """Whether strangers may see it when it is public (not deleted, not quarantined)."""


@dataclass(frozen=True)
class Principal:
    """The caller of a request."""

    user_id: str | None = None
    slug: str | None = None
    is_admin: bool = False
    token_id: str | None = None
    expires_at: datetime | None = None
    """End of the token; None for one without an end."""
    actions: frozenset[str] = frozenset()
    environments: tuple[str, ...] = ()
    """Patterns `owner/name` with `*`; `*` alone is everywhere."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Owner id → role, the caller's own id with `owner` included."""
    sees_public: bool = True

    @property
    def is_known(self) -> bool:
        """Whether there were valid credentials."""
        return self.user_id is not None

    @property
    def is_unlimited_admin(self) -> bool:
        """Whether the token lets an administrator act as one."""
        return self.is_admin and Action.ADMIN in self.actions

    @property
    def is_everywhere(self) -> bool:
        """Whether the token is good for all environments of the caller."""
        return "*" in self.environments or "*/*" in self.environments

    def covers(self, full_name: str) -> bool:
        """Whether the token is meant for this environment."""
        return self.is_everywhere or any(fnmatchcase(full_name, p) for p in self.environments)

    def covers_owner(self, slug: str) -> bool:
        """Whether the token is meant for any environment of this owner."""
        patterns = (pattern.partition("/") for pattern in self.environments)
        return self.is_everywhere or any(fnmatchcase(slug, owner) for owner, _, _ in patterns)

    def readable_owners(self) -> list[str]:
        """Ids of the owners whose private environments the caller may read."""
        if Action.READ not in self.actions:
            return []
        return [o for o, role in self.roles.items() if Action.READ in ROLE_ACTIONS.get(role, ())]


ANONYMOUS = Principal()

_PATTERN = re.compile(r"[a-z0-9*-]+(/[a-z0-9*-]+)?")


def environment_patterns(wanted: Collection[str]) -> list[str]:
    """The patterns in the spelling in which names are compared. Raises BadRequest for one that cannot match.

    An empty collection is refused: a token for no environment would look like a token for all of them.
    """
    if not wanted:
        raise BadRequest("Name at least one environment, or `*` for all.")
    patterns = [re.sub(r"[-_.]+", "-", pattern.lower()) for pattern in wanted]
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise BadRequest(
                f"{pattern[:200]!r} is not a valid pattern: use owner/name, owner/* or *."
            )
    return sorted(set(patterns))


def admit(caller: Principal, access: Access) -> None:
    """Return when this token may use a route with this declaration at all; else Unauthorized or Forbidden.

    Every request passes here. Roles and single environments are for `require`, `require_owner` and `readable_by`.
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
    """Return when the caller's token covers these actions and patterns; Forbidden otherwise.

    `environments` are in the spelling of `environment_patterns`. A pattern is covered when one of the caller's
    patterns matches it as a text: a `*` in it then stands where the caller's pattern has one too.
    """
    excess = sorted(set(actions) - caller.actions)
    if excess:
        raise Forbidden(f"This token may not hand on {excess}, which it does not have.")
    for pattern in environments:
        if not caller.covers(pattern):
            raise Forbidden(f"This token is not for {pattern!r}; it cannot hand that on.")


def may(principal: Principal, action: Action, resource: Resource) -> bool:
    """Whether the caller may do this to the environment."""
    if action is Action.READ and resource.visibility == "PUBLIC" and resource.is_open:
        return principal.sees_public or principal.is_known
    if action not in principal.actions or not principal.covers(resource.full_name):
        return False
    if principal.is_unlimited_admin:
        return True
    return action in ROLE_ACTIONS.get(principal.roles.get(resource.owner_id, ""), ())


def require(principal: Principal, action: Action, resource: Resource | None, what: str) -> None:
    """Return when the caller may; otherwise raise what gives nothing away.

    Raises NotFound when the caller may not even read it, so that a private thing looks exactly like a
    missing one; Unauthorized when it can be seen and credentials are lacking; Forbidden otherwise.
    """
    if resource is None or not may(principal, Action.READ, resource):
        raise NotFound(f"{what} not found.")
    if may(principal, action, resource):
        return
    if not principal.is_known:
        raise Unauthorized("Log in first: this needs an API token.")
    raise Forbidden(f"You or this token may not {action} {what}.")


def require_owner(principal: Principal, action: Action, owner_id: str, slug: str) -> None:
    """Return when the caller may act in this owner's name; else Unauthorized or Forbidden."""
    require_account(principal, action)
    role = principal.roles.get(owner_id, "")
    if principal.is_unlimited_admin or action in ROLE_ACTIONS.get(role, ()):
        return
    raise Forbidden(f"You may not {action} as {slug!r}.")


def require_account(principal: Principal, action: Action) -> None:
    """Return when the token allows the action at all; else Unauthorized or Forbidden."""
    if not principal.is_known:
        raise Unauthorized("Log in first: this needs an API token.")
    if action not in principal.actions:
        raise Forbidden(f"This token may not {action}; it may {sorted(principal.actions)}.")

"""People, teams and tokens."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sqlalchemy import bindparam, delete, func, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts import credentials
from hub_server.accounts.authorisation import (
    EVERYTHING,
    Action,
    Principal,
    environment_patterns,
    require_account,
    require_not_stronger,
    require_owner,
)
from hub_server.accounts.models import FormerName, Membership, Owner, Token, User
from hub_server.changes.service import record_audit, record_change
from hub_server.database import utc_now
from hub_server.environments.models import Environment
from hub_server.environments.names import check_owner_name, skeleton
from hub_server.errors import BadRequest, Conflict, Forbidden, NotFound, TooLarge, Unauthorized
from verifiers.hub.wire import MemberRequest, TeamRequest, TokenRequest

MAX_TOKENS = 500
"""Maximum number of working tokens per person."""
MAX_MEMBERS = 500
"""Maximum number of people per team: the list of them is one answer."""
DEFAULT_ACTIONS = tuple(a.value for a in Action if a is not Action.ADMIN)


class NewToken(NamedTuple):
    """A new token. Only here is its text known."""

    text: str
    row: Token


_BY_FINGERPRINT = (
    select(
        Token.id,
        Token.user_id,
        Token.actions,
        Token.environments,
        Token.expires_at,
        Token.revoked_at,
        User.is_admin,
        User.disabled_at,
        Owner.slug,
        Membership.team_id,
        Membership.role,
    )
    .join(User, User.id == Token.user_id)
    .join(Owner, Owner.id == User.id)
    .outerjoin(Membership, Membership.user_id == User.id)
    .where(Token.sha256 == bindparam("sha256"))
)
"""One row per team of the person, or one row without a team. Built once, because every request with a token runs it."""


async def authenticate(session: AsyncSession, token: str) -> Principal:
    """Return the caller of a token. Raises Unauthorized with the same message for every reason."""
    refused = Unauthorized("The API token is not valid: unknown, expired or revoked.")
    if not credentials.is_token(token):
        raise refused
    rows = (
        await session.execute(_BY_FINGERPRINT, {"sha256": credentials.fingerprint(token)})
    ).all()
    if not rows:
        raise refused
    row = rows[0]
    expired = row.expires_at is not None and row.expires_at <= utc_now()
    if row.revoked_at is not None or expired or row.disabled_at is not None:
        raise refused
    roles = {joined.team_id: joined.role for joined in rows if joined.team_id is not None}
    return Principal(
        user_id=row.user_id,
        slug=row.slug,
        is_admin=row.is_admin,
        token_id=row.id,
        expires_at=row.expires_at,
        actions=frozenset(row.actions),
        environments=tuple(row.environments),
        roles={**roles, row.user_id: "owner"},
    )


async def create_user(
    session: AsyncSession,
    slug: str,
    *,
    password: str | None = None,
    email: str | None = None,
    is_admin: bool = False,
) -> User:
    """Create a person. Raises Conflict if the name is taken or looks like a taken one."""
    password_hash = await credentials.hash_password(password) if password else None
    owner = await _claim_name(session, slug, kind="user")
    user = User(id=owner.id, email=email or None, password_hash=password_hash, is_admin=is_admin)
    session.add(user)
    try:
        await session.flush()
    except IntegrityError as error:
        raise Conflict(f"The address {email!r} belongs to another account.") from error
    return user


async def _claim_name(session: AsyncSession, slug: str, *, kind: str) -> Owner:
    check_owner_name(slug)
    await _check_free(session, slug)
    owner = Owner(slug=slug, skeleton=skeleton(slug), kind=kind, display_name=slug)
    session.add(owner)
    try:
        await session.flush()
    except IntegrityError as error:
        raise Conflict(f"The name {slug!r} is already taken.") from error
    return owner


async def _check_free(session: AsyncSession, slug: str, except_owner_id: str = "") -> None:
    shape = skeleton(slug)
    taken = await session.scalar(
        select(Owner.slug).where(Owner.skeleton == shape, Owner.id != except_owner_id)
    ) or await session.scalar(
        select(FormerName.slug).where(
            FormerName.skeleton == shape, FormerName.owner_id != except_owner_id
        )
    )
    if taken == slug:
        raise Conflict(f"The name {slug!r} is already taken.")
    if taken:
        raise Conflict(f"The name {slug!r} looks like {taken!r}, which is already taken.")


async def rename(session: AsyncSession, caller: Principal, slug: str) -> Owner:
    """Change the caller's public name. The old name leads to the new one forever."""
    require_account(caller, Action.ACCOUNT)
    owner = await session.get_one(Owner, caller.user_id)
    if owner.slug == slug:
        return owner
    check_owner_name(slug)
    await _check_free(session, slug, except_owner_id=owner.id)
    if await session.get(FormerName, owner.slug) is None:
        session.add(FormerName(slug=owner.slug, skeleton=skeleton(owner.slug), owner_id=owner.id))
    former, owner.slug, owner.skeleton = owner.slug, slug, skeleton(slug)
    await session.execute(
        update(Environment)
        .where(Environment.owner_id == owner.id)
        .values(full_name=slug + "/" + Environment.normalized_name)
    )
    try:
        await session.flush()
    except IntegrityError as error:
        raise Conflict(f"The name {slug!r} is already taken.") from error
    record_audit(session, caller, "rename", slug, former=former)
    for name in (former, slug):
        await record_change(session, "rename", environment_id="", owner=name, name="")
    return owner


_BY_SLUG = select(Owner).where(Owner.slug == bindparam("slug"))


async def owner_by_slug(session: AsyncSession, slug: str) -> Owner | None:
    """Return the owner with this name, present or former."""
    owner = await session.scalar(_BY_SLUG, {"slug": slug.lower()})
    if owner is None:
        former = await session.get(FormerName, slug.lower())
        owner = await session.get(Owner, former.owner_id) if former else None
    return owner


async def owner_by_id(session: AsyncSession, owner_id: str) -> Owner | None:
    """Return the owner with this id."""
    return await session.get(Owner, owner_id)


async def user_by_login(session: AsyncSession, username: str) -> tuple[User, str] | None:
    """Return the person and public name behind a username or e-mail address."""
    query = (
        select(User, Owner.slug)
        .join(Owner, Owner.id == User.id)
        .where((Owner.slug == username.lower()) | (User.email == username))
    )
    found = (await session.execute(query)).first()
    return (found[0], found[1]) if found else None


async def account_of(session: AsyncSession, caller: Principal) -> tuple[User, Owner]:
    """Return the caller's own rows."""
    require_account(caller, Action.READ)
    return (
        await session.get_one(User, caller.user_id),
        await session.get_one(Owner, caller.user_id),
    )


async def set_password(
    session: AsyncSession, slug: str, password: str, *, revoke_tokens: bool = False
) -> int:
    """Replace a person's password and revoke the sessions that were opened with the old one.

    Returns the number of API tokens that still work. With `revoke_tokens` they are revoked too.
    """
    found = await user_by_login(session, slug)
    if found is None:
        raise NotFound(f"There is no user {slug!r}.")
    user, _ = found
    user.password_hash = await credentials.hash_password(password)
    working = (
        Token.user_id == user.id,
        Token.revoked_at.is_(None),
        or_(Token.expires_at.is_(None), Token.expires_at > utc_now()),
    )
    ended = working if revoke_tokens else (*working, Token.kind == "session")
    await session.execute(update(Token).where(*ended).values(revoked_at=utc_now()))
    query = select(func.count()).select_from(Token).where(*working, Token.kind == "api")
    return await session.scalar(query) or 0


async def set_disabled(session: AsyncSession, slug: str, *, disabled: bool) -> None:
    """Disable a person's account, or enable it again."""
    found = await user_by_login(session, slug)
    if found is None:
        raise NotFound(f"There is no user {slug!r}.")
    found[0].disabled_at = utc_now() if disabled else None


async def users(session: AsyncSession) -> list[tuple[User, str]]:
    """Return all people with their public names."""
    query = select(User, Owner.slug).join(Owner, Owner.id == User.id).order_by(Owner.slug)
    return list(await session.execute(query))


async def has_users(session: AsyncSession) -> bool:
    """Return whether the hub has been set up."""
    return await session.scalar(select(User.id).limit(1)) is not None


# --- tokens -----------------------------------------------------------------------------------


async def issue_token(
    session: AsyncSession,
    user_id: str,
    *,
    name: str,
    actions: Collection[str] = DEFAULT_ACTIONS,
    environments: Collection[str] | None = None,
    expires_at: datetime | None = None,
    kind: str = "api",
    text: str | None = None,
) -> NewToken:
    """Create a token for a person without checking permissions. Raises BadRequest for an unknown action."""
    unknown = set(actions) - {action.value for action in EVERYTHING}
    if unknown:
        known = ", ".join(sorted(EVERYTHING))
        raise BadRequest(f"Unknown actions: {', '.join(sorted(unknown))}. Known: {known}.")
    text = text or credentials.new_token()
    row = Token(
        user_id=user_id,
        sha256=credentials.fingerprint(text),
        prefix=credentials.token_prefix(text),
        name=name,
        actions=sorted(set(actions)),
        environments=environment_patterns(["*"] if environments is None else environments),
        expires_at=expires_at,
        kind=kind,
    )
    session.add(row)
    await session.flush()
    return NewToken(text, row)


async def create_token(
    session: AsyncSession, caller: Principal, requested: TokenRequest
) -> NewToken:
    """Create a token that allows no more actions and environments, and lasts no longer, than the caller's token."""
    require_account(caller, Action.ACCOUNT)
    patterns = environment_patterns(requested.environments)
    require_not_stronger(caller, set(requested.actions) & EVERYTHING, patterns)
    working = await session.scalar(
        select(func.count())
        .select_from(Token)
        .where(
            Token.user_id == caller.user_id,
            Token.kind == "api",
            Token.revoked_at.is_(None),
            or_(Token.expires_at.is_(None), Token.expires_at > utc_now()),
        )
    )
    if (working or 0) >= MAX_TOKENS:
        raise BadRequest(f"You have {working} tokens; revoke some first.")
    lifetime = requested.expires_in_s
    ends = utc_now() + timedelta(seconds=lifetime) if lifetime else None
    new = await issue_token(
        session,
        caller.user_id or "",
        name=requested.name,
        actions=requested.actions,
        environments=patterns,
        expires_at=end_within(caller, ends),
    )
    record_audit(session, caller, "token.create", new.row.id, actions=new.row.actions)
    return new


def end_within(caller: Principal, requested: datetime | None) -> datetime | None:
    """Return when a new token of the caller expires: at the requested time, but not after the caller's own token."""
    if caller.expires_at is None:
        return requested
    return min(requested, caller.expires_at) if requested else caller.expires_at


async def install_token(
    session: AsyncSession, caller: Principal, secret: bytes, names: list[str], lifetime_s: float
) -> NewToken:
    """Return a token that reads these environments: the same token for all requests within half its lifetime.

    It expires after at most `lifetime_s`, and never after the caller's own token. Its text is derived from
    `secret`, so that
    repeated requests store no further row.
    """
    require_account(caller, Action.READ)
    require_not_stronger(caller, (), names)
    half_s = lifetime_s / 2
    slot = int(utc_now().timestamp() / half_s)
    ends = end_within(caller, datetime.fromtimestamp((slot + 2) * half_s, UTC))
    text = credentials.derived_token(
        secret, f"{caller.token_id}|{slot}|{half_s}|{'|'.join(sorted(names))}"
    )
    query = select(Token).where(Token.sha256 == credentials.fingerprint(text))
    row = await session.scalar(query)
    if row is not None:
        return NewToken(text, row)
    # Expired tokens are removed first, so that a person's rows are bounded by the tokens in use.
    await session.execute(
        delete(Token).where(
            Token.user_id == caller.user_id, Token.kind == "install", Token.expires_at < utc_now()
        )
    )
    return await issue_token(
        session,
        caller.user_id or "",
        name=f"install {', '.join(names)}"[:128],
        actions=[Action.READ.value],
        environments=names,
        expires_at=ends,
        kind="install",
        text=text,
    )


async def list_tokens(session: AsyncSession, caller: Principal) -> list[Token]:
    """Return the caller's working tokens, newest first."""
    require_account(caller, Action.ACCOUNT)
    query = select(Token).where(
        Token.user_id == caller.user_id, Token.revoked_at.is_(None), Token.kind == "api"
    )
    return list(await session.scalars(query.order_by(Token.created_at.desc())))


async def revoke_token(session: AsyncSession, caller: Principal, token_id: str) -> None:
    """Revoke a token of the caller. The next request with it fails in every worker."""
    require_account(caller, Action.ACCOUNT)
    if not caller.is_everywhere and token_id != caller.token_id:
        raise Forbidden("A token that is bound to environments can revoke only itself.")
    token = await session.get(Token, token_id)
    if token is None or (token.user_id != caller.user_id and not caller.is_unlimited_admin):
        raise NotFound(f"Token {token_id} not found.")
    token.revoked_at = token.revoked_at or utc_now()
    record_audit(session, caller, "token.revoke", token.id)


async def revoke_leaked(session: AsyncSession, text: str) -> bool:
    """Revoke a token that was found in public, and return whether it was valid. Any caller may report it."""
    token = await session.scalar(select(Token).where(Token.sha256 == credentials.fingerprint(text)))
    if token is None or token.revoked_at is not None:
        return False
    token.revoked_at = utc_now()
    record_audit(session, Principal(), "token.leaked", token.id)
    return True


async def note_use(session: AsyncSession, used: dict[str, datetime]) -> None:
    """Store when tokens (by id) were last used."""
    for token_id, moment in used.items():
        await session.execute(update(Token).where(Token.id == token_id).values(last_used_at=moment))


# --- teams ------------------------------------------------------------------------------------


async def create_team(
    session: AsyncSession, caller: Principal, requested: TeamRequest, max_teams: int
) -> Owner:
    """Create a team with the caller as its owner. Raises TooLarge if the caller has created `max_teams`."""
    require_account(caller, Action.ACCOUNT)
    # The founder's row is locked, so that two requests at once cannot both create the last allowed team.
    await session.get_one(User, caller.user_id, with_for_update=True)
    founded = await session.scalar(
        select(func.count())
        .select_from(Membership)
        .where(Membership.user_id == caller.user_id, Membership.role == "owner")
    )
    if (founded or 0) >= max_teams:
        raise TooLarge(
            f"You have founded {founded} teams, the maximum on this hub. Ask the operator."
        )
    team = await _claim_name(session, requested.slug, kind="team")
    team.display_name = requested.name or requested.slug
    session.add(Membership(team_id=team.id, user_id=caller.user_id, role="owner"))
    record_audit(session, caller, "team.create", requested.slug)
    return team


async def teams_of(
    session: AsyncSession, caller: Principal, offset: int, limit: int
) -> tuple[list[tuple[Owner, Membership]], int]:
    """Return a page of the caller's teams with the caller's roles, and the number of teams.

    A token that is bound to environments shows only the teams that own any of them.
    """
    require_account(caller, Action.READ)
    query = (
        select(Owner, Membership)
        .join(Membership, Membership.team_id == Owner.id)
        .where(Membership.user_id == caller.user_id)
        .order_by(Owner.slug)
    )
    rows = [row for row in await session.execute(query) if caller.covers_owner(row[0].slug)]
    return [(team, joined) for team, joined in rows[offset : offset + limit]], len(rows)


async def team_members(
    session: AsyncSession, caller: Principal, team_id: str
) -> list[tuple[Membership, User, Owner]]:
    """Return the members of a team. Only members may see them."""
    require_account(caller, Action.READ)
    if team_id not in caller.roles and not caller.is_unlimited_admin:
        raise NotFound(f"Team {team_id} not found.")
    query = (
        select(Membership, User, Owner)
        .join(User, User.id == Membership.user_id)
        .join(Owner, Owner.id == User.id)
        .where(Membership.team_id == team_id)
        .order_by(Owner.slug)
    )
    return list(await session.execute(query))


async def set_member(
    session: AsyncSession, caller: Principal, team_id: str, requested: MemberRequest
) -> None:
    """Add a person to a team, or change the person's role."""
    team = await _team_to_change(session, caller, team_id)
    user = await owner_by_slug(session, requested.user)
    if user is None or user.kind != "user":
        raise NotFound(f"There is no user {requested.user!r}.")
    row = await session.get(Membership, (team.id, user.id))
    if row is not None and row.role == "owner":
        raise Forbidden(f"{requested.user!r} founded the team; this role cannot change.")
    if row is None:
        count = select(func.count()).select_from(Membership).where(Membership.team_id == team.id)
        if (await session.scalar(count) or 0) >= MAX_MEMBERS:
            raise TooLarge(f"The team {team.slug} has {MAX_MEMBERS} members, the maximum.")
        session.add(Membership(team_id=team.id, user_id=user.id, role=requested.role))
    else:
        row.role = requested.role
    record_audit(session, caller, "team.member", f"{team.slug}/{user.slug}", role=requested.role)


async def remove_member(
    session: AsyncSession, caller: Principal, team_id: str, user_slug: str
) -> None:
    """Remove a person from a team."""
    team = await _team_to_change(session, caller, team_id)
    user = await owner_by_slug(session, user_slug)
    row = await session.get(Membership, (team.id, user.id)) if user else None
    if row is None:
        raise NotFound(f"{user_slug!r} is not in this team.")
    if row.role == "owner":
        raise Forbidden(f"{user_slug!r} founded the team and cannot be removed.")
    await session.delete(row)
    record_audit(session, caller, "team.remove", f"{team.slug}/{user_slug}")


async def _team_to_change(session: AsyncSession, caller: Principal, team_id: str) -> Owner:
    require_account(caller, Action.ACCOUNT)
    team = await session.get(Owner, team_id)
    is_member = team_id in caller.roles or caller.is_unlimited_admin
    if team is None or team.kind != "team" or not is_member:
        raise NotFound(f"Team {team_id} not found.")
    require_owner(caller, Action.ACCOUNT, team.id, team.slug)
    return team

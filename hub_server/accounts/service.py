"""People, teams and tokens."""

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts import passwords, tokens
from hub_server.accounts.authorisation import (
    EVERYTHING,
    Action,
    Principal,
    require_account,
    require_owner,
)
from hub_server.accounts.models import FormerName, Membership, Owner, Token, User
from hub_server.changes.service import record_audit, record_change
from hub_server.database import utc_now
from hub_server.environments.models import Environment
from hub_server.environments.names import check_owner_name, skeleton
from hub_server.errors import BadRequest, Conflict, Forbidden, NotFound, Unauthorized
from verifiers.hub.wire import MemberRequest, TeamRequest, TokenRequest

MAX_TOKENS = 500
"""Working tokens of one person."""
DEFAULT_ACTIONS = tuple(a.value for a in Action if a is not Action.ADMIN)


class NewToken(NamedTuple):
    """A token just made; the only time its text is known."""

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
"""A row for each team of the person, or one: made once, because every request with a token runs it."""


async def authenticate(session: AsyncSession, token: str) -> Principal:
    """The caller behind a token. Raises Unauthorized, in the same words for every reason."""
    refused = Unauthorized("The API token is not valid: unknown, expired or revoked.")
    if not tokens.is_well_formed(token):
        raise refused
    rows = (await session.execute(_BY_FINGERPRINT, {"sha256": tokens.fingerprint(token)})).all()
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
    """A new person. Raises Conflict when the name is taken or looks like one that is."""
    password_hash = await passwords.hashed(password) if password else None
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
    """Give the caller another public name; the old one leads to the new one for ever."""
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
    """The owner with this name, now or formerly."""
    owner = await session.scalar(_BY_SLUG, {"slug": slug.lower()})
    if owner is None:
        former = await session.get(FormerName, slug.lower())
        owner = await session.get(Owner, former.owner_id) if former else None
    return owner


async def owner_by_id(session: AsyncSession, owner_id: str) -> Owner | None:
    """The owner with this id."""
    return await session.get(Owner, owner_id)


async def user_by_login(session: AsyncSession, username: str) -> tuple[User, str] | None:
    """The person and public name behind a username or e-mail address."""
    query = (
        select(User, Owner.slug)
        .join(Owner, Owner.id == User.id)
        .where((Owner.slug == username.lower()) | (User.email == username))
    )
    found = (await session.execute(query)).first()
    return (found[0], found[1]) if found else None


async def account_of(session: AsyncSession, caller: Principal) -> tuple[User, Owner]:
    """The caller's own rows."""
    require_account(caller, Action.READ)
    return (
        await session.get_one(User, caller.user_id),
        await session.get_one(Owner, caller.user_id),
    )


async def set_password(session: AsyncSession, slug: str, password: str) -> None:
    """Replace a person's password and end the sessions that were opened with the old one."""
    found = await user_by_login(session, slug)
    if found is None:
        raise NotFound(f"There is no user {slug!r}.")
    user, _ = found
    user.password_hash = await passwords.hashed(password)
    await session.execute(
        update(Token)
        .where(Token.user_id == user.id, Token.kind == "session", Token.revoked_at.is_(None))
        .values(revoked_at=utc_now())
    )


async def set_disabled(session: AsyncSession, slug: str, *, disabled: bool) -> None:
    """Lock a person out, or let them in again."""
    found = await user_by_login(session, slug)
    if found is None:
        raise NotFound(f"There is no user {slug!r}.")
    found[0].disabled_at = utc_now() if disabled else None


async def users(session: AsyncSession) -> list[tuple[User, str]]:
    """Everybody, with public names."""
    query = select(User, Owner.slug).join(Owner, Owner.id == User.id).order_by(Owner.slug)
    return list(await session.execute(query))


async def has_users(session: AsyncSession) -> bool:
    """Whether the hub has been set up."""
    return await session.scalar(select(User.id).limit(1)) is not None


# --- tokens -----------------------------------------------------------------------------------


async def issue_token(
    session: AsyncSession,
    user_id: str,
    *,
    name: str,
    actions: tuple[str, ...] | list[str] = DEFAULT_ACTIONS,
    environments: list[str] | None = None,
    expires_at: datetime | None = None,
    kind: str = "api",
) -> NewToken:
    """A new token for a person, without asking whether the person may. BadRequest for an unknown action."""
    unknown = set(actions) - {action.value for action in EVERYTHING}
    if unknown:
        known = ", ".join(sorted(EVERYTHING))
        raise BadRequest(f"Unknown actions: {', '.join(sorted(unknown))}. Known: {known}.")
    text = tokens.mint()
    row = Token(
        user_id=user_id,
        sha256=tokens.fingerprint(text),
        prefix=tokens.display_prefix(text),
        name=name,
        actions=sorted(set(actions)),
        environments=environments or ["*"],
        expires_at=expires_at,
        kind=kind,
    )
    session.add(row)
    await session.flush()
    return NewToken(text, row)


async def create_token(session: AsyncSession, caller: Principal, wanted: TokenRequest) -> NewToken:
    """A token that can do no more, in no more places, than the one that asks for it."""
    require_account(caller, Action.ACCOUNT)
    excess = set(wanted.actions) & EVERYTHING - caller.actions
    if excess:
        raise Forbidden(f"This token may not hand on {sorted(excess)}, which it does not have.")
    patterns = [pattern.lower().replace("_", "-") for pattern in wanted.environments]
    for pattern in patterns:
        if not caller.is_everywhere and pattern not in caller.environments:
            raise Forbidden(f"This token is not for {pattern!r}; it cannot hand that on.")
    working = await session.scalar(
        select(func.count())
        .select_from(Token)
        .where(Token.user_id == caller.user_id, Token.kind == "api", Token.revoked_at.is_(None))
    )
    if (working or 0) >= MAX_TOKENS:
        raise BadRequest(f"You have {working} tokens; revoke some first.")
    lifetime = wanted.expires_in_s
    ends = utc_now() + timedelta(seconds=lifetime) if lifetime else None
    new = await issue_token(
        session,
        caller.user_id or "",
        name=wanted.name,
        actions=wanted.actions,
        environments=patterns,
        expires_at=await end_within(session, caller, ends),
    )
    record_audit(session, caller, "token.create", new.row.id, actions=new.row.actions)
    return new


async def end_within(
    session: AsyncSession, caller: Principal, wanted: datetime | None
) -> datetime | None:
    """When a token that the caller makes ends: as wanted, but not after the caller's own.

    Otherwise a token that ends could go on for ever through one that it made. A session is no limit: behind it is
    a password.
    """
    own = await session.get(Token, caller.token_id) if caller.token_id else None
    if own is None or own.expires_at is None or own.kind == "session":
        return wanted
    return min(wanted, own.expires_at) if wanted else own.expires_at


async def list_tokens(session: AsyncSession, caller: Principal) -> list[Token]:
    """The caller's working tokens, newest first."""
    require_account(caller, Action.ACCOUNT)
    query = select(Token).where(
        Token.user_id == caller.user_id, Token.revoked_at.is_(None), Token.kind == "api"
    )
    return list(await session.scalars(query.order_by(Token.created_at.desc())))


async def revoke_token(session: AsyncSession, caller: Principal, token_id: str) -> None:
    """End a token of the caller; the next request with it fails in every worker."""
    require_account(caller, Action.ACCOUNT)
    token = await session.get(Token, token_id)
    if token is None or (token.user_id != caller.user_id and not caller.is_unlimited_admin):
        raise NotFound(f"Token {token_id} not found.")
    token.revoked_at = token.revoked_at or utc_now()
    record_audit(session, caller, "token.revoke", token.id)


async def revoke_leaked(session: AsyncSession, text: str) -> bool:
    """End a token that was found in public, whoever reports it; False when it is none of ours."""
    token = await session.scalar(select(Token).where(Token.sha256 == tokens.fingerprint(text)))
    if token is None or token.revoked_at is not None:
        return False
    token.revoked_at = utc_now()
    record_audit(session, Principal(), "token.leaked", token.id)
    return True


async def note_use(session: AsyncSession, used: dict[str, datetime]) -> None:
    """Remember when tokens (by id) were last used."""
    for token_id, moment in used.items():
        await session.execute(update(Token).where(Token.id == token_id).values(last_used_at=moment))


# --- teams ------------------------------------------------------------------------------------


async def create_team(session: AsyncSession, caller: Principal, wanted: TeamRequest) -> Owner:
    """A new team with the caller as its owner."""
    require_account(caller, Action.ACCOUNT)
    team = await _claim_name(session, wanted.slug, kind="team")
    team.display_name = wanted.name or wanted.slug
    session.add(Membership(team_id=team.id, user_id=caller.user_id, role="owner"))
    record_audit(session, caller, "team.create", wanted.slug)
    return team


async def teams_of(
    session: AsyncSession, caller: Principal, offset: int, limit: int
) -> tuple[list[tuple[Owner, Membership]], int]:
    """A page of the caller's teams with the caller's role, and how many there are."""
    require_account(caller, Action.READ)
    mine = Membership.user_id == caller.user_id
    query = (
        select(Owner, Membership)
        .join(Membership, Membership.team_id == Owner.id)
        .where(mine)
        .order_by(Owner.slug)
    )
    total = await session.scalar(select(func.count()).select_from(Membership).where(mine))
    rows = await session.execute(query.offset(offset).limit(limit))
    return list(rows), total or 0


async def team_members(
    session: AsyncSession, caller: Principal, team_id: str
) -> list[tuple[Membership, User, Owner]]:
    """The people of a team; only for its members."""
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
    session: AsyncSession, caller: Principal, team_id: str, wanted: MemberRequest
) -> None:
    """Add a person to a team or change the role."""
    team = await _team_to_change(session, caller, team_id)
    user = await owner_by_slug(session, wanted.user)
    if user is None or user.kind != "user":
        raise NotFound(f"There is no user {wanted.user!r}.")
    row = await session.get(Membership, (team.id, user.id))
    if row is not None and row.role == "owner":
        raise Forbidden(f"{wanted.user!r} founded the team; that role stays.")
    if row is None:
        session.add(Membership(team_id=team.id, user_id=user.id, role=wanted.role))
    else:
        row.role = wanted.role
    record_audit(session, caller, "team.member", f"{team.slug}/{user.slug}", role=wanted.role)


async def remove_member(
    session: AsyncSession, caller: Principal, team_id: str, user_slug: str
) -> None:
    """Take a person out of a team."""
    team = await _team_to_change(session, caller, team_id)
    user = await owner_by_slug(session, user_slug)
    row = await session.get(Membership, (team.id, user.id)) if user else None
    if row is None:
        raise NotFound(f"{user_slug!r} is not in this team.")
    if row.role == "owner":
        raise Forbidden(f"{user_slug!r} founded the team and stays.")
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

"""Ways to a token. Each returns a token once and reveals nothing about which accounts exist."""

import base64
import hashlib
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts import credentials
from hub_server.accounts.authorisation import Action, Principal, require_account
from hub_server.accounts.models import User
from hub_server.accounts.service import (
    DEFAULT_ACTIONS,
    NewToken,
    create_user,
    has_users,
    issue_token,
    user_by_login,
)
from hub_server.changes.service import record_audit
from hub_server.database import Database, utc_now
from hub_server.errors import BadRequest, NotFound, Unauthorized
from hub_server.logins.models import LoginChallenge, SetupToken
from verifiers.hub.wire import PasswordLogin, SetupRequest

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import rsa

# `cryptography` is imported where `prime login` needs it: it takes 6 MiB, and most workers never use it.

CHALLENGE_LIFETIME = timedelta(minutes=10)
POLL_INTERVAL_S = 5
SESSION_LIFETIME = timedelta(hours=12)
_CODE_ALPHABET = "BCDFGHJKLMNPQRSTVWXZ"  # RFC 8628 §6.1: no vowels, so no words


class Challenge(NamedTuple):
    """A waiting login: the code to show, and the secret for polling."""

    code: str
    secret: str


async def new_setup_token(session: AsyncSession) -> str | None:
    """Return a token that creates the first administrator, or None if the hub has users.

    Earlier unused tokens stop working, so that only the token printed last is valid.
    """
    if await has_users(session):
        return None
    await session.execute(delete(SetupToken).where(SetupToken.used_at.is_(None)))
    text = "setup_" + secrets.token_urlsafe(24)
    session.add(SetupToken(sha256=hashlib.sha256(text.encode()).hexdigest()))
    return text


async def use_setup_token(session: AsyncSession, requested: SetupRequest) -> NewToken:
    """Create the first administrator. Raises Unauthorized for a wrong or used token."""
    key = hashlib.sha256(requested.token.encode()).hexdigest()
    row = await session.get(SetupToken, key, with_for_update=True)
    if row is None or row.used_at is not None or await has_users(session):
        raise Unauthorized("The setup token is wrong or was used already.")
    row.used_at = utc_now()
    user = await create_user(
        session,
        requested.username,
        password=requested.password,
        email=requested.email,
        is_admin=True,
    )
    record_audit(session, Principal(user_id=user.id), "setup", requested.username)
    return await issue_token(
        session, user.id, name="setup", actions=[action.value for action in Action]
    )


async def person_behind(database: Database, requested: PasswordLogin) -> User:
    """Return the person with this name and password. Raises Unauthorized without revealing which of them is wrong.

    The slow hash runs outside of any transaction.
    """
    async with database.read() as session:
        found = await user_by_login(session, requested.username)
    user = found[0] if found else None
    right = await credentials.is_password(requested.password, user.password_hash if user else None)
    if user is None or not right or user.disabled_at is not None:
        raise Unauthorized("The username or password is wrong.")
    return user


async def log_in(database: Database, requested: PasswordLogin) -> NewToken:
    """Return a session token for a name and password. Raises Unauthorized."""
    user = await person_behind(database, requested)
    actions = [a.value for a in Action if a is not Action.ADMIN or user.is_admin]
    async with database.write() as session:
        record_audit(session, Principal(user_id=user.id), "login", requested.username)
        return await issue_token(
            session,
            user.id,
            name="session",
            actions=actions,
            kind="session",
            expires_at=utc_now() + SESSION_LIFETIME,
        )


async def start_challenge(
    session: AsyncSession,
    *,
    kind: Literal["rsa", "device"],
    public_key_pem: str | None = None,
    client: str = "",
    address: str = "",
) -> Challenge:
    """Register a waiting client. Raises BadRequest for a key that cannot encrypt an answer."""
    if public_key_pem is not None:
        _public_key(public_key_pem)
    now = utc_now()
    await session.execute(delete(LoginChallenge).where(LoginChallenge.expires_at < now))
    code = "-".join("".join(secrets.choice(_CODE_ALPHABET) for _ in range(4)) for _ in range(2))
    secret = secrets.token_urlsafe(32)
    session.add(
        LoginChallenge(
            code=code,
            kind=kind,
            secret_sha256=_sha256(secret),
            public_key_pem=public_key_pem,
            client=client[:200],
            address=address[:64],
            created_at=now,
            expires_at=now + CHALLENGE_LIFETIME,
        )
    )
    await session.flush()
    return Challenge(code, secret)


async def waiting_challenge(session: AsyncSession, code: str) -> LoginChallenge:
    """Return a challenge that can still be approved, by its code in any spelling. Raises NotFound otherwise."""
    letters = "".join(letter for letter in code.upper() if letter.isalnum())
    row = await session.get(LoginChallenge, f"{letters[:4]}-{letters[4:]}")
    is_answered = row is not None and (row.approved_by or row.delivered_at)
    if row is None or row.expires_at <= utc_now() or is_answered:
        raise NotFound("This login code is unknown, used or expired.")
    return row


async def approve(session: AsyncSession, caller: Principal, code: str) -> None:
    """Approve the waiting client. Its token allows no more than the caller's own token.

    A caller without a token has given a password. The client then receives everything that a person can hand on.
    """
    row = await waiting_challenge(session, code)
    if caller.token_id is not None:
        require_account(caller, Action.ACCOUNT)
        row.granted_actions = [action for action in DEFAULT_ACTIONS if action in caller.actions]
        row.granted_environments = list(caller.environments)
        row.granted_until = caller.expires_at
    row.approved_by, row.approved_at = caller.user_id, utc_now()
    record_audit(session, caller, "login.approve", row.client, address=row.address)


async def deny(session: AsyncSession, code: str) -> None:
    """Refuse the waiting client: the challenge counts as delivered without an approval."""
    row = await waiting_challenge(session, code)
    row.delivered_at = utc_now()


class Poll(NamedTuple):
    """The state of a login: `pending`, `slow_down`, `denied`, or `done` with the answer."""

    state: Literal["pending", "slow_down", "denied", "done"]
    token: str | None = None
    encrypted_token: str | None = None


async def poll(session: AsyncSession, secret: str, code: str | None = None) -> Poll:
    """Return the state of a login. The token is returned once.

    Raises NotFound if the challenge is unknown, expired or delivered.
    """
    row = await session.scalar(
        select(LoginChallenge)
        .where(LoginChallenge.secret_sha256 == _sha256(secret))
        .with_for_update()
    )
    now = utc_now()
    if row is None or row.expires_at <= now or (code is not None and row.code != code):
        raise NotFound("This login is unknown, used or expired.")
    if row.delivered_at is not None and row.approved_by is None:
        return Poll("denied")
    if row.delivered_at is not None:
        raise NotFound("This login is unknown, used or expired.")
    if row.approved_by is None:
        since = now - row.last_polled_at if row.last_polled_at else None
        row.last_polled_at = now
        too_soon = since is not None and since.total_seconds() < POLL_INTERVAL_S - 1
        return Poll("slow_down" if too_soon and row.kind == "device" else "pending")
    row.delivered_at = now
    name = row.client.split(" ")[0] or row.kind
    new = await issue_token(
        session,
        row.approved_by,
        name=name,
        actions=DEFAULT_ACTIONS if row.granted_actions is None else row.granted_actions,
        environments=row.granted_environments,
        expires_at=row.granted_until,
    )
    if row.public_key_pem is None:
        return Poll("done", token=new.text)
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    encrypted = _public_key(row.public_key_pem).encrypt(
        new.text.encode(),
        padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), label=None),
    )
    return Poll("done", encrypted_token=base64.b64encode(encrypted).decode())


def _public_key(pem: str) -> "rsa.RSAPublicKey":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadRequest("encryptionPublicKey is not a PEM public key.") from error
    if not isinstance(key, rsa.RSAPublicKey) or not 2048 <= key.key_size <= 8192:
        raise BadRequest("encryptionPublicKey must be an RSA key of 2048 to 8192 bits.")
    return key


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

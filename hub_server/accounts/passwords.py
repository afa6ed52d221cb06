"""Passwords: Argon2id, a few at a time, the same effort whether or not the account exists."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from hub_server.errors import BadRequest

MIN_CHARACTERS = 10
# The second recommendation of OWASP's password storage page: 19 MiB, two passes, one lane.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)
_AT_ONCE = asyncio.Semaphore(2)
"""Bounds memory and processor when many people, or one attacker, log in at the same time."""
_NOBODY = _HASHER.hash("a password that no account has")


async def hashed(password: str) -> str:
    """The hash to store. Raises BadRequest for a password that is too short."""
    if len(password) < MIN_CHARACTERS:
        raise BadRequest(f"A password needs at least {MIN_CHARACTERS} characters.")
    async with _AT_ONCE:
        return await asyncio.to_thread(_HASHER.hash, password)


async def matches(password: str, password_hash: str | None) -> bool:
    """Whether the password is right; takes as long for an account without one."""
    async with _AT_ONCE:
        return await asyncio.to_thread(_verify, password, password_hash)


def _verify(password: str, password_hash: str | None) -> bool:
    try:
        right = _HASHER.verify(password_hash or _NOBODY, password)
    except (VerificationError, InvalidHashError):
        return False
    return right and password_hash is not None

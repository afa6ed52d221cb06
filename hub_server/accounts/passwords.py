"""Passwords: Argon2id, a few at a time, the same effort whether or not the account exists."""

import asyncio
from functools import cache
from typing import TYPE_CHECKING

from hub_server.errors import BadRequest

if TYPE_CHECKING:
    from argon2 import PasswordHasher

# Argon2 is imported with the first password: a hub that starts, or serves tokens only, needs none of it.

MIN_CHARACTERS = 10
_AT_ONCE = asyncio.Semaphore(2)
"""Bounds memory and processor when many people, or one attacker, log in at the same time."""
_NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$fvHGpvw++GuwPeoZk3dFtw$SNzDkjl774WAWlShU+H9BQEYSozEMr1sK9/4gWFhglo"
"""Of random bytes that were thrown away; checked for accounts without a password, at the same cost."""


@cache
def _hasher() -> "PasswordHasher":
    """The second recommendation of OWASP's password storage page: 19 MiB, two passes, one lane."""
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


async def hashed(password: str) -> str:
    """The hash to store. Raises BadRequest for a password that is too short."""
    if len(password) < MIN_CHARACTERS:
        raise BadRequest(f"A password needs at least {MIN_CHARACTERS} characters.")
    async with _AT_ONCE:
        return await asyncio.to_thread(_hasher().hash, password)


async def matches(password: str, password_hash: str | None) -> bool:
    """Whether the password is right; takes as long for an account without one."""
    async with _AT_ONCE:
        return await asyncio.to_thread(_verify, password, password_hash)


def _verify(password: str, password_hash: str | None) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        right = _hasher().verify(password_hash or _NOBODY, password)
    except (VerificationError, InvalidHashError):
        return False
    return right and password_hash is not None

"""Passwords, API tokens, and the token in an Authorization header. No database.

A token has 256 random bits, a prefix that scanners find and a checksum that scanners can verify. Passwords are hashed
with Argon2id, a few at a time, and with the same effort whether or not the account exists.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import zlib
from functools import cache
from typing import TYPE_CHECKING

from hub_server.errors import BadRequest, Unauthorized

if TYPE_CHECKING:
    from argon2 import PasswordHasher

PREFIX = "vfh_"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARACTERS, _CHECK_CHARACTERS = 43, 6


def new_token() -> str:
    """Return a new token: `vfh_`, 43 characters for 256 bits, 6 for the CRC-32 of those."""
    return _with_checksum(secrets.randbits(256))


def derived_token(secret: bytes, text: str) -> str:
    """Return the token that this secret and text always produce. It cannot be computed without the secret."""
    digest = hmac.digest(secret, b"token " + text.encode(), "sha256")
    return _with_checksum(int.from_bytes(digest))


def _with_checksum(bits: int) -> str:
    random = _base62(bits, _RANDOM_CHARACTERS)
    return PREFIX + random + _checksum(random)


def is_token(token: str) -> bool:
    """Return whether prefix, length and checksum are correct, so that a mistyped token costs no look-up."""
    if len(token) != len(PREFIX) + _RANDOM_CHARACTERS + _CHECK_CHARACTERS:
        return False
    random = token[len(PREFIX) : -_CHECK_CHARACTERS]
    return token.startswith(PREFIX) and token.endswith(_checksum(random))


def fingerprint(token: str) -> str:
    """Return the hash that is stored. Plain SHA-256 is enough, because 256 random bits cannot be guessed."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_prefix(token: str) -> str:
    """Return the part that lists show, so that people recognise their tokens."""
    return token[: len(PREFIX) + 6]


def _checksum(random: str) -> str:
    return _base62(zlib.crc32(random.encode()), _CHECK_CHARACTERS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))


def token_from_header(header: str | None) -> str | None:
    """Return the token of `Bearer …` or of `Basic …`, where it is the password (or the name alone).

    Returns None without a header. Raises Unauthorized for a header of another form.
    """
    if not header:
        return None
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip() or None
    if scheme.lower() == "basic":
        try:
            name, _, password = base64.b64decode(rest, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise Unauthorized("The Basic credentials cannot be decoded.") from error
        return password or name or None
    raise Unauthorized("Send the API token as `Bearer TOKEN`, or as the password of Basic.")


# Argon2 is imported with the first password: a hub that starts, or that serves only tokens, does not need it.

MIN_CHARACTERS = 10
_AT_ONCE = asyncio.Semaphore(2)
"""Bounds memory and processor time when many people, or one attacker, log in at the same time."""
_NOBODY = "$argon2id$v=19$m=19456,t=2,p=1$fvHGpvw++GuwPeoZk3dFtw$SNzDkjl774WAWlShU+H9BQEYSozEMr1sK9/4gWFhglo"
"""A hash of discarded random bytes. Accounts without a password are checked against it, at the same cost."""


@cache
def _hasher() -> "PasswordHasher":
    """Return a hasher with the second recommendation of OWASP: 19 MiB, two passes, one lane."""
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


async def hash_password(password: str) -> str:
    """Return the hash to store. Raises BadRequest for a password that is too short."""
    if len(password) < MIN_CHARACTERS:
        raise BadRequest(f"A password needs at least {MIN_CHARACTERS} characters.")
    async with _AT_ONCE:
        return await asyncio.to_thread(_hasher().hash, password)


async def is_password(password: str, password_hash: str | None) -> bool:
    """Return whether the password is correct. An account without a password takes the same time."""
    async with _AT_ONCE:
        return await asyncio.to_thread(_verify, password, password_hash)


def _verify(password: str, password_hash: str | None) -> bool:
    from argon2.exceptions import InvalidHashError, VerificationError

    try:
        right = _hasher().verify(password_hash or _NOBODY, password)
    except (VerificationError, InvalidHashError):
        return False
    return right and password_hash is not None

"""API tokens: 256 random bits with a prefix that scanners find and a checksum they can verify."""

import hashlib
import hmac
import secrets
import zlib

PREFIX = "vfh_"
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARACTERS, _CHECK_CHARACTERS = 43, 6


def mint() -> str:
    """A new token: `vfh_`, 43 characters for 256 bits, 6 for the CRC-32 of those."""
    return _with_checksum(secrets.randbits(256))


def derived(secret: bytes, text: str) -> str:
    """A token that the same secret and text make again, and nobody without the secret can make."""
    digest = hmac.digest(secret, b"token " + text.encode(), "sha256")
    return _with_checksum(int.from_bytes(digest))


def _with_checksum(bits: int) -> str:
    random = _base62(bits, _RANDOM_CHARACTERS)
    return PREFIX + random + _checksum(random)


def is_well_formed(token: str) -> bool:
    """Whether prefix, length and checksum are right; a mistyped token costs no look-up."""
    if len(token) != len(PREFIX) + _RANDOM_CHARACTERS + _CHECK_CHARACTERS:
        return False
    random = token[len(PREFIX) : -_CHECK_CHARACTERS]
    return token.startswith(PREFIX) and token.endswith(_checksum(random))


def fingerprint(token: str) -> str:
    """What is stored. Plain SHA-256 is enough for 256 random bits: there is nothing to guess."""
    return hashlib.sha256(token.encode()).hexdigest()


def display_prefix(token: str) -> str:
    """The part that lists show, so that people recognise their tokens."""
    return token[: len(PREFIX) + 6]


def _checksum(random: str) -> str:
    return _base62(zlib.crc32(random.encode()), _CHECK_CHARACTERS)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))

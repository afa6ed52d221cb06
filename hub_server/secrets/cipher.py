"""Encryption of stored values with a key that is not in the database."""

import hmac
import os
import secrets
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hub_server.errors import SettingsError
from hub_server.private_files import make_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_FILE = "secret.key"
_NONCE_BYTES = 12


class Cipher:
    """AES-256-GCM. A value can only be opened in the scope for which it was sealed."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.token_secret = hmac.digest(key, b"install tokens", "sha256")
        """Secret from which tokens inside install addresses are derived."""

    @cached_property
    def _aead(self) -> "AESGCM":
        # Imported with the first secret: most hubs have none, and the library takes memory.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)

    def seal(self, value: str, context: str) -> bytes:
        """Return the encrypted value."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, value.encode(), context.encode())

    def open(self, sealed: bytes, context: str) -> str:
        """Return the value. Raises SettingsError if it was sealed with a different key."""
        from cryptography.exceptions import InvalidTag

        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._aead.decrypt(nonce, rest, context.encode()).decode()
        except InvalidTag as error:
            raise SettingsError(
                f"A secret cannot be decrypted: {KEY_FILE} in the data folder is not the key it was"
                " stored with."
            ) from error


def open_cipher(data_dir: Path) -> Cipher:
    """Return the cipher of this hub. The key is created on first use, readable only by the operator."""
    path = data_dir / KEY_FILE
    make_folder(data_dir)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = bytes.fromhex(path.read_text().strip())
    else:
        key = secrets.token_bytes(32)
        with os.fdopen(descriptor, "w") as file:
            file.write(key.hex())
            file.flush()
            os.fsync(file.fileno())
    if len(key) != 32:
        raise SettingsError(f"{path} does not contain a key of 32 bytes in hex.")
    return Cipher(key)

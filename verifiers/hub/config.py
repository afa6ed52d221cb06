"""The user's hub, key and team: `~/.prime/config.json`, its contexts, and `PRIME_*` variables.

The file and its contexts have the format of the public `prime` command, so that both commands can share them. Keys
that only one of them uses are kept. One rule differs: the public command writes its vendor's address into the file
without being asked. Here that address counts only if it is named (`PRIME_API_BASE_URL`, or the context `production`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from verifiers.errors import ConfigError
from verifiers.files import PRIVATE, replace_file
from verifiers.hub.errors import HubNotConfigured

PRODUCTION = "production"
"""The built-in context of the public command."""
PUBLIC_API_URL = "https://api.primeintellect.ai"
DEFAULTS: dict[str, Any] = {
    "api_key": "",
    "team_id": None,
    "team_name": None,
    "team_role": None,
    "user_id": None,
    "user_name": None,
    "base_url": PUBLIC_API_URL,
    "frontend_url": "https://app.primeintellect.ai",
    "inference_url": "https://api.pinference.ai/api/v1",
    "traces_url": None,
    "ssh_key_path": "~/.ssh/id_rsa",
    "current_environment": PRODUCTION,
    "share_resources_with_team": False,
    "traces_opt_out": False,
}
CONTEXT_KEYS = (
    "api_key",
    "team_id",
    "team_name",
    "team_role",
    "user_id",
    "user_name",
    "base_url",
    "frontend_url",
    "inference_url",
    "traces_url",
)
"""Keys that a context replaces."""


class HubSettings(NamedTuple):
    """One hub, and the user's key and team."""

    base_url: str
    """Address without a trailing slash or `/api/v1`."""
    api_key: str | None
    team_id: str | None
    """Id or slug of the team that owns new objects; None means the user."""
    frontend_url: str
    """Address of the hub's pages for people."""
    context: str
    """Name of the context that the settings come from."""

    def __repr__(self) -> str:
        """Without the key: settings appear in logs and in messages of tests."""
        return f"HubSettings({self.base_url!r}, key {masked(self.api_key) or 'none'}, {self.context!r})"

    @property
    def is_encrypted(self) -> bool:
        """Whether the key cannot be read on the way: https, or this machine."""
        parts = urlsplit(self.base_url)
        return parts.scheme == "https" or is_loopback(parts.hostname or "")


class HubConfigFile:
    """The configuration of one user: a file, and a folder of contexts beside it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path.home() / ".prime"
        self.path = self.folder / "config.json"

    def read(self) -> dict[str, Any]:
        """Return all settings. Missing ones have their defaults."""
        defaults = {**DEFAULTS, "ssh_key_path": str(Path.home() / ".ssh" / "id_rsa")}
        return {**defaults, **_read_object(self.path)}

    def update(self, **changes: Any) -> None:
        """Change some settings. The others stay as they are."""
        _write_object(self.path, {**self.read(), **changes})

    def reset(self) -> None:
        """Reset all settings to their defaults. Contexts stay."""
        _write_object(self.path, {**DEFAULTS, "ssh_key_path": str(Path.home() / ".ssh" / "id_rsa")})

    def contexts(self) -> list[str]:
        """Return the names of the saved contexts, sorted."""
        folder = self.folder / "environments"
        return sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []

    def context(self, name: str) -> dict[str, Any]:
        """Return the settings of a context. Raises ConfigError with the known names for an unknown one."""
        if name == PRODUCTION:
            return {key: DEFAULTS[key] for key in CONTEXT_KEYS if key != "api_key"}
        path = self._context_path(name)
        if not path.is_file():
            known = ", ".join([PRODUCTION, *self.contexts()])
            raise ConfigError(
                f"There is no context {name!r}; there are {known}. `prime config save NAME` creates one."
            )
        values = _read_object(path)
        return {key: values.get(key, DEFAULTS[key]) for key in CONTEXT_KEYS}

    def save_context(self, name: str) -> Path:
        """Save the current settings, key included, as a context and return its file."""
        if name == PRODUCTION:
            raise ConfigError(
                f"{PRODUCTION!r} is built in and cannot be saved; choose another name."
            )
        path = self._context_path(name)
        values = self.read()
        _write_object(path, {key: values[key] for key in CONTEXT_KEYS})
        return path

    def use_context(self, name: str) -> None:
        """Make a context the current settings.

        A key never moves to another host. `production` has no key, so the key of another hub is removed.
        """
        values = self.context(name)
        if name == PRODUCTION and origin(self.read()["base_url"]) != origin(PUBLIC_API_URL):
            values["api_key"] = ""
        self.update(**values, current_environment=name)

    def delete_context(self, name: str) -> None:
        """Delete a context. Raises ConfigError for the current context and for unknown ones."""
        self.context(name)
        if name in (PRODUCTION, self.read()["current_environment"]):
            why = "is built in" if name == PRODUCTION else "is in use"
            raise ConfigError(f"The context {name!r} {why} and cannot be deleted.")
        self._context_path(name).unlink()

    def _context_path(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
            raise ConfigError(
                f"{name!r} is not a valid context name: use letters, digits, hyphens and underscores."
            )
        return self.folder / "environments" / f"{name}.json"


def hub_settings(
    context: str | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    file: HubConfigFile | None = None,
) -> HubSettings:
    """Return the user's hub: variables first, then the context (`context`, else `PRIME_CONTEXT`), then the file.

    Raises HubNotConfigured if none of them names a hub, ConfigError for an unusable file or address.
    """
    variables = os.environ if variables is None else variables
    file = file or HubConfigFile()
    values = file.read()
    named = context or variables.get("PRIME_CONTEXT") or None
    if named is not None:
        key = values["api_key"] if _is_public(values["base_url"]) else ""
        values = {
            **values,
            **({"api_key": key} if named == PRODUCTION else {}),
            **file.context(named),
        }
    given_url = variables.get("PRIME_API_BASE_URL") or variables.get("PRIME_BASE_URL")
    base_url = given_url or values["base_url"] or ""
    if not base_url or (not given_url and named != PRODUCTION and _is_public(base_url)):
        raise HubNotConfigured(
            "No hub is configured. Name yours: `prime config set-base-url https://hub.example.org`, or set "
            "PRIME_API_BASE_URL. (`prime -c production …` uses the public one.)"
        )
    base_url = checked_url(base_url)
    if (
        given_url
        and not variables.get("PRIME_API_KEY")
        and origin(base_url) != origin(values["base_url"])
    ):
        # The key in the file belongs to the hub in the file.
        values = {**values, "api_key": ""}
    frontend_url = variables.get("PRIME_FRONTEND_URL") or values["frontend_url"] or ""
    # The pages in the file may belong to another hub than the one named now.
    is_of_file = frontend_url == values["base_url"] and origin(frontend_url) != origin(base_url)
    if is_of_file or (frontend_url == DEFAULTS["frontend_url"] and not _is_public(base_url)):
        frontend_url = base_url
    return HubSettings(
        base_url=base_url,
        api_key=_checked_key(variables.get("PRIME_API_KEY") or values["api_key"] or ""),
        team_id=(variables.get("PRIME_TEAM_ID") or "").strip() or values["team_id"] or None,
        frontend_url=frontend_url.rstrip("/"),
        context=named or str(values["current_environment"]),
    )


def _checked_key(text: str) -> str | None:
    """Return the key without surrounding spaces. Raises ConfigError, without showing it, if it cannot be a key."""
    key = text.strip()
    if any(letter.isspace() or not letter.isprintable() or not letter.isascii() for letter in key):
        raise ConfigError(
            "The API key contains spaces, line breaks or other characters that no key has. Check that "
            "only the key was copied. PRIME_API_KEY takes precedence over the key of `prime config set-api-key`."
        )
    return key or None


def checked_url(url: str) -> str:
    """Return a hub's address in its plain form. Raises ConfigError if it is not an address."""
    plain = url.strip().rstrip("/").removesuffix("/api/v1").rstrip("/")
    parts = urlsplit(plain)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"{url!r} is not the address of a hub: write it like https://hub.example.org or "
            "http://127.0.0.1:8000."
        )
    if parts.username or parts.password:
        raise ConfigError(
            "The address of a hub must not contain a name or key; use `prime config set-api-key`."
        )
    return plain


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port, to which a key belongs."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine."""
    return host in ("localhost", "::1") or host.startswith("127.")


def masked(secret: str | None) -> str:
    """Return the part of a key that may be shown: enough to distinguish two keys."""
    if not secret:
        return ""
    return f"{secret[:4]}…{secret[-4:]}" if len(secret) >= 16 else "…"


def _is_public(base_url: str) -> bool:
    return origin(base_url) == origin(PUBLIC_API_URL)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}. Correct or delete it.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object. Correct or delete it.")
    return value


def _write_object(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file as a whole. Only its owner may read it, because it contains a key."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(value, indent=2) + "\n", mode=PRIVATE)

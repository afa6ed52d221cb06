"""All failures between a client and its hub.

HubError
├── HubUnavailable      (also ConnectionError) the hub is unreachable, or answered 5xx, after all attempts
├── HubRefused          the hub refused the request: 4xx; `status` has the number
│   ├── HubUnauthorized (also PermissionError) 401 or 403
│   ├── HubNotFound     (also LookupError) 404: missing, or hidden from the caller
│   └── HubConflict     409: it already exists with other contents
└── HubMisbehaved       (also ValueError) the answer is not one of a hub, or the bytes have another hash
HubNotConfigured        (a ConfigError) no hub is named, or the key is missing

The module is short on purpose: the client, the commands and their tests import it without the rest.
"""

from __future__ import annotations

from verifiers.errors import ConfigError, Error


class HubError(Error):
    """Base class of everything that fails between a client and a hub."""


class HubUnavailable(HubError, ConnectionError):
    """The hub is unreachable, or answered 5xx, after all attempts."""


class HubRefused(HubError):
    """The hub answered with a 4xx status; the text is its message."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class HubUnauthorized(HubRefused, PermissionError):
    """The key is missing, wrong, or does not allow this."""


class HubNotFound(HubRefused, LookupError):
    """The object does not exist, or the caller may not see it."""


class HubConflict(HubRefused):
    """The object already exists, with other contents."""


class HubMisbehaved(HubError, ValueError):
    """The answer is not one of a hub, or the bytes are not the expected ones."""


class HubNotConfigured(ConfigError):
    """No hub is named, or the key is missing."""

"""What can go wrong between a client and its hub.

HubError
├── HubUnavailable      (also ConnectionError) it could not be reached, or answered 5xx, after all retries
├── HubRefused          it understood and said no: 4xx; `status` has the number
│   ├── HubUnauthorized (also PermissionError) 401 or 403
│   ├── HubNotFound     (also LookupError) 404: there is nothing, or nothing the caller may see
│   └── HubConflict     409: it exists with other contents
└── HubMisbehaved       (also ValueError) an answer that is none of a hub's, or bytes with another hash
HubNotConfigured        (a ConfigError) no hub, or no key for it, has been named
"""

from __future__ import annotations

from verifiers.errors import ConfigError, Error


class HubError(Error):
    """Root of everything that fails between a client and a hub."""


class HubUnavailable(HubError, ConnectionError):
    """The hub could not be reached, or answered 5xx, after all retries."""


class HubRefused(HubError):
    """The hub answered with a 4xx status; the text is what it said."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class HubUnauthorized(HubRefused, PermissionError):
    """The key is missing, wrong, or may not do this."""


class HubNotFound(HubRefused, LookupError):
    """There is no such thing, or none that the caller may see."""


class HubConflict(HubRefused):
    """It exists already, with other contents."""


class HubMisbehaved(HubError, ValueError):
    """The answer is not one of a hub, or the bytes are not those that were promised."""


class HubNotConfigured(ConfigError):
    """No hub was named, or no key for it."""

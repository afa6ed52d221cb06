"""Every refusal of the hub, with its HTTP status. Routes raise these; `app` renders them.

    HubError
    ├── BadRequest 400        ├── NotFound 404      ├── TooManyRequests 429
    ├── Unauthorized 401      ├── Conflict 409      ├── NotOffered 400
    ├── Forbidden 403         ├── TooLarge 413      └── Unavailable 503
    └── SettingsError         the operator's configuration, not a request

422 is kept for bodies that do not fit their model.
"""


class HubFailure(Exception):
    """Root of everything the hub refuses on purpose; `detail` is what the client is told."""

    status = 500

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to the answer."""
        return {}


class SettingsError(HubFailure, ValueError):
    """A setting is missing or wrong."""


class BadRequest(HubFailure, ValueError):
    """The request is understood and cannot be right."""

    status = 400


class Unauthorized(HubFailure, PermissionError):
    """There are no credentials, or none that work."""

    status = 401

    @property
    def headers(self) -> dict[str, str]:
        """Ask for Basic, which pip and uv know how to answer."""
        return {"WWW-Authenticate": 'Basic realm="environments hub"'}


class Forbidden(HubFailure, PermissionError):
    """The caller is known and may not do this."""

    status = 403


class NotFound(HubFailure, LookupError):
    """There is nothing here that the caller may see."""

    status = 404


class Conflict(HubFailure):
    """It exists already, with other contents."""

    status = 409


class TooLarge(HubFailure, ValueError):
    """A limit of this hub is exceeded."""

    status = 413


class TooManyRequests(HubFailure):
    """The caller's share of this minute is used up."""

    status = 429

    def __init__(self, detail: str, retry_after_s: float) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """When to come back."""
        return {"Retry-After": str(max(1, round(self.retry_after_s)))}


class NotOffered(HubFailure, NotImplementedError):
    """This hub does not have the feature. 400, because clients take 5xx for a fault and try again."""

    status = 400


class Unavailable(HubFailure, ConnectionError):
    """The database or the storage does not answer; trying again can help."""

    status = 503

"""Every refusal of the hub, with its HTTP status. Routes raise these errors; `app` renders them.

    HubFailure
    ├── BadRequest 400        ├── NotFound 404      ├── TooManyRequests 429
    ├── Unauthorized 401      ├── Conflict 409      ├── NotOffered 400
    ├── Forbidden 403         ├── TooLarge 413      └── Unavailable 503
    └── SettingsError         the operator's configuration, not a request

422 is reserved for bodies that do not fit their model.
"""


class HubFailure(Exception):
    """Base class of everything that the hub refuses on purpose. The client receives `detail`."""

    status = 500

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    @property
    def headers(self) -> dict[str, str]:
        """Further headers of the answer."""
        return {}


class SettingsError(HubFailure, ValueError):
    """A setting is missing or wrong."""


class BadRequest(HubFailure, ValueError):
    """The request is well-formed but cannot be carried out."""

    status = 400


class Unauthorized(HubFailure, PermissionError):
    """The credentials are missing or not valid."""

    status = 401

    @property
    def headers(self) -> dict[str, str]:
        """Request Basic authentication, which pip and uv support."""
        return {"WWW-Authenticate": 'Basic realm="environments hub"'}


class Forbidden(HubFailure, PermissionError):
    """The caller is authenticated but not allowed to do this."""

    status = 403


class NotFound(HubFailure, LookupError):
    """The object does not exist, or the caller may not see it."""

    status = 404


class Conflict(HubFailure):
    """The object already exists, with other contents."""

    status = 409


class TooLarge(HubFailure, ValueError):
    """A limit of this hub is exceeded."""

    status = 413


class TooManyRequests(HubFailure):
    """The caller has used up the requests of this minute."""

    status = 429

    def __init__(self, detail: str, retry_after_s: float) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Seconds until the next attempt."""
        return {"Retry-After": str(max(1, round(self.retry_after_s)))}


class NotOffered(HubFailure, NotImplementedError):
    """This hub does not have the feature. The status is 400, because clients retry after 5xx."""

    status = 400


class Unavailable(HubFailure, ConnectionError):
    """The database or the storage does not answer; another attempt can help."""

    status = 503

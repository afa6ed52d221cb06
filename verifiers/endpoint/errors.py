"""What can go wrong in the embedded endpoint.

EndpointError
├── WeightsError      (ValueError)   a model folder or file cannot be used
├── RequestError      (ValueError)   a request is wrong; carries the HTTP status and the field
└── EndpointStartError(RuntimeError) the server process did not come up
"""

from __future__ import annotations

from verifiers.errors import Error


class EndpointError(Error):
    """The embedded endpoint cannot do what was asked."""


class WeightsError(EndpointError, ValueError):
    """A model folder or a weights file is missing, damaged or of the wrong shape."""


class EndpointStartError(EndpointError, RuntimeError):
    """The endpoint's process ended or stayed silent instead of serving."""


class RequestError(EndpointError, ValueError):
    """A request the server refuses, with what the HTTP answer needs."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | int | None = None,
        kind: str = "BadRequestError",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = status if code is None else code
        self.kind = kind

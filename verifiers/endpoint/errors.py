"""Errors of the embedded endpoint; a separate module because every other module of the package raises them.

EndpointError
├── WeightsError      (ValueError)   a model folder or file cannot be used
├── RequestError      (ValueError)   a request is not valid; carries the HTTP status and the field
└── EndpointStartError(RuntimeError) the server process did not start
"""

from __future__ import annotations

from verifiers.errors import Error


class EndpointError(Error):
    """Base class of the endpoint's errors."""


class WeightsError(EndpointError, ValueError):
    """A model folder or a weights file is missing, damaged or has the wrong shape."""


class EndpointStartError(EndpointError, RuntimeError):
    """The endpoint's process ended, or printed nothing, before it served requests."""


class RequestError(EndpointError, ValueError):
    """A request that the server refuses, with the fields of the HTTP response."""

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

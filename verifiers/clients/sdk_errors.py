"""What an exception of somebody else's client means: the OpenAI and Anthropic SDKs, httpx, anything.

Exceptions are recognised by the attributes all generations of those SDKs share (`status_code`, `body`), so neither
SDK is imported.
"""

from __future__ import annotations

from typing import Any

import orjson

from verifiers.clients.failures import Refusal, error_of, refusal_of_payload, shown
from verifiers.errors import EndpointUnavailable, Error, ModelError

_UNREACHABLE = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ConnectError",
        "ConnectTimeout",
        "ReadError",
        "ReadTimeout",
        "RemoteProtocolError",
        "PoolTimeout",
        "WriteError",
    }
)


def as_model_error(error: Exception, who: str) -> Error:
    """Our error for whatever a client raised; `who` names the client."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return error_of(_refusal(error, status), url=_url(error), key_var="the client you passed")
    text = shown(str(error)) or "no message"
    if isinstance(error, TimeoutError | ConnectionError) or type(error).__name__ in _UNREACHABLE:
        return EndpointUnavailable(f"{who}: {type(error).__name__}: {text}")
    return ModelError(f"{who} failed: {type(error).__name__}: {text}")


def _refusal(error: Exception, status: int) -> Refusal:
    body: Any = getattr(error, "body", None)
    if isinstance(body, str | bytes):
        try:
            body = orjson.loads(body)
        except orjson.JSONDecodeError:
            return Refusal(
                status, body if isinstance(body, str) else body.decode("utf-8", "replace"), ""
            )
    if isinstance(body, dict) and body:
        return refusal_of_payload(status, body)
    return Refusal(status, str(error), "")


def _url(error: Exception) -> str:
    request = getattr(error, "request", None) or getattr(
        getattr(error, "response", None), "request", None
    )
    url = str(getattr(request, "url", "") or "")
    return url.partition("?")[0] or "The endpoint"

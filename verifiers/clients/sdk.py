"""SDK objects and their exceptions: recognise the kind of an object, and turn exceptions into the library's errors.

An unmodified `AsyncOpenAI` is only an address with a key, and our transport does its work at a fraction of the cost.
Any other object (a subclass, a fake, a custom `http_client`, a replaced method) is called through its own method,
because its author expects that method to run.

Exceptions of the OpenAI and Anthropic SDKs and of httpx are recognised by attributes that all their versions share
(`status_code`, `body`), so neither SDK is imported.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from verifiers.clients.failures import Refusal, error_of, refusal_of_payload, shown
from verifiers.errors import AuthenticationError, EndpointUnavailable, Error, ModelError

_DEFAULT_HTTP_CLIENTS = frozenset({"AsyncHttpxClientWrapper", "SyncHttpxClientWrapper"})
_GENUINE = {
    "AsyncOpenAI": "openai",
    "OpenAI": "openai",
    "AsyncAnthropic": "anthropic",
    "Anthropic": "anthropic",
}
_SDK_DEFAULT_CONNECT_S = 5.0
OUR_CONNECT_S = 60.0
_SDK_HEADERS = (
    "x-stainless-",
    "user-agent",
    "accept",
    "content-type",
    "authorization",
    "x-api-key",
)


class SdkEndpoint(NamedTuple):
    """The endpoint settings of an unmodified SDK object."""

    base_url: str
    key: str
    key_header: str
    headers: dict[str, str]
    query: dict[str, str]
    timeout_s: float | None
    connect_timeout_s: float | None
    max_retries: int


def speaks_anthropic(client: Any) -> bool:
    """Whether an object has the messages API rather than chat completions."""
    module = type(client).__module__.partition(".")[0]
    if module in ("openai", "anthropic"):
        return module == "anthropic"
    return (
        hasattr(client, "messages")
        and not hasattr(client, "chat")
        and not hasattr(client, "completions")
    )


def is_synchronous(client: Any) -> bool:
    """Whether its methods block (`OpenAI`, `Anthropic`)."""
    return any(kind.__name__ == "SyncAPIClient" for kind in type(client).__mro__)


def endpoint_of(client: Any) -> SdkEndpoint | None:
    """Return the endpoint of an unmodified SDK object; None for any other object."""
    kind = type(client)
    sdk = _GENUINE.get(kind.__name__)
    if sdk is None or kind.__module__.partition(".")[0] != sdk:
        return None
    http_client = getattr(client, "_client", None)
    if type(http_client).__name__ not in _DEFAULT_HTTP_CLIENTS or _is_patched(client, sdk):
        return None
    key = getattr(client, "api_key", None)
    if not isinstance(key, str) or getattr(client, "_api_key_provider", None) is not None:
        return (
            None  # the key is computed for each request, or is a token: only the SDK can supply it
        )
    timeout_s, connect_timeout_s = _timeouts(client.timeout)
    return SdkEndpoint(
        base_url=str(client.base_url),
        key=key,
        key_header="Authorization" if sdk == "openai" else "x-api-key",
        headers=_own_headers(client),
        query={
            name: str(value)
            for name, value in (getattr(client, "_custom_query", None) or {}).items()
        },
        timeout_s=timeout_s,
        connect_timeout_s=connect_timeout_s,
        max_retries=int(client.max_retries),
    )


def _is_patched(client: Any, sdk: str) -> bool:
    """Whether an object or method on the path to the API call was replaced."""
    for path in (
        ("chat", "completions", "create"),
        ("completions", "create"),
        ("responses", "create"),
        ("messages", "create"),
        ("post",),
    ):
        here = client
        for name in path[:-1]:
            here = vars(here).get(name)  # resources appear here on first use, or when replaced
            if here is None:
                break
            if type(here).__module__.partition(".")[0] != sdk:
                return True
        if here is not None and path[-1] in vars(here):
            return True
    return False


def _own_headers(client: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in client.default_headers.items()
        if isinstance(value, str) and not name.lower().startswith(_SDK_HEADERS)
    } | {name: value for name, value in client._custom_headers.items() if isinstance(value, str)}


def _timeouts(timeout: Any) -> tuple[float | None, float | None]:
    """Return (whole request, connection) in seconds from a number or an `httpx.Timeout`."""
    if timeout is None:
        return None, None
    if isinstance(timeout, int | float):
        return float(timeout), min(float(timeout), OUR_CONNECT_S)
    connect_s = getattr(timeout, "connect", None)
    if connect_s == _SDK_DEFAULT_CONNECT_S:
        # The SDK's default rather than a deliberate choice; thousands of connections at once take longer.
        connect_s = OUR_CONNECT_S
    return getattr(timeout, "read", None), connect_s


def split_arguments(create: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that an SDK method accepts, with unknown ones moved to `extra_body`."""
    try:
        parameters = inspect.signature(create).parameters
    except (TypeError, ValueError):
        return arguments
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) or "extra_body" not in parameters:
        return arguments
    known = {key: value for key, value in arguments.items() if key in parameters}
    unknown = {key: value for key, value in arguments.items() if key not in parameters}
    if unknown:
        known["extra_body"] = {**unknown, **(known.get("extra_body") or {})}
    return known


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
    """Return the library's error for an exception of a client; `who` names the client."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        refusal = _refusal(error, status)
        found = error_of(refusal, url=_url(error), key_var="the client you passed")
        return as_sdk_error(found, refusal, type(error).__module__.partition(".")[0], _url(error))
    text = shown(str(error)) or "no message"
    if isinstance(error, TimeoutError | ConnectionError) or type(error).__name__ in _UNREACHABLE:
        return EndpointUnavailable(f"{who}: {type(error).__name__}: {text}")
    return ModelError(f"{who} failed: {type(error).__name__}: {text}")


def as_sdk_error(error: Error, refusal: Refusal, sdk: str, url: str) -> Error:
    """A refusal of the credentials as an error that is the SDK's (`sdk`: its module) as well as ours.

    Callers who pass their own SDK client catch that SDK's errors. All other errors stay as they are.
    """
    names = {401: "AuthenticationError", 403: "PermissionDeniedError"}
    module = sys.modules.get(sdk)  # loaded: the caller passed an object of the SDK
    theirs = getattr(module, names.get(refusal.status, ""), None)
    if not isinstance(error, AuthenticationError) or sdk not in _SDKS or theirs is None:
        return error
    import httpx  # both SDKs are built on it

    request = httpx.Request("POST", url if "://" in url else "http://endpoint.invalid")
    body = {"message": refusal.text, "code": refusal.code or None}
    response = httpx.Response(refusal.status, request=request, json={"error": body})
    return _both_classes(theirs)(str(error), response, body)


_SDKS = frozenset({"openai", "anthropic"})


@functools.cache
def _both_classes(theirs: type[Exception]) -> Callable[[str, Any, Any], Error]:
    def __init__(self: Any, text: str, response: Any, body: Any) -> None:
        super(AuthenticationError, self).__init__(text, response=response, body=body)  # type: ignore[call-arg]  # theirs

    def __reduce__(self: Any) -> Any:
        return AuthenticationError, self.args  # without the response, which cannot be pickled

    members = {"__init__": __init__, "__reduce__": __reduce__, "__str__": Exception.__str__}
    return type("AuthenticationError", (AuthenticationError, theirs), members)


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

"""A connection to one hub: requests with retries, uploads and downloads with progress and hashes.

```python
async with HubClient(hub_settings()) as hub:
    details = await hub.get("/environmentshub/owner/name/@latest")
```

The key is sent only to the hub's own address: neither along a redirect to another host, nor to an upload or download
address elsewhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import quote, urljoin

import httpx
from pydantic import ValidationError

from verifiers.errors import ConfigError
from verifiers.files import replacement
from verifiers.hub.config import HubSettings, origin
from verifiers.hub.errors import (
    HubConflict,
    HubError,
    HubMisbehaved,
    HubNotConfigured,
    HubNotFound,
    HubRefused,
    HubUnauthorized,
    HubUnavailable,
)
from verifiers.hub.wire import WireRequest

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int | None], None]
"""Called with the bytes transferred so far and the total (None if unknown). A new attempt starts from 0 again."""
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
SLOW_TIMEOUT = httpx.Timeout(300.0, connect=10.0)
"""For requests during which the hub checks and packs large files."""
MAX_REDIRECTS = 5
_PIECE_BYTES = 256 * 1024
_PASSING = {429, 502, 503, 504}
"""Statuses that may be gone at the next attempt."""
Result = TypeVar("Result")


class RetryPolicy(NamedTuple):
    """Number of attempts of a request, and the pauses between them."""

    attempts: int = 4
    first_pause_s: float = 0.5
    """Doubled after each further failure, plus up to half of it at random."""
    longest_pause_s: float = 30.0
    """Also the maximum `Retry-After` that is respected."""

    def pause_s(self, attempt: int, retry_after: str | None) -> float:
        """Return the seconds to wait after the attempt of this number (from 0)."""
        if retry_after is not None and retry_after.isdigit():
            return min(float(retry_after), self.longest_pause_s)
        doubled = self.first_pause_s * 2**attempt
        return min(doubled * (1 + random.random() / 2), self.longest_pause_s)


class _Passing(Exception):
    """A response with a status that may be gone at the next attempt."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(response.status_code)
        self.response = response


class HubClient:
    """One hub and one user. It connects on the first request; use it as a context manager."""

    def __init__(self, settings: HubSettings, retries: RetryPolicy | None = None) -> None:
        self.settings = settings
        self.retries = retries or RetryPolicy()
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def require_key(self) -> str:
        """Return the key. Raises HubNotConfigured without one."""
        if self.settings.api_key is None:
            raise HubNotConfigured(
                f"No API key for {self.settings.base_url}. Log in with `prime login`, or set PRIME_API_KEY."
            )
        return self.settings.api_key

    # --- JSON --------------------------------------------------------------------------------

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the answer to a GET. Members of `query` that are None are left out."""
        return await self.request("GET", path, query=query)

    async def post(
        self, path: str, body: Any = None, *, is_repeatable: bool = True, is_slow: bool = False
    ) -> dict[str, Any]:
        """Return the answer to a POST. If it is not repeatable, it is repeated only when the hub did not receive it."""
        return await self.request(
            "POST", path, body=body, is_repeatable=is_repeatable, is_slow=is_slow
        )

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        is_repeatable: bool = True,
        is_slow: bool = False,
    ) -> dict[str, Any]:
        """Return the JSON object of the hub's answer. `path` follows `/api/v1`; `content` is an encoded body.

        Raises HubUnavailable, HubRefused and its subclasses, HubMisbehaved.
        """
        given = {key: value for key, value in (query or {}).items() if value is not None}
        url = f"{self.settings.base_url}/api/v1{path}"

        async def send() -> httpx.Response:
            http = self._open()
            request = http.build_request(
                method,
                url,
                params=given or None,
                json=body,
                content=content,
                headers={"Content-Type": "application/json", **self._key_for(url)},
                timeout=SLOW_TIMEOUT if is_slow else TIMEOUT,
            )
            return self._accepted(await self._follow(http, request))

        response = await self._retried(send, "request", url, is_repeatable=is_repeatable)
        if response.status_code == 204 or not response.content:
            return {}
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise HubMisbehaved(
                f"{self.settings.base_url} did not answer {method} {path} with a JSON object. Check that it is the "
                "address of a hub."
            )
        return answer

    async def _follow(self, http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        """Send a request along redirects within the hub. A GET may also lead to another host, without the key."""
        for _ in range(MAX_REDIRECTS):
            response = await http.send(request, follow_redirects=False)
            if not response.is_redirect:
                return response
            target = httpx.URL(urljoin(str(request.url), response.headers["Location"]))
            is_same = origin(str(target)) == origin(str(request.url))
            if request.method not in ("GET", "HEAD") and not is_same:
                raise HubMisbehaved(
                    f"{_shown(request.url)} redirects this request to {_shown(target)}. Nothing was sent there. "
                    "If that is your hub, set its address: prime config set-base-url."
                )
            headers = dict(request.headers)
            headers.pop("host", None)
            if not is_same:
                headers.pop("authorization", None)
            request = http.build_request(
                request.method,
                target,
                headers=headers,
                content=request.content,
                timeout=httpx.Timeout(**request.extensions["timeout"]),
            )
        raise HubMisbehaved(f"{_shown(request.url)} redirects more than {MAX_REDIRECTS} times.")

    # --- files -------------------------------------------------------------------------------

    async def upload(self, url: str, file: Path, on_progress: OnProgress | None = None) -> None:
        """PUT a file to an address that the hub supplied. The address grants the permission; no key is sent."""
        total = (await asyncio.to_thread(file.stat)).st_size
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(total)}

        async def send() -> httpx.Response:
            pieces = _pieces(file, total, on_progress)
            http = self._open()
            return self._accepted(
                await http.put(url, content=pieces, headers=headers, timeout=SLOW_TIMEOUT)
            )

        await self._retried(send, f"upload of {file.name}", url)

    async def download(
        self,
        url: str,
        target: Path,
        *,
        sha256: str | None,
        max_bytes: int,
        on_progress: OnProgress | None = None,
    ) -> str:
        """GET a file into `target`, which appears only when it is complete and correct. Returns its SHA-256.

        Raises HubMisbehaved for a hash other than `sha256`, or for more than `max_bytes`.
        """
        with replacement(target) as part:
            digest = await self._retried(
                lambda: self._download(url, part, max_bytes, on_progress), "download", url
            )
            if sha256 is not None and digest != sha256:
                raise HubMisbehaved(
                    f"{_shown(httpx.URL(url))} does not give the bytes that were published: sha256 is {digest}, "
                    f"{sha256} was expected. Nothing was kept."
                )
        return digest

    async def _download(
        self, url: str, part: Path, max_bytes: int, on_progress: OnProgress | None
    ) -> str:
        headers = {"Accept-Encoding": "identity", **self._key_for(url)}
        digest, done = hashlib.sha256(), 0
        # httpx removes the key itself when a redirect leaves the host.
        async with self._open().stream(
            "GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True
        ) as response:
            if not response.is_success:
                await response.aread()
                if response.status_code >= 500:  # a storage behind the hub occasionally answers 500
                    raise _Passing(response)
                self._accepted(response)
            length = response.headers.get("Content-Length")
            total = int(length) if length is not None and length.isdigit() else None
            with part.open("wb") as file:
                async for piece in response.aiter_raw(_PIECE_BYTES):
                    done += len(piece)
                    if done > max_bytes:
                        raise HubMisbehaved(
                            f"{_shown(httpx.URL(url))} sends more than {max_bytes:,} bytes."
                        )
                    digest.update(piece)
                    file.write(piece)
                    if on_progress is not None:
                        on_progress(done, total)
        return digest.hexdigest()

    # --- attempts ----------------------------------------------------------------------------

    async def _retried(
        self,
        send: Callable[[], Awaitable[Result]],
        what: str,
        url: str,
        *,
        is_repeatable: bool = True,
    ) -> Result:
        """Return the result of `send`. It is called again after a lost connection or a temporary status.

        Without `is_repeatable` it is called again only if the hub certainly did not accept the request.
        """
        address = httpx.URL(url)
        for attempt in range(self.retries.attempts):
            is_last = attempt == self.retries.attempts - 1
            retry_after = None
            try:
                return await send()
            except _Passing as passing:
                response = passing.response
                if is_last or not (is_repeatable or response.status_code == 429):
                    raise _refusal(response, self.settings.base_url) from None
                reason = f"HTTP {response.status_code}"
                retry_after = response.headers.get("Retry-After")
            except httpx.TransportError as error:
                never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if is_last or not (is_repeatable or never_sent):
                    raise _unreachable(address, error, what=what) from error
                reason = type(error).__name__
            pause_s = self.retries.pause_s(attempt, retry_after)
            logger.info(
                "%s (%s): %s; trying again in %.1f s", what, _shown(address), reason, pause_s
            )
            await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _accepted(self, response: httpx.Response) -> httpx.Response:
        """Return the response if it is a success. Raises _Passing for a temporary status, else a HubError."""
        if response.is_success:
            return response
        if response.status_code in _PASSING:
            raise _Passing(response)
        raise _refusal(response, self.settings.base_url)

    def _key_for(self, url: str) -> dict[str, str]:
        """Return the header with the key if this is the hub's own address."""
        if origin(url) == origin(self.settings.base_url) and self.settings.api_key:
            return {"Authorization": f"Bearer {self.settings.api_key}"}
        return {}

    def _open(self) -> httpx.AsyncClient:
        if self._http is None:
            agent = f"prime-verifiers/{version('verifiers')}"
            self._http = httpx.AsyncClient(
                headers={"User-Agent": agent}, timeout=TIMEOUT, follow_redirects=False
            )
        return self._http


def environment_path(owner: str, name: str, reference: str | None = None) -> str:
    """Return the path of an environment, or of one of its versions (a number, a content hash or `latest`)."""
    path = f"/environmentshub/{quote(owner, safe='')}/{quote(name, safe='')}"
    return path if reference is None else f"{path}/@{quote(reference, safe='')}"


def body_of(model: type[WireRequest], **values: Any) -> dict[str, Any]:
    """Return a request body in its wire form, without members that are None. Raises ConfigError for a wrong value."""
    given = {key: value for key, value in values.items() if value is not None}
    try:
        checked = model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{place} cannot be {str(first['input'])[:100]!r}: {first['msg']}."
        ) from error
    return checked.model_dump(mode="json", exclude_none=True, exclude_unset=True)


def data_of(answer: Mapping[str, Any]) -> Any:
    """Return the content of a wrapped answer; other answers as they are."""
    return answer.get("data", answer)


def member(answer: Mapping[str, Any], name: str) -> Any:
    """Return a required member of the answer. Raises HubMisbehaved without it."""
    if name not in answer:
        raise HubMisbehaved(f"The hub's answer has no {name!r}; it may be of an unknown version.")
    return answer[name]


async def _pieces(file: Path, total: int, on_progress: OnProgress | None) -> AsyncIterator[bytes]:
    done = 0
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE_BYTES):
            yield piece
            done += len(piece)
            if on_progress is not None:
                on_progress(done, total)


def _refusal(response: httpx.Response, base_url: str) -> HubError:
    """Return the error for a response that is not a success, with the hub's message."""
    status, message = response.status_code, _detail(response)
    if status == 401:
        return HubUnauthorized(
            f"{base_url} does not accept the API key{_because(message)} Log in with `prime login`.",
            status,
        )
    if status == 403:
        return HubUnauthorized(message or "The hub does not allow this (403).", status)
    if status == 404:
        return HubNotFound(message or "Not found.", status)
    if status == 409:
        return HubConflict(
            message or "The object already exists, with other contents (409).", status
        )
    if 400 <= status < 500:
        return HubRefused(message or f"The hub refused the request ({status}).", status)
    return HubUnavailable(f"{base_url} answered HTTP {status}{_because(message)} Try again later.")


def _because(message: str) -> str:
    return f": {message.rstrip('.')}." if message else "."


def _detail(response: httpx.Response) -> str:
    """Return the message of an error answer, on few lines."""
    try:
        body = response.json()
    except ValueError:
        return (
            " ".join(response.text.split())[:300]
            if "html" not in response.text[:300].lower()
            else ""
        )
    detail = body.get("detail") if isinstance(body, dict) else None
    if isinstance(detail, list):
        lines = []
        for item in detail:
            place = ".".join(str(part) for part in item.get("loc", []) if part != "body")
            lines.append(f"{place}: {item.get('msg', '')}".removeprefix(": "))
        return "; ".join(lines)
    return str(detail) if detail else ""


def _unreachable(url: httpx.URL, error: Exception, *, what: str = "request") -> HubUnavailable:
    reason = str(error) or type(error).__name__
    return HubUnavailable(f"The {what} to {_shown(url)} failed: {reason}. Is the hub running?")


def _shown(url: httpx.URL) -> str:
    """Return a URL that may be shown: upload addresses and user-info grant permissions and are removed."""
    text = f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}"
    path = url.path
    return text + ("/upload/…" if path.startswith("/upload/") else path)

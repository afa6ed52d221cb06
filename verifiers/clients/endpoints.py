"""Send a request body and return the response's JSON: choose the endpoint, retry, limit concurrency, classify refusals.

    Channel           several endpoints that serve the same model: round robin among the healthy ones, retries
    EndpointAccess    one base URL with its key, headers, health and (optionally) adaptive limit
    AdaptiveLimit     number of requests in flight that an endpoint accepts
    is_retryable, retry_after_s, backoff_s …    whether and when to repeat a request: pure functions

Repetitions: a request that was never sent (`ConnectFailed`) or that the endpoint refused (408, 409, 425, 429, 5xx) is
repeated up to `max_retries` times. The default of `max_retries` is 10, set in `EndpointClientConfig`
(`verifiers/configs.py`). A request that the endpoint may have processed (`AnswerLost`) is repeated once, with the same
`Idempotency-Key`. This module holds all repetitions of a model call, 429 included; a `Retry-After` and the choice of
another endpoint decide the wait, which a general retry loop does not offer. Whole rollouts are repeated by
`verifiers/rollouts/retries.py`.

The adaptive limit is additive increase, multiplicative decrease (AIMD) without a clock or I/O. Slow start doubles the
limit after every round without a refusal; the first 429 ends slow start and cuts the limit to 80 %; from then on it
grows by 5 % per round. A round is `max(limit, 4)` successes. After a cut nothing changes until the cooldown has
passed. The constants are those of Inspect's controller. Times are seconds of any monotonic clock.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import orjson
from yarl import URL

from verifiers.clients.failures import (
    Refusal,
    error_of,
    is_overlong,
    refusal_of,
    refusal_of_payload,
    shown,
)
from verifiers.clients.sdk import as_sdk_error
from verifiers.clients.transport import AnswerLost, ConnectFailed, HttpReply, Transport, address
from verifiers.errors import InvalidModelResponseError, ModelError

FIRST_LIMIT = 20
LEAST_LIMIT = 1
CUT_FACTOR = 0.8
GROWTH_FACTOR = 0.05
GROWTH_STEP = 5
"""Above this, the limit is always a multiple of this number, which keeps displayed limits steady."""
LEAST_ROUND = 4
COOLDOWN_S = 15.0
BUSY_SHARE = 0.8
"""The limit grows only if the peak of requests in flight came this close to it: an unused limit is not evidence."""


@dataclass(slots=True)
class AdaptiveLimit:
    """Number of requests that may be in flight, and the history of its changes."""

    most: int = 28000
    limit: int = FIRST_LIMIT
    history: list[tuple[float, int]] = field(default_factory=list)
    """(time, new limit) of every change, oldest first."""
    in_flight: int = 0
    _peak: int = 0
    _successes: int = 0
    _is_slow_start: bool = True
    _quiet_until_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.limit = max(LEAST_LIMIT, min(self.limit, self.most))

    @property
    def has_room(self) -> bool:
        """Whether one more request may start."""
        return self.in_flight < self.limit

    def started(self) -> None:
        """Record the start of a request."""
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def succeeded(self, now_s: float) -> None:
        """Record a successful response."""
        self.in_flight -= 1
        if now_s < self._quiet_until_s:
            return
        self._successes += 1
        if self._successes < max(self.limit, LEAST_ROUND):
            return
        if self._peak >= BUSY_SHARE * self.limit:
            self._change(self._grown(), now_s)
        self._start_round()

    def rate_limited(
        self, now_s: float, *, started_s: float, retry_after_s: float | None = None
    ) -> bool:
        """Record a 429 and return whether this controller caused it.

        It did if the request started before the last cut took effect, or if the limit can still decrease. The refusal
        then means "too many at once" rather than "out of quota", and does not count as a failed attempt.
        """
        self.in_flight -= 1
        self._is_slow_start = False
        if now_s < self._quiet_until_s:
            if retry_after_s is not None:
                self._quiet_until_s = max(self._quiet_until_s, now_s + retry_after_s)
            return True
        to_blame = self.limit > LEAST_LIMIT
        self._change(max(LEAST_LIMIT, _rounded_down(int(self.limit * CUT_FACTOR))), now_s)
        self._quiet_until_s = now_s + (COOLDOWN_S if retry_after_s is None else retry_after_s)
        self._start_round()
        return to_blame or started_s < self._cut_s

    def troubled(self) -> None:
        """Record another failure (5xx, time limit): the limit stays, but the round starts again."""
        self.in_flight -= 1
        self._start_round()

    @property
    def _cut_s(self) -> float:
        return self.history[-1][0] if self.history else float("-inf")

    def _grown(self) -> int:
        if self._is_slow_start:
            return min(self.most, self.limit * 2)
        step = max(1, int(self.limit * GROWTH_FACTOR))
        if self.limit >= GROWTH_STEP:
            step = max(GROWTH_STEP, step - step % GROWTH_STEP)
        return min(self.most, self.limit + step)

    def _change(self, limit: int, now_s: float) -> None:
        if limit != self.limit:
            self.limit = limit
            self.history.append((now_s, limit))

    def _start_round(self) -> None:
        self._successes = 0
        self._peak = self.in_flight


def _rounded_down(limit: int) -> int:
    return limit - limit % GROWTH_STEP if limit > GROWTH_STEP else limit


NO_USE_TO_RETRY = ("insufficient_quota", "request too large for", "billing", "credit balance")
"""Codes of a 429 that waiting does not cure: no credit, or one request above the allowance of a whole minute."""

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
LONGEST_RETRY_AFTER_S = 300.0
"""Maximum accepted `Retry-After`, in seconds. An endpoint that asks for more is out of quota: the request fails."""

MOST_UNCERTAIN_RETRIES = 1
"""Maximum number of repetitions of a request that the endpoint may have processed (time limit, connection lost after
sending). A model call is costly and not idempotent, so it is repeated once, with the same `Idempotency-Key`.
"""


def is_retryable(refusal: Refusal) -> bool:
    """Whether the same request may succeed later. False for a prompt that is too long, with any status."""
    if is_overlong(refusal):
        return False
    if refusal.status == 429:
        known = f"{refusal.code} {refusal.text}".lower()
        return not any(words in known for words in NO_USE_TO_RETRY)
    return refusal.status in (408, 409, 425) or refusal.status >= 500


def retry_after_s(headers: Mapping[str, str], *, now_s: float) -> float | None:
    """Return the seconds that the endpoint asks to wait: `retry-after-ms`, or `Retry-After` as seconds or an HTTP date.

    `now_s`: seconds since the epoch. Return None for a missing or invalid header.
    """
    milliseconds = headers.get("retry-after-ms")
    if milliseconds is not None and (wait := _number(milliseconds)) is not None:
        return max(0.0, wait / 1000)
    value = headers.get("Retry-After") or headers.get("retry-after")
    if value is None:
        return None
    if (wait := _number(value)) is not None:
        return max(0.0, wait)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now_s)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number == number and abs(number) != float("inf") else None


def backoff_s(attempt: int, draw: float | None = None) -> float:
    """Return the wait before attempt `attempt + 1`: exponential backoff with full jitter.

    `draw` in [0, 1) replaces the random draw. Source: "full jitter" of Amazon's architecture blog,
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    ceiling = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(attempt, 16))
    return ceiling * (random.random() if draw is None else draw)


def wait_s(attempt: int, requested_s: float | None, draw: float | None = None) -> float:
    """Return the wait before the next attempt: the endpoint's own value, spread so that requests do not return
    together.
    """
    if requested_s is None:
        return backoff_s(attempt, draw)
    return requested_s + min(1.0, 0.1 * requested_s) * (random.random() if draw is None else draw)


logger = logging.getLogger(__name__)

REPORTED_ATTEMPT = 3
"""Number of failed attempts after which a retried request is reported, once."""

FIRST_COOLING_S = 1.0
LONGEST_COOLING_S = 60.0
"""A failing endpoint is skipped for 1 s, then 2 s, 4 s …, up to this many seconds."""

MOST_REMEMBERED_ROLLOUTS = 65_536
"""Number of rollouts whose endpoint is remembered. A rollout stays on one endpoint, whose prefix cache holds its turns.
"""


_SECRET_HEADER_WORDS = ("authorization", "key", "token", "secret", "cookie", "password")
"""A header whose name contains one of these words holds a secret."""


class EndpointAccess:
    """One base URL with its key, headers, health and adaptive limit."""

    def __init__(
        self,
        base_url: str,
        *,
        key: Callable[[], str] = lambda: "",
        key_var: str = "",
        key_header: str = "Authorization",
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        proxy: str | None = None,
        adaptive: AdaptiveLimit | None = None,
        transport: Transport | None = None,
        sdk: str = "",
    ) -> None:
        """`transport`: a separate transport, with other time limits than the channel's. `sdk`: name of the SDK whose
        client object gave this endpoint.
        """
        self.sdk = sdk
        self.transport = transport
        self.base_url = URL(base_url.rstrip("/") + "/")
        self.key_var = key_var
        self.proxy = URL(proxy) if proxy else None
        self.gate = AdaptiveGate(adaptive) if adaptive is not None else None
        self._query = dict(query or {})
        self._key = key
        self._key_header = key_header
        self._fixed_headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": "verifiers",  # some gateways refuse requests without a user agent
            **(headers or {}),
        }
        self._secret_headers = [
            value.removeprefix("Bearer ")
            for name, value in (headers or {}).items()
            if any(word in name.lower() for word in _SECRET_HEADER_WORDS)
        ]
        self._seen_key: str | None = None
        self._headers: dict[str, str] = {}
        self._urls: dict[str, URL] = {}
        self._failures = 0
        self._cooling_until_s = float("-inf")

    def url(self, path: str) -> URL:
        """Return the URL of a path below the base. A base that ends as the path begins (`…/v1` and `v1/messages`) is
        not doubled; `../` goes above the base.
        """
        url = self._urls.get(path)
        if url is None:
            first, _, rest = path.partition("/")
            is_doubled = rest and self.base_url.path.endswith(f"/{first}/")
            url = self.base_url.join(URL(rest if is_doubled else path))
            self._urls[path] = url = url.update_query(self._query) if self._query else url
        return url

    def headers(self) -> dict[str, str]:
        """Return the headers of every request, including the key. Raise AuthenticationError when the key is missing."""
        key = self._key()
        if key != self._seen_key:
            value = f"Bearer {key}" if self._key_header == "Authorization" else key
            # Configured headers win: a proxy in front of the model may need a different `Authorization`.
            self._headers = (
                {self._key_header: value, **self._fixed_headers} if key else self._fixed_headers
            )
            self._seen_key = key
        return self._headers

    def without_key(self, text: str) -> str:
        """Remove the key and secret headers, which some endpoints repeat in their errors, from a text."""
        for secret in (self._seen_key, *self._secret_headers):
            if secret and len(secret) > 4:
                text = text.replace(secret, "[key]")
        return text

    def is_cooling(self, now_s: float) -> bool:
        """Whether the endpoint failed recently and should be skipped."""
        return now_s < self._cooling_until_s

    def has_failed(self, now_s: float) -> None:
        """Skip the endpoint for a while, longer after each consecutive failure."""
        cooling_s = min(LONGEST_COOLING_S, FIRST_COOLING_S * 2.0 ** min(self._failures, 16))
        self._failures += 1
        self._cooling_until_s = now_s + cooling_s

    def has_answered(self) -> None:
        """Record a success and end the skipping."""
        if self._failures:
            self._failures = 0
            self._cooling_until_s = float("-inf")


class AdaptiveGate:
    """Admits requests as an `AdaptiveLimit` allows, in order of arrival."""

    def __init__(self, limit: AdaptiveLimit) -> None:
        self.limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait for a free slot, then count as in flight."""
        while not self.limit.has_room:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                self.let_in()  # the slot may have been assigned already: pass it on
                raise
        self.limit.started()

    def let_in(self) -> None:
        """Wake one waiting request per free slot."""
        room = self.limit.limit - self.limit.in_flight
        while room > 0 and self._waiting:
            turn = self._waiting.popleft()
            loop = turn.get_loop()
            if turn.done() or loop.is_closed():
                continue
            loop.call_soon_threadsafe(_wake, turn)  # requests may wait in several event loops
            room -= 1


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)


class Channel:
    """Endpoints that serve the same model, behind one `post`."""

    def __init__(
        self,
        endpoints: list[EndpointAccess],
        transport: Transport,
        *,
        max_retries: int = 10,
        first: int = 0,
        sleep: Callable[[float], Any] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.endpoints = endpoints
        self.transport = transport
        self.max_retries = max_retries
        self._turns = itertools.count(first)
        self._by_rollout: dict[str, EndpointAccess] = {}
        self._sleep = sleep
        self._clock = clock
        self._requests = itertools.count()
        self._key_prefix = f"vf-{secrets.token_hex(8)}-"

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        rollout_id: str | None = None,
        timeout_s: float | None = None,
        decode: Callable[[bytes], Any] = orjson.loads,
    ) -> dict[str, Any]:
        """Send a JSON body and return the JSON object of the response.

        `rollout_id`: requests with the same id stay on one endpoint while it is healthy. `timeout_s`: limit per
        attempt, instead of the transport's. `decode` replaces `orjson.loads`. Raise the errors of
        `failures.error_of`, EndpointUnavailable or InvalidModelResponseError.
        """
        idempotency_key = f"{self._key_prefix}{next(self._requests)}"
        attempts = counted = uncertain = 0
        while True:
            endpoint = self._pick(rollout_id)
            sent_headers = {**endpoint.headers(), "Idempotency-Key": idempotency_key}
            if headers:
                sent_headers.update(headers)
            attempts += 1
            requested_s, counted_before = None, counted
            try:
                if endpoint.gate is None:
                    reply = await (endpoint.transport or self.transport).post(
                        endpoint.url(path),
                        body,
                        sent_headers,
                        proxy=endpoint.proxy,
                        timeout_s=timeout_s,
                    )
                    is_forgiven = False
                else:
                    reply, is_forgiven = await self._post_through_gate(
                        endpoint, endpoint.gate, path, body, sent_headers, timeout_s
                    )
            except (ConnectFailed, AnswerLost) as error:
                endpoint.has_failed(self._clock())
                counted += 1
                uncertain += isinstance(error, AnswerLost)
                if counted > self.max_retries or uncertain > MOST_UNCERTAIN_RETRIES:
                    raise _with_attempts(error, attempts) from error.__cause__
                problem = str(error)
            else:
                answer = _read_reply(reply, endpoint, path, decode)
                if not isinstance(answer, Refusal):
                    endpoint.has_answered()
                    return answer
                counted += not is_forgiven
                requested_s = retry_after_s(reply.headers, now_s=time.time())
                if (
                    not is_retryable(answer)
                    or counted > self.max_retries
                    or (requested_s or 0.0) > LONGEST_RETRY_AFTER_S
                ):
                    url = address(endpoint.url(path))
                    error = error_of(answer, url=url, key_var=endpoint.key_var, attempts=attempts)
                    raise as_sdk_error(error, answer, endpoint.sdk, url)
                endpoint.has_failed(self._clock())
                problem = (
                    f"{address(endpoint.url(path))} answered {answer.status}: {answer.text:.200}"
                )
            if counted_before < counted == REPORTED_ATTEMPT:
                logger.warning(
                    "%s. Retrying, up to %d times in all.", problem, self.max_retries + 1
                )
            if self._has_a_healthy_endpoint():
                continue  # another endpoint is healthy: retry immediately
            await self._sleep(wait_s(attempts - 1, requested_s))

    async def _post_through_gate(
        self,
        endpoint: EndpointAccess,
        gate: AdaptiveGate,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> tuple[HttpReply, bool]:
        """Send the request and return the reply, and whether its 429 is excused: a 429 caused by the adaptive limit
        is not a failed attempt.
        """
        await gate.enter()
        started_s = self._clock()
        status: int | None = None
        is_forgiven = False
        requested_s: float | None = None
        try:
            reply = await (endpoint.transport or self.transport).post(
                endpoint.url(path), body, headers, proxy=endpoint.proxy, timeout_s=timeout_s
            )
            status = reply.status
            if status == 429:
                requested_s = retry_after_s(reply.headers, now_s=time.time())
        finally:
            if status == 429:
                is_forgiven = gate.limit.rate_limited(
                    self._clock(), started_s=started_s, retry_after_s=requested_s
                )
            elif status is None or status >= 500:
                gate.limit.troubled()
            else:
                gate.limit.succeeded(self._clock())
            gate.let_in()
        return reply, is_forgiven

    def _has_a_healthy_endpoint(self) -> bool:
        now_s = self._clock()
        return len(self.endpoints) > 1 and not all(e.is_cooling(now_s) for e in self.endpoints)

    def _pick(self, rollout_id: str | None) -> EndpointAccess:
        if len(self.endpoints) == 1:
            return self.endpoints[0]
        now_s = self._clock()
        known = self._by_rollout.get(rollout_id) if rollout_id is not None else None
        if known is not None and not known.is_cooling(now_s):
            return known
        count = len(self.endpoints)
        start = next(self._turns)
        chosen = self.endpoints[start % count]
        for step in range(count):  # all endpoints are cooling down: use the next in turn
            candidate = self.endpoints[(start + step) % count]
            if not candidate.is_cooling(now_s):
                chosen = candidate
                break
        if rollout_id is not None:
            self._by_rollout[rollout_id] = chosen
            if len(self._by_rollout) > MOST_REMEMBERED_ROLLOUTS:
                del self._by_rollout[next(iter(self._by_rollout))]
        return chosen

    def without_keys(self, text: str) -> str:
        """Remove the keys and secret headers of all endpoints from a text."""
        for endpoint in self.endpoints:
            text = endpoint.without_key(text)
        return text

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        for transport in {self.transport, *(e.transport for e in self.endpoints if e.transport)}:
            await transport.aclose()


def _read_reply(
    reply: HttpReply, endpoint: EndpointAccess, path: str, decode: Callable[[bytes], Any]
) -> dict[str, Any] | Refusal:
    if not 200 <= reply.status < 300:
        return _refused(reply, endpoint)
    try:
        payload = decode(reply.body)
    except orjson.JSONDecodeError as error:
        kind = reply.headers.get("Content-Type", "no content type")
        content = shown(endpoint.without_key(reply.body[:2000].decode("utf-8", "replace")))
        raise InvalidModelResponseError(
            f"{address(endpoint.url(path))} answered {reply.status} with {kind} that is not JSON: {content!r}. "
            f"Is {address(endpoint.base_url)} the base URL of an OpenAI-compatible API?"
        ) from error
    if not isinstance(payload, dict):
        raise InvalidModelResponseError(
            f"{address(endpoint.url(path))} answered {reply.status} with a JSON {type(payload).__name__} instead of an "
            f"object: {shown(endpoint.without_key(repr(payload)[:2000]))}"
        )
    error = payload.get("error")
    if (
        isinstance(error, dict)
        and not payload.get("choices")
        and isinstance(error.get("code"), int)
    ):
        # OpenRouter reports a provider's failure with status 200 and the real status in the body.
        return refusal_of_payload(error["code"], payload)
    return payload


def _refused(reply: HttpReply, endpoint: EndpointAccess) -> Refusal:
    refusal = refusal_of(reply.status, reply.body)
    text = refusal.text
    if 300 <= reply.status < 400 and (target := reply.headers.get("Location")):
        text = f"redirects to {address(URL(target))}; use that as the base URL. {text}"
    return refusal._replace(text=endpoint.without_key(text))


def _with_attempts(error: ConnectFailed | AnswerLost, attempts: int) -> ModelError:
    return type(error)(f"{error} (after {attempts} attempts)") if attempts > 1 else error

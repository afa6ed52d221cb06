"""Change the weights of inference servers while they generate: pause, new weights, resume, LoRA, health.

Two dialects; the embedded endpoint supports both:

    prime_rl   POST /pause  /update_weights {"weight_dir"}  /resume  /load_lora_adapter     (prime-rl's vLLM)
    vllm       POST /pause  /start_weight_update  /update_weights {"update_info"} …  /finish_weight_update  /resume

`pause(mode="keep")` freezes requests in flight, and they continue with the new weights: no work is lost, and a
completion may hold tokens of several versions. Requests carry `cache_salt(version)`, so that no cached values are
shared between versions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from verifiers.errors import InfraError
from verifiers.rollouts.retries import with_retries
from verifiers.rollouts.scope import shielded

Dialect = Literal["prime_rl", "vllm"]
PauseMode = Literal["keep", "abort", "wait"]
Weights = str | Path | Sequence[Mapping[str, Any]]
"""A folder that the server can read or, for vLLM's transfer engines, the `update_info` of every part in order."""


def cache_salt(version: int) -> str:
    """Return the prefix-cache salt of a policy version: keys and values of older weights are never reused."""
    return f"policy-{version}"


class InferenceAdminError(InfraError):
    """An administration request to an inference server failed."""


class AdminUnavailable(InferenceAdminError):
    """The server did not answer, or failed, after all attempts. A later attempt may succeed."""


class AdminRefused(InferenceAdminError):
    """The server refused the request. Repeating the same request cannot succeed."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class UpdateFailed(InferenceAdminError):
    """Some servers do not have the new weights; `failures` holds their reasons, `updated` the others."""

    def __init__(self, failures: Mapping[str, str], updated: Sequence[str]) -> None:
        super().__init__(dict(failures), list(updated))
        self.failures = dict(failures)
        self.updated = list(updated)

    def __str__(self) -> str:
        count = len(self.failures) + len(self.updated)
        reasons = "; ".join(f"{url}: {reason}" for url, reason in self.failures.items())
        return (
            f"{len(self.failures)} of {count} inference servers did not take the weights: {reasons}"
        )


class AdminConfig(BaseModel):
    """Settings for the administration of a server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dialect: Dialect = "prime_rl"
    request_timeout_s: float = Field(default=60.0, gt=0)
    """Maximum seconds for pause, resume and health."""
    update_timeout_s: float = Field(default=1800.0, gt=0)
    """Maximum seconds for loading one part of the weights."""
    max_attempts: int = Field(default=4, ge=1)
    """Maximum number of attempts for a request that failed temporarily. Every request here may safely be repeated."""
    first_wait_s: float = Field(default=0.5, ge=0)
    """Maximum wait before the second attempt, in seconds; doubles with each attempt."""


class ServerStatus(NamedTuple):
    """Status reported by a server."""

    is_healthy: bool
    version: int | None
    """Version of the server's weights, None if it does not report one."""
    detail: str


class InferenceAdmin:
    """Administration of one server. Use it as an async context manager: it holds a connection.

    async with InferenceAdmin("http://127.0.0.1:8000") as admin:
        await admin.update_weights("weights/step_7", version=7)
    """

    def __init__(
        self, url: str, config: AdminConfig | None = None, *, api_key: str | None = None
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.config = config or AdminConfig()
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ------------------------------------------------------------------------------------------ health

    async def status(self) -> ServerStatus:
        """Return whether the server answers, and with which weights. Never raises."""
        try:
            await self._once("GET", "/health", None, self.config.request_timeout_s)
        except InferenceAdminError as error:
            return ServerStatus(False, None, str(error))
        try:
            info = await self._once("GET", "/weight_info", None, self.config.request_timeout_s)
            version = int(info["weight_version"])
        except (InferenceAdminError, KeyError, TypeError, ValueError):
            version = None  # prime-rl's server and older ones do not report a version
        return ServerStatus(True, version, "ok")

    async def wait_until_healthy(self, timeout_s: float, *, every_s: float = 0.5) -> ServerStatus:
        """Return the status once the server is up. Raise AdminUnavailable if it is not up after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not (status := await self.status()).is_healthy:
            if time.monotonic() >= deadline:
                raise AdminUnavailable(
                    f"{self.url} is not up after {timeout_s:g} s: {status.detail}"
                )
            await asyncio.sleep(every_s)
        return status

    # ------------------------------------------------------------------------------------------ pausing

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stop generating. "keep" freezes requests, "abort" ends them, "wait" lets them finish first."""
        await self._request("POST", f"/pause?mode={mode}", None)

    async def resume(self) -> None:
        """Continue generating. Frozen requests continue where they stopped."""
        await self._request("POST", "/resume", None)

    # ------------------------------------------------------------------------------------------ weights

    async def update_weights(self, weights: Weights, version: int, *, pause: bool = True) -> None:
        """Load new weights. With `pause`, generation is frozen meanwhile and always resumed.

        Raise AdminRefused when the server cannot use them; it then keeps the old weights.
        """
        if not pause:
            await self.load_weights(weights, version)
            return
        failure: InferenceAdminError | None = None
        try:
            await self.pause()
            await self.load_weights(weights, version)
        except InferenceAdminError as error:
            failure = error
            raise
        finally:
            try:
                await shielded(self.resume)
            except InferenceAdminError as error:
                if failure is None:
                    raise
                raise AdminUnavailable(f"{failure} Resuming failed as well: {error}") from failure

    async def load_weights(self, weights: Weights, version: int) -> None:
        """Load new weights without pausing; see `update_weights`."""
        if self.config.dialect == "prime_rl":
            if not isinstance(weights, str | Path):
                raise AdminRefused(
                    "prime-rl's route accepts a folder only; use dialect='vllm' for parts.", 400
                )
            # prime-rl ignores an unknown field `version`; the embedded endpoint labels tokens with it.
            body = {"weight_dir": str(weights), "version": version}
            await self._request("POST", "/update_weights", body, slow=True)
            return
        parts = [{"weight_dir": str(weights)}] if isinstance(weights, str | Path) else weights
        # An interrupted update starts over: parts must not be added to half of another update.
        await self._retried(lambda: self._load_parts(parts, version))

    async def _load_parts(self, parts: Sequence[Mapping[str, Any]], version: int) -> None:
        slow = self.config.update_timeout_s
        await self._once("POST", "/start_weight_update", {"is_checkpoint_format": True}, slow)
        for part in parts:
            await self._once("POST", "/update_weights", {"update_info": dict(part)}, slow)
        await self._once("POST", "/finish_weight_update", {"weight_version": str(version)}, slow)

    async def load_lora(self, name: str, folder: str | Path) -> None:
        """Load an adapter, or replace the one of that name. Requests then use `name` as the model.

        Raise AdminRefused when the server does not support adapters.
        """
        body = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
        path = (
            "/load_lora_adapter" if self.config.dialect == "prime_rl" else "/v1/load_lora_adapter"
        )
        await self._request("POST", path, body, slow=True)

    async def unload_lora(self, name: str) -> None:
        """Unload an adapter."""
        await self._request("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    # ------------------------------------------------------------------------------------------ requests

    async def _request(self, method: str, path: str, body: Any, *, slow: bool = False) -> Any:
        timeout_s = self.config.update_timeout_s if slow else self.config.request_timeout_s
        return await self._retried(lambda: self._once(method, path, body, timeout_s))

    async def _retried(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        return await with_retries(
            ask,
            lambda _: None,
            self.config.max_attempts - 1,
            raised=(AdminUnavailable,),
            initial_s=self.config.first_wait_s,
        )

    async def _once(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        if self._session is None:
            raise RuntimeError("The administration is not open; use it with `async with`.")
        what = f"{method} {self.url}{path.partition('?')[0]}"
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method, f"{self.url}{path}", json=body, timeout=timeout
            ) as response:
                content = await response.read()
                if response.status < 400:
                    return await _json(response)
        except TimeoutError as error:
            raise AdminUnavailable(f"{what} did not answer within {timeout_s:g} s.") from error
        except aiohttp.ClientError as error:
            raise AdminUnavailable(f"{what} failed: {error or type(error).__name__}.") from error
        message = f"{what} answered {response.status}: {_error_text(content)}"
        if response.status in (408, 425, 429) or (
            response.status >= 500 and response.status != 501
        ):
            raise AdminUnavailable(message)
        if response.status == 404 and "lora" in path:
            message += (
                " (vLLM has adapters with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)"
            )
        raise AdminRefused(message, response.status)


async def _json(response: aiohttp.ClientResponse) -> Any:
    try:
        return await response.json(content_type=None)
    except ValueError:
        return None  # vLLM answers some routes with an empty body or a plain word


def _error_text(content: bytes) -> str:
    from verifiers.clients.failures import refusal_of, shown

    return shown(refusal_of(0, content).text) or "(nothing)"


async def update_all(
    admins: Sequence[InferenceAdmin], weights: Weights, version: int, *, pause: bool = True
) -> list[InferenceAdminError | None]:
    """Call `update_weights` on several servers at once; return why each failed, None for those with the new weights.

    All servers are resumed in any case.
    """
    results = await asyncio.gather(
        *(admin.update_weights(weights, version, pause=pause) for admin in admins),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, InferenceAdminError):
            raise result
    return [result if isinstance(result, InferenceAdminError) else None for result in results]

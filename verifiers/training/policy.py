"""A policy behind inference servers: clients that record the version of each sampled token, and the administration.

`EndpointWatch` takes endpoints out of use while they are unreachable or lack the policy's weights.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verifiers.clients.openai_chat_completions_token_client import OpenAIChatCompletionsTokenClient
from verifiers.configs import ClientConfig
from verifiers.errors import EndpointUnavailable, Error, error_chain
from verifiers.training.dispatch import Dispatch
from verifiers.training.inference_admin import (
    AdminConfig,
    InferenceAdmin,
    InferenceAdminError,
    ServerStatus,
    UpdateFailed,
    cache_salt,
)
from verifiers.types import Response

logger = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 1.0
"""Seconds between two checks of an unreachable endpoint."""


class PolicyClient(OpenAIChatCompletionsTokenClient):
    """The token client of one inference server whose weights change.

    Every sampled token carries a version: the one that the server reports (`token_versions`, the embedded endpoint),
    else the version at the time of the request, which is never newer than the real one. Requests carry a prefix-cache
    salt of their version, unless `salts` is off for a server that does not support the field.
    """

    def __init__(self, client_or_config: Any, *, version: int = 0, salts: bool = True) -> None:
        super().__init__(client_or_config)
        self.version = version
        self.salts = salts

    def request_body(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the JSON body of a request, with the salt."""
        body = super().request_body(*args, **kwargs)
        if self.salts:
            body.setdefault("cache_salt", cache_salt(self.version))
        return body

    async def _ask(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        version = self.version
        payload = await super()._ask(*args, **kwargs)
        payload["policy_version"] = version
        return payload

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format, its tokens with their versions."""
        response = super().response_of(payload)
        tokens = response["message"].get("tokens")
        if tokens is not None and "versions" not in tokens:
            tokens["versions"] = payload["policy_version"]
        return response


@dataclass(frozen=True, eq=False)
class PolicyEndpoint:
    """One inference server: the client that samples from it, and its administration if its weights can be changed."""

    client: Any
    """A `PolicyClient`. Any other client works as well, but its tokens carry no versions."""
    admin: InferenceAdmin | None = None

    @classmethod
    def at(
        cls,
        url: str,
        *,
        api_key_var: str | None = None,
        api_key: str | None = None,
        admin: AdminConfig | None = None,
        salts: bool = True,
    ) -> PolicyEndpoint:
        """Return the endpoint of the server at `url`, its root or its `/v1`.

        `api_key_var` names the environment variable with the key for sampling; `api_key` is the key for
        administration.
        """
        root = url.rstrip("/").removesuffix("/v1")
        fields = {"client_type": "openai_chat_completions_token", "api_base_url": f"{root}/v1"}
        if api_key_var is not None:
            fields["api_key_var"] = api_key_var
        config = ClientConfig.model_validate(fields)
        return cls(PolicyClient(config, salts=salts), InferenceAdmin(root, admin, api_key=api_key))

    @property
    def url(self) -> str:
        """Root URL of the server, or the client's name for a server without administration."""
        return self.admin.url if self.admin is not None else type(self.client).__name__

    def set_version(self, version: int) -> None:
        """Record that the server now has the weights of this version."""
        if isinstance(self.client, PolicyClient):
            self.client.version = version


class SourceStalled(Error, RuntimeError):
    """The source produces nothing: no endpoint answers, all rollouts fail, or no group has different rewards."""


class EndpointWatch:
    """Takes endpoints out of a `Dispatch` and puts them back; `spawn` runs a coroutine function beside the source."""

    def __init__(
        self,
        dispatch: Dispatch,
        endpoints: Sequence[PolicyEndpoint],
        *,
        timeout_s: float,
        spawn: Callable[..., Any],
        on_back: Callable[[], None],
    ) -> None:
        self._dispatch = dispatch
        self._endpoints = endpoints
        self._timeout_s = timeout_s
        self._spawn = spawn
        self._on_back = on_back
        self._wanted: list[int | None] = [None] * len(endpoints)
        """Version of the weights that the source sent to each endpoint; None when another program sends them."""
        self._missed: set[int] = set()
        """Endpoints that are known not to have the last weights."""

    # ------------------------------------------------------------------------------------------ weights

    def take_update(
        self, results: Sequence[InferenceAdminError | None], version: int
    ) -> UpdateFailed | None:
        """Use only the endpoints that have the new weights; `results`: of `update_all`. Return the failures.

        If no endpoint has them, nothing changes: all have the same old weights.
        """
        ends = list(zip(self._endpoints, results, strict=True))
        failed = {endpoint.url: str(result) for endpoint, result in ends if result is not None}
        updated = [endpoint.url for endpoint, result in ends if result is None]
        if updated:
            for index, (endpoint, result) in enumerate(ends):
                took = result is None
                self._wanted[index] = version
                self._missed = self._missed - {index} if took else self._missed | {index}
                self._dispatch.set_healthy(index, took)
                if took:
                    endpoint.set_version(version)
        return UpdateFailed(failed, updated) if failed else None

    def take_version(self, version: int) -> None:
        """Record that another program has sent the weights of this version to all endpoints."""
        self._wanted = [None] * len(self._endpoints)
        for index in self._missed:
            self._dispatch.set_healthy(index, True)
        self._missed = set()
        for endpoint in self._endpoints:
            endpoint.set_version(version)

    # ------------------------------------------------------------------------------------------ reachability

    def note(self, endpoint: int, error: Any) -> None:
        """Record a failed rollout on this endpoint. An endpoint without administration routes cannot be checked and
        stays in use.
        """
        admin = self._endpoints[endpoint].admin
        if admin is None or not self._dispatch.healthy_endpoints()[endpoint]:
            return
        if any(isinstance(link, EndpointUnavailable) for link in error_chain(error)):
            logger.warning("%s cannot be reached and is not used: %s", admin.url, error)
            self._dispatch.set_healthy(endpoint, False)
            self._spawn(self._watch, endpoint, admin)

    async def _watch(self, endpoint: int, admin: InferenceAdmin) -> None:
        """Wait until the endpoint is back. Raise SourceStalled if no endpoint was available for the time limit."""
        deadline = time.monotonic() + self._timeout_s
        while (missing := self._missing(endpoint, await admin.status())) is not None:
            if any(self._dispatch.healthy_endpoints()):
                deadline = time.monotonic() + self._timeout_s
            elif time.monotonic() >= deadline:
                raise SourceStalled(
                    f"No endpoint answered for {self._timeout_s:g} s; last error: {missing}"
                )
            await asyncio.sleep(min(HEALTH_INTERVAL_S, self._timeout_s))
        logger.info("%s answers again", admin.url)
        self._missed.discard(endpoint)
        self._dispatch.set_healthy(endpoint, True)
        self._on_back()

    def _missing(self, endpoint: int, status: ServerStatus) -> str | None:
        """Return why an endpoint cannot be used, None if it can: it is up, and has the weights that it received.

        A restarted server has its initial weights. A server that does not report its version is trusted unless it
        missed an update.
        """
        if not status.is_healthy:
            return status.detail
        wanted = self._wanted[endpoint]
        if wanted is None or status.version == wanted:
            return None
        if status.version is None and endpoint not in self._missed:
            return None
        own = "older weights" if status.version is None else f"weights of version {status.version}"
        url = self._endpoints[endpoint].url
        return f"{url} is up with {own}, but the policy has version {wanted}: it waits for the next update"

"""Take endpoints out of use while they are unreachable or lack the policy's weights."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from verifiers.errors import EndpointUnavailable, Error, error_chain
from verifiers.training.dispatch import Dispatch
from verifiers.training.inference_admin import (
    InferenceAdmin,
    InferenceAdminError,
    ServerStatus,
    UpdateFailed,
)
from verifiers.training.policy import PolicyEndpoint

logger = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 1.0
"""Seconds between two checks of an unreachable endpoint."""


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

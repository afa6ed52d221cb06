"""Endpoints that cannot be reached get no rollouts until they answer again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from verifiers.errors import EndpointUnavailable, Error, error_chain
from verifiers.training.dispatch import Dispatch
from verifiers.training.inference_admin import InferenceAdmin
from verifiers.training.policy import PolicyEndpoint

logger = logging.getLogger(__name__)

HEALTH_INTERVAL_S = 1.0
"""How often an endpoint that could not be reached is asked whether it is back."""


class SourceStalled(Error, RuntimeError):
    """The source works and nothing comes of it: no endpoint answers, all rollouts fail, or none teaches."""


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

    def note(self, endpoint: int, error: Any) -> None:
        """A rollout on this endpoint failed; an endpoint without administration cannot be asked and stays in use."""
        admin = self._endpoints[endpoint].admin
        if admin is None or not self._dispatch.healthy_endpoints()[endpoint]:
            return
        if any(isinstance(link, EndpointUnavailable) for link in error_chain(error)):
            logger.warning("%s cannot be reached and is left out: %s", admin.url, error)
            self._dispatch.set_healthy(endpoint, False)
            self._spawn(self._watch, endpoint, admin)

    async def _watch(self, endpoint: int, admin: InferenceAdmin) -> None:
        """Wait until it is back. Raises SourceStalled when none of the endpoints was there for the time limit."""
        deadline = time.monotonic() + self._timeout_s
        while not (status := await admin.status()).is_healthy:
            if any(self._dispatch.healthy_endpoints()):
                deadline = time.monotonic() + self._timeout_s
            elif time.monotonic() >= deadline:
                raise SourceStalled(
                    f"No endpoint answered for {self._timeout_s:g} s; the last word: {status.detail}"
                )
            await asyncio.sleep(min(HEALTH_INTERVAL_S, self._timeout_s))
        logger.info("%s answers again", admin.url)
        self._dispatch.set_healthy(endpoint, True)
        self._on_back()

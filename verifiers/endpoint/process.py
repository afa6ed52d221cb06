"""The endpoint in a separate process, which ends with the process that started it.

The parent holds the write end of a pipe to the child's standard input. When the parent ends, even by SIGKILL, the
pipe closes and the child stops serving.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from verifiers.child_process import (
    ChildProcess,
    described_exit,
    python_command,
    settings_line,
)
from verifiers.endpoint.errors import EndpointStartError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0

BLAS_THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Set to 1 before numpy loads: matrices this small lose time when threads share them."""


class EndpointProcess:
    """A running endpoint process. Close it, or use it as a context manager."""

    def __init__(self, process: ChildProcess, base_url: str, model: str) -> None:
        self._process = process
        self.base_url = base_url
        """The `base_url` for OpenAI clients."""
        self.model = model
        """Name of the served model."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Root URL of the server."""
        return self.base_url.removesuffix("/v1")

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self._process.is_running

    def close(self) -> None:
        """End the process and wait for it. Do nothing if it has ended."""
        self._process.close(STOP_TIMEOUT_S)

    def __enter__(self) -> EndpointProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def start_endpoint_process(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    model_name: str = "embedded",
    weights: str | Path | None = None,
    api_key: str | None = None,
    max_running: int | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
) -> EndpointProcess:
    """Start the endpoint and return once it accepts requests.

    Raise EndpointStartError, with the error the process reported, if the process ends or prints nothing within
    `start_timeout_s` seconds. Blocks for about half a second; in a coroutine use `asyncio.to_thread`.
    """
    settings = {
        "host": host,
        "port": port,
        "model_names": [model_name],
        "weights": None if weights is None else str(weights),
        "api_key": api_key,
        "max_running": max_running,
    }
    process = ChildProcess(
        python_command("verifiers.endpoint.__main__"),
        env={**os.environ, **dict.fromkeys(BLAS_THREAD_VARIABLES, "1")},
    )
    try:
        answer = _introduce(process, settings, start_timeout_s)
        if "base_url" not in answer:
            process.close(STOP_TIMEOUT_S)
            reason = answer.get("error") or "It printed nothing."
            raise EndpointStartError(
                f"The endpoint process {described_exit(process.exit_code)} before it served. {reason}"
            )
    except BaseException:
        process.close()
        raise
    return EndpointProcess(process, answer["base_url"], model_name)


def _introduce(
    process: ChildProcess, settings: dict[str, object], timeout_s: float
) -> dict[str, str]:
    # Returns the child's announcement; an empty dict if the child ended without one.
    try:
        process.send(settings_line(settings))
    except BrokenPipeError:
        return {}
    line = process.read_line(timeout_s)
    if line is None:
        raise EndpointStartError(
            f"The endpoint process {process.pid} printed nothing within {timeout_s:g} s and was stopped."
        )
    return json.loads(line) if line else {}


@contextmanager
def endpoint_process(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    model_name: str = "embedded",
    weights: str | Path | None = None,
    api_key: str | None = None,
    max_running: int | None = None,
) -> Iterator[EndpointProcess]:
    """Context manager around `start_endpoint_process`: the process ends with the block."""
    with start_endpoint_process(
        host=host,
        port=port,
        model_name=model_name,
        weights=weights,
        api_key=api_key,
        max_running=max_running,
    ) as endpoint:
        yield endpoint

"""A `RolloutSource` in a thread with an event loop of its own, for trainers whose loop is not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from verifiers.training.batch import Batch
from verifiers.training.source import RolloutSource


class SourceThread:
    """Plays from `start` to `stop`; every batch is given to `deliver`, and the next one is made when it returns."""

    def __init__(self, source: RolloutSource, deliver: Callable[[Batch], Awaitable[None]]) -> None:
        self.failure: BaseException | None = None
        """What has stopped it, None when nothing or `stop` has."""
        self._source = source
        self._deliver = deliver
        self._version = 0
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_playing(self) -> bool:
        """Whether there are more batches to come."""
        return self.failure is None and self._thread.is_alive()

    def start(self, version: int) -> None:
        """Returns once the source is open, its endpoints at `version`; raises what kept it from opening."""
        self._version = version
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Cancel what is played and wait until it has cleaned up."""
        if self._thread.is_alive():
            self._ready.result().call_soon_threadsafe(self._stop_task)
            self._thread.join()

    def _stop_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def set_version(self, version: int) -> None:
        """The servers have new weights. Returns when rollouts that became too old have been stopped."""
        if self._ready.done() and self._thread.is_alive():
            change = self._source.set_version(version)
            asyncio.run_coroutine_threadsafe(change, self._ready.result()).result()

    def wait(self, timeout_s: float) -> None:
        """Until it has stopped, at most so long."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except asyncio.CancelledError:
            pass  # stop()
        except BaseException as error:  # noqa: BLE001 - the trainer's thread is told by `failure`
            self.failure = error
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _play(self) -> None:
        self._task = asyncio.current_task()
        async with self._source as source:
            await source.set_version(self._version)
            self._ready.set_result(asyncio.get_running_loop())
            while True:
                await self._deliver(await source.next_batch())

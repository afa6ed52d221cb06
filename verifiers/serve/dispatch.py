"""`Dispatch`: which worker gets which request, as a state machine without time, processes or network.

A request's life:

    submit ─► queued ─► running ─► finished               its answer goes to the client, once
                ▲          │
                └── death ─┘       its worker died: it is queued again, among the suspects
                           │
                           └────► quarantined             workers died with nothing but this request, too often

Who is to blame when a worker with 400 requests dies? Nobody knows, so after each death its requests may share a worker
with only a quarter as many others. A request that kills is alone within a few deaths, and then blame is certain;
an innocent one finishes on the way. Requests that kill only together (memory) are apart by then, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

SHRINK = 4
"""How many times fewer requests may share a worker after each death."""


class Key(NamedTuple):
    """One request of one client."""

    client: bytes
    request: bytes


@dataclass(slots=True, eq=False)
class Job:
    """A request that is not answered yet."""

    key: Key
    payload: bytes
    most_together: int
    """How many requests, this one included, may be on its worker."""
    worker: str | None = None
    deaths: int = 0
    """Workers that died with this request."""
    lone_deaths: int = 0
    """Workers that died with this request alone."""
    is_cancelled: bool = False
    """Its client no longer waits, but its worker has not confirmed the end."""


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    jobs: dict[Key, Job] = field(default_factory=dict)

    @property
    def most_together(self) -> int:
        """Strictest wish among its suspects; fresh requests have none below the capacity."""
        return min(job.most_together for job in self.jobs.values())


class Dispatch:
    """Requests and workers. Every submitted request ends exactly once: finished, cancelled or quarantined."""

    def __init__(self, *, capacity: int, max_lone_deaths: int) -> None:
        self._capacity = capacity
        self._max_lone_deaths = max_lone_deaths
        self._jobs: dict[Key, Job] = {}
        self._fresh: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._workers: dict[str, _Worker] = {}
        self._held_suspects = 0
        """Suspects on workers; while it is 0 nobody's wish has to be looked up."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: object) -> bool:
        return key in self._jobs

    @property
    def queued(self) -> int:
        """Requests that wait for a worker."""
        return sum(not job.is_cancelled for job in (*self._fresh, *self._suspects))

    def jobs(self) -> Iterator[Job]:
        """Every request that is not answered yet."""
        return iter(self._jobs.values())

    def load(self, worker: str) -> int:
        """Requests on a worker; 0 for one that is gone."""
        found = self._workers.get(worker)
        return 0 if found is None else len(found.jobs)

    def submit(self, key: Key, payload: bytes) -> bool:
        """Take a request over. False when it is here already: the client has sent it twice."""
        if key in self._jobs:
            return False
        job = self._jobs[key] = Job(key, payload, self._capacity)
        self._fresh.append(job)
        return True

    def add_worker(self, name: str) -> None:
        """A worker is ready."""
        self._workers[name] = _Worker(name)

    def assign(self) -> list[Job]:
        """Requests to send now; `job.worker` says to whom. Suspects go first, and get room to be apart."""
        assigned: list[Job] = []
        reserved: _Worker | None = None
        while self._suspects:
            job = self._suspects[0]
            if job.is_cancelled:
                self._suspects.popleft()
                continue
            worker = self._least_busy()
            if worker is None:
                return assigned
            if not self._fits(job, worker):
                reserved = worker  # it takes nothing else until the suspect fits
                break
            self._suspects.popleft()
            self._put(job, worker, assigned)
        while self._fresh:
            job = self._fresh[0]
            if job.is_cancelled:
                self._fresh.popleft()
                continue
            worker = self._least_busy(without=reserved, with_room_for=job)
            if worker is None:
                break
            self._fresh.popleft()
            self._put(job, worker, assigned)
        return assigned

    def _least_busy(
        self, *, without: _Worker | None = None, with_room_for: Job | None = None
    ) -> _Worker | None:
        best: _Worker | None = None
        for worker in self._workers.values():
            if worker is without or (best is not None and len(worker.jobs) >= len(best.jobs)):
                continue
            if with_room_for is None or self._fits(with_room_for, worker):
                best = worker
        return best

    def _fits(self, job: Job, worker: _Worker) -> bool:
        together = len(worker.jobs) + 1
        if together > job.most_together:
            return False
        return not self._held_suspects or not worker.jobs or together <= worker.most_together

    def _put(self, job: Job, worker: _Worker, assigned: list[Job]) -> None:
        job.worker = worker.name
        worker.jobs[job.key] = job
        self._held_suspects += job.deaths > 0
        assigned.append(job)

    def finish(self, worker: str, key: Key) -> Job | None:
        """A worker has answered. The request, if it was this worker's to answer and nobody has answered it before."""
        job = self._jobs.get(key)
        if job is None or job.worker != worker:
            return None
        del self._jobs[key]
        del self._workers[worker].jobs[key]
        self._held_suspects -= job.deaths > 0
        return job

    def cancel(self, key: Key) -> Job | None:
        """A client no longer waits. The request, if a worker must be told; its answer will be thrown away."""
        job = self._jobs.get(key)
        if job is None or job.is_cancelled:
            return None
        job.is_cancelled = True
        if job.worker is None:
            del self._jobs[key]  # `assign` passes over what is left of it in the queue
            return None
        return job

    def lose_worker(self, name: str) -> list[Job]:
        """A worker died. What it had is queued again, except for the requests given back: those are quarantined."""
        lost = self._workers.pop(name, None)
        if lost is None:
            return []
        together = len(lost.jobs)
        quarantined: list[Job] = []
        for job in lost.jobs.values():
            self._held_suspects -= job.deaths > 0
            job.worker = None
            if job.is_cancelled:
                del self._jobs[job.key]
                continue
            job.deaths += 1
            job.lone_deaths += together == 1
            job.most_together = max(1, min(job.most_together, together) // SHRINK)
            if job.lone_deaths >= self._max_lone_deaths:
                del self._jobs[job.key]
                quarantined.append(job)
            else:
                self._suspects.append(job)
        return quarantined

    def drop_all(self) -> list[Job]:
        """Forget every request; those somebody waits for are given back."""
        waiting = [job for job in self._jobs.values() if not job.is_cancelled]
        self._jobs.clear()
        self._fresh.clear()
        self._suspects.clear()
        for worker in self._workers.values():
            worker.jobs.clear()
        self._held_suspects = 0
        return waiting

"""`RequestDispatch`: assigns requests to workers. A state machine without clock, processes or network.

The life of a request:

    submit ─► queued ─► running ─► finished               its response goes to the client, once
                ▲          │
                └── death ─┘       its worker died: the request is queued again, as a suspect
                           │
                           └────► quarantined             too many workers died while they had only this request

If a worker with 400 requests dies, the guilty request is unknown. After each death, each of its requests may therefore
share a worker with only a quarter of the others. A request that kills workers is alone after a few deaths, and then
its guilt is certain; innocent requests finish on the way. Requests that kill only together (memory) are apart by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

SHRINK = 4
"""Factor by which the number of requests that may share a worker falls after each death."""


class Key(NamedTuple):
    """One request of one client."""

    client: bytes
    request: bytes


@dataclass(slots=True, eq=False)
class Job:
    """A request without a response yet."""

    key: Key
    payload: bytes
    most_together: int
    """Maximum number of requests on its worker, this one included."""
    worker: str | None = None
    deaths: int = 0
    """Workers that died with this request."""
    lone_deaths: int = 0
    """Workers that died with this request alone."""
    is_cancelled: bool = False
    """The client no longer waits, but the worker has not confirmed the end."""


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    jobs: dict[Key, Job] = field(default_factory=dict)

    @property
    def most_together(self) -> int:
        """The lowest limit among its requests. Only suspects have limits below the capacity."""
        return min(job.most_together for job in self.jobs.values())


class RequestDispatch:
    """All requests and workers. Every submitted request ends exactly once: finished, cancelled or quarantined."""

    def __init__(self, *, capacity: int, max_lone_deaths: int) -> None:
        self._capacity = capacity
        self._max_lone_deaths = max_lone_deaths
        self._jobs: dict[Key, Job] = {}
        self._fresh: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._workers: dict[str, _Worker] = {}
        self._held_suspects = 0
        """Number of suspects on workers. While it is 0, `assign` skips the limits of single requests."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: object) -> bool:
        return key in self._jobs

    @property
    def queued(self) -> int:
        """Number of requests that wait for a worker."""
        return sum(not job.is_cancelled for job in (*self._fresh, *self._suspects))

    def jobs(self) -> Iterator[Job]:
        """All requests without a response yet."""
        return iter(self._jobs.values())

    def load(self, worker: str) -> int:
        """Return the number of requests on a worker; 0 for a worker that is gone."""
        found = self._workers.get(worker)
        return 0 if found is None else len(found.jobs)

    def submit(self, key: Key, payload: bytes) -> bool:
        """Queue a request. Return False if it is here already, because the client sent it twice."""
        if key in self._jobs:
            return False
        job = self._jobs[key] = Job(key, payload, self._capacity)
        self._fresh.append(job)
        return True

    def add_worker(self, name: str) -> None:
        """Add a worker that is ready."""
        self._workers[name] = _Worker(name)

    def assign(self) -> list[Job]:
        """Return the requests to send now, each to its `job.worker`.

        Suspects go first and receive workers with few requests.
        """
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
                reserved = worker  # it accepts nothing else until the suspect fits
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
        """Record a worker's response. Return the request if this worker had it and no other worker has responded."""
        job = self._jobs.get(key)
        if job is None or job.worker != worker:
            return None
        del self._jobs[key]
        del self._workers[worker].jobs[key]
        self._held_suspects -= job.deaths > 0
        return job

    def cancel(self, key: Key) -> Job | None:
        """Record that a client no longer waits.

        Return the request if its worker must cancel it; its response is dropped.
        """
        job = self._jobs.get(key)
        if job is None or job.is_cancelled:
            return None
        job.is_cancelled = True
        if job.worker is None:
            del self._jobs[key]  # `assign` skips the rest of it in the queue
            return None
        return job

    def lose_worker(self, name: str) -> list[Job]:
        """Record a worker's death and queue its requests again. Return those that are quarantined instead."""
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
        """Remove all requests. Return those that clients still wait for."""
        waiting = [job for job in self._jobs.values() if not job.is_cancelled]
        self._jobs.clear()
        self._fresh.clear()
        self._suspects.clear()
        for worker in self._workers.values():
            worker.jobs.clear()
        self._held_suspects = 0
        return waiting

"""The promises hold on every event loop that programs use: asyncio's, a subclass of it, uvloop's; in any thread."""

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple

import pytest
import uvloop

from verifiers.sandboxes.contract import BEHAVIOURS, Behaviour, Bench


class SubclassedLoop(asyncio.SelectorEventLoop):
    """As notebooks and tracing tools have it: asyncio's loop with a class of its own."""


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "subclass": SubclassedLoop,
    "uvloop": uvloop.new_event_loop,
}
BRIEF = {
    "a_command_gives_its_output_and_exit_code",
    "the_time_limit_ends_whatever_the_command_has_started",
    "variables_stay_from_cell_to_cell",
    "a_directory_goes_in_and_comes_out",
    "terminate_before_readiness_leaves_nothing",
}
Run = Callable[[Coroutine[Any, Any, None]], None]


class LoopThread(threading.Thread):
    """A thread with an event loop that runs coroutines one after another."""

    def __init__(self, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        super().__init__(name="event loop of the tests")
        self._make_loop = make_loop
        self._work: queue.Queue[Coroutine[Any, Any, None] | None] = queue.Queue()
        self._results: queue.Queue[BaseException | None] = queue.Queue()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=self._make_loop) as runner:
            while (work := self._work.get()) is not None:
                try:
                    runner.run(work)
                except BaseException as error:
                    self._results.put(error)
                else:
                    self._results.put(None)

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one coroutine to its end and raise what it raised."""
        self._work.put(work)
        if (error := self._results.get()) is not None:
            raise error

    def end(self) -> None:
        """Close the loop and end the thread."""
        self._work.put(None)
        self.join()


class Opened(NamedTuple):
    """A bench, what runs a coroutine in its event loop, and the promises that its level does not keep."""

    bench: Bench
    run: Run
    not_kept: dict[str, str]


@pytest.fixture(scope="module")
def opened(
    request: pytest.FixtureRequest, bench_by_name: Callable[[str], tuple[Bench, dict[str, str]]]
) -> Iterator[Opened]:
    """The bench of a back end in an event loop of the main thread or of another thread."""
    backend, loop, thread = request.param
    bench, not_kept = bench_by_name(backend)
    if thread == "main":
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            yield Opened(bench, runner.run, not_kept)
            runner.run(bench.backend.aclose())
        return
    other = LoopThread(LOOPS[loop])
    other.start()
    yield Opened(bench, other.do, not_kept)
    other.do(bench.backend.aclose())
    other.end()


PLACES = [
    *(("local", loop, thread) for loop in LOOPS for thread in ("main", "another")),
    ("unsafe-local", "uvloop", "main"),
    ("unsafe-local", "uvloop", "another"),
    ("restricted", "uvloop", "main"),
    ("restricted", "uvloop", "another"),
]


def cases() -> Iterator[Any]:
    """Every promise at every place; the usual suite has a few of the full level at each."""
    for place in PLACES:
        for behaviour in BEHAVIOURS:
            is_usual = place[0] == "local" and behaviour.name in BRIEF
            yield pytest.param(
                place,
                behaviour,
                id="-".join((*place, behaviour.name)),
                marks=() if is_usual else pytest.mark.long,
            )


@pytest.mark.parametrize(
    ("opened", "behaviour"), list(cases()), indirect=["opened"], scope="module"
)
def test_keeps_the_promise_on_every_event_loop(opened: Opened, behaviour: Behaviour):
    if behaviour.name in opened.not_kept:
        pytest.skip(opened.not_kept[behaviour.name])
    if not behaviour.applies_to(opened.bench.backend):
        pytest.skip(f"{opened.bench.backend.name} does not claim {behaviour.needs!r}")
    opened.run(behaviour.check(opened.bench))

"""Helper processes that compare mathematical answers and are killed if a comparison takes too long.

The process runs `main` of this module: it reads one JSON line per comparison and writes one line as its result.
math-verify's own limit uses SIGALRM, which works only in a main thread and does not interrupt C code. Killing the
process always works.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from verifiers.child_process import ChildProcess, python_command, reserve_stdout
from verifiers.errors import InfraError

START_LIMIT_S = 60.0
"""Maximum start time of a helper process (importing sympy on a loaded machine), in seconds."""


MOST_EXTENSIONS = 20
"""Maximum number of further waits for a comparison that has not yet used its processor time."""


ORPHAN_S = 10.0
"""Processor time beyond the limit, in seconds, after which a helper ends itself because its parent has not."""


class CheckTimeout(Exception):
    """A comparison took longer than the limit."""


class _Helper:
    """One helper process, used by one thread at a time."""

    def __init__(self) -> None:
        self.process = ChildProcess(
            python_command("verifiers.rubrics.math_checker"), stderr=subprocess.DEVNULL
        )
        self._finalizer = weakref.finalize(self, ChildProcess.close, self.process)
        if self._line(START_LIMIT_S) is None:
            self.close()
            raise InfraError("The process that compares mathematical answers did not start.")

    def ask(self, truth: str, response: str, limit_s: float) -> bool:
        try:
            self.process.send(json.dumps([truth, response, limit_s + ORPHAN_S]).encode() + b"\n")
        except OSError as error:
            raise InfraError(
                f"The process that compares mathematical answers has ended: {error}"
            ) from error
        used_s = self._cpu_s()
        line = self._line(limit_s)
        # On a loaded machine the comparison receives little processor time: a right answer must not count as endless.
        for _ in range(MOST_EXTENSIONS):
            if line is not None or (left_s := used_s + limit_s - self._cpu_s()) <= 0:
                break
            line = self._line(max(left_s, 0.1))
        if line is None:
            raise CheckTimeout(
                f"Comparing the answers took longer than {limit_s:g} s: {response!r:.200} with {truth!r:.200}"
            )
        return json.loads(line)

    def _line(self, limit_s: float) -> bytes | None:
        line = self.process.read_line(limit_s)
        if line == b"":
            raise InfraError("The process that compares mathematical answers ended unexpectedly.")
        return line

    def _cpu_s(self) -> float:
        """Return the processor time of the process so far; if it is unknown, the elapsed time."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return time.monotonic()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._finalizer()


class MathChecker:
    """Compares answers in up to `max_workers` helper processes, which start on demand."""

    def __init__(self, max_workers: int, limit_s: float) -> None:
        self._places = threading.Semaphore(max(1, min(max_workers, os.cpu_count() or 1)))
        self._idle: queue.SimpleQueue[_Helper] = queue.SimpleQueue()
        self._working: set[_Helper] = set()
        self._limit_s = limit_s

    def equal(self, truth: str, response: str) -> bool:
        """Whether both answers are equal. Blocks. Raises CheckTimeout after the limit."""
        with self._places:
            try:
                helper = self._idle.get_nowait()
            except queue.Empty:
                helper = _Helper()
            self._working.add(helper)
            try:
                answer = helper.ask(truth, response, self._limit_s)
            except BaseException:
                helper.close()
                raise
            finally:
                self._working.discard(helper)
            self._idle.put(helper)
            return answer

    def close(self) -> None:
        """End all helper processes. A running comparison raises InfraError; later ones start new processes."""
        for helper in list(self._working):
            helper.process.kill()  # its thread reads the end of stdout and closes the other streams
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return


def compare(
    truth: str, response: str, parse: Any, verify: Any, limit_s: float | None = None
) -> bool:
    """Return whether math-verify's `parse` and `verify` find both answers equal. `limit_s` is math-verify's own limit
    of each step, which requires the main thread.
    """
    gold, said = (
        parse(text if "\\boxed" in text else f"\\boxed{{{text}}}", parsing_timeout=limit_s)
        for text in (truth, response)
    )
    return bool(verify(gold, said, timeout_seconds=limit_s))


def main() -> None:
    """Compare the answers of each line of stdin until the parent closes it."""
    import math_verify  # type: ignore[import-untyped]  # the package ships no types

    parse: Any = math_verify.parse  # its types do not include None, which disables its own limit
    verify: Any = math_verify.verify
    parse("\\boxed{1}", parsing_timeout=None)
    out = reserve_stdout()
    out.write(b"ready\n")
    out.flush()
    for line in sys.stdin:
        truth, response, processor_s = json.loads(line)
        # A thread that watches the parent would wait for C code that never releases the GIL. SIGPROF ends the process.
        signal.setitimer(signal.ITIMER_PROF, processor_s)
        try:
            equal = compare(truth, response, parse, verify)
        except Exception:  # noqa: BLE001 - an error of any kind means that the comparison failed
            equal = False
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        out.write(json.dumps(equal).encode() + b"\n")
        out.flush()

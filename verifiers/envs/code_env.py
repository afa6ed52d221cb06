"""`CodeEnv`: the model writes a program, which runs against the tests of its row."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Mapping
from typing import Any, Literal

from verifiers.decorators import teardown
from verifiers.envs.code_tests import (
    AnswerComparison,
    Outcome,
    ProgramReport,
    TestCase,
    TestLimits,
    Whitespace,
    extract_code,
    run_program,
    test_cases,
)
from verifiers.envs.multiturn_env import SingleTurnEnv
from verifiers.errors import ConfigError, SandboxError
from verifiers.parsers.parser import Parser
from verifiers.rollouts.scope import scope_of
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import (
    IsolationUnavailable,
    Sandbox,
    SandboxBackend,
    SandboxImageError,
    SandboxSpec,
)
from verifiers.sandboxes.open import BackendName, LoopBackends
from verifiers.state import State, TimeSpan
from verifiers.types import Messages, Response

CodeReward = Literal["fraction", "all"]

_BOX_OVERHEAD_MB = 64
"""Memory and files that a sandbox needs in addition to the program, for its interpreters and the files of the tests."""


class CodeRubric(Rubric):
    """Scores a rollout by the report of its tests, `state["test_report"]`."""

    def __init__(self, reward: CodeReward, weight: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._reward = reward
        self.add_reward_func(self.passes_tests, weight)
        self.add_metric(self.pass_fraction)
        self.add_metric(self.has_code)
        self.add_metric(self.tests_run)
        self.add_metric(self.sandbox_ready_wait_time)
        self.add_metric(self.test_time)

    async def passes_tests(self, state: State) -> float:
        """Return the share of passed tests. With reward "all": 1.0 if all tests passed, otherwise 0.0."""
        fraction = await self.pass_fraction(state)
        return fraction if self._reward == "fraction" else float(fraction == 1.0)

    async def pass_fraction(self, state: State) -> float:
        """Return the share of passed tests."""
        report = state.get("test_report")
        return report["passed"] / report["total"] if report else 0.0

    async def has_code(self, state: State) -> float:
        """Return 1.0 if the completion contains a program."""
        return float(bool(state.get("program")))

    async def tests_run(self, state: State) -> float:
        """Return the number of tests that ran."""
        return float((state.get("test_report") or {}).get("run", 0))

    async def sandbox_ready_wait_time(self, state: State) -> float:
        """Return how many seconds the rollout waited for its sandbox."""
        return float(state.get("sandbox_ready_wait_time") or 0.0)

    async def test_time(self, state: State) -> float:
        """Return the seconds from the start of the first test to the end of the last."""
        return float(state.get("test_time") or 0.0)


class CodeEnv(SingleTurnEnv):
    """Takes one response and runs its last fenced block of Python against the tests in the row's `info["tests"]`.

    `verifiers.envs.code_tests.test_cases` describes the tests: stdin and stdout, or a function with arguments and a
    value. Each test runs in a separate fork, inside a sandbox that belongs to the rollout and starts while the
    model writes. The expected answers never enter the sandbox.

    `reward` is "fraction" for the share of passed tests, or "all". `stop_at_first_failure` is the default with
    "all". `test_limits` is a `TestLimits` or its fields as a dict. `whitespace` and `float_tolerance` define which
    answers are correct. `parser` finds the program in the completion. `backend` and `sandbox_spec` have the same
    meaning as in `SandboxEnv`. At most `max_concurrent_programs` are tested at once (by default two per core), for
    any number of rollouts.

    The behaviour of a program determines its score. If the sandbox or the test worker fails, the tests run again in
    a new sandbox. If the tests fail there too, an empty program is tested. If the empty program can be tested, the
    failure counts as the program's (`ended_worker`, score 0). Otherwise the rollout has an error (`SandboxError`)
    instead of a score, so that no trainer learns from it.
    """

    def __init__(
        self,
        *,
        reward: CodeReward = "fraction",
        stop_at_first_failure: bool | None = None,
        test_limits: TestLimits | Mapping[str, Any] | None = None,
        whitespace: Whitespace = "lines",
        float_tolerance: float | None = None,
        backend: SandboxBackend | BackendName | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        max_concurrent_programs: int | None = None,
        sandbox_attempts: int = 2,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        **kwargs: Any,
    ) -> None:
        if reward not in ("fraction", "all"):
            raise ConfigError(f"reward must be 'fraction' or 'all'; got {reward!r}.")
        if stop_at_first_failure and reward == "fraction":
            raise ConfigError(
                "stop_at_first_failure=True leaves the share of tests passed unknown; use reward='all' with it."
            )
        if sandbox_attempts < 1:
            raise ConfigError(f"sandbox_attempts must be at least 1; got {sandbox_attempts}.")
        parser = parser or Parser(extract_fn=extract_code)
        self.backends = LoopBackends(
            backend
        )  # First, so that an unknown name is refused before anything has to be closed.
        super().__init__(parser=parser, rubric=rubric, **kwargs)
        self.stop_at_first_failure = (
            reward == "all" if stop_at_first_failure is None else stop_at_first_failure
        )
        self.test_limits = TestLimits.model_validate(test_limits or {})
        self.comparison = AnswerComparison(whitespace, float_tolerance)
        self.sandbox_spec = _spec(sandbox_spec, self.test_limits)
        self.sandbox_attempts = sandbox_attempts
        self.max_concurrent_programs = max_concurrent_programs or 2 * (os.cpu_count() or 1)
        self._concurrency: int | None = None
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._sandboxes: dict[str, Sandbox] = {}
        # The author's rubric reads the same report; ours then only adds metrics.
        self.add_rubric(CodeRubric(reward, 1.0 if rubric is None else 0.0, parser=parser))

    def set_concurrency(self, concurrency: int) -> None:
        """Limit the number of programs under test to the number of concurrent rollouts."""
        super().set_concurrency(concurrency)
        self._concurrency = concurrency if concurrency > 0 else None
        self._slots.clear()

    def _slot(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        slots = self._slots.get(loop)
        if slots is None:
            places = min(self.max_concurrent_programs, self._concurrency or 1 << 30)
            slots = self._slots[loop] = asyncio.Semaphore(places)
        return slots

    # ------------------------------------------------------------------------------------------- one rollout

    def tests_of(self, state: State) -> list[TestCase]:
        """Return the tests of a row. Override this method if they are not in `info["tests"]`."""
        info = state.get("info") or {}
        if not isinstance(info, Mapping) or "tests" not in info:
            raise ConfigError(
                f"The row {state.get('example_id')} has no info['tests']. Put them there, or override tests_of."
            )
        return test_cases(info["tests"])

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Start to create a sandbox. Returns before it is ready."""
        state["program"] = None
        state["test_report"] = None
        self.tests_of(state)  # A row without tests fails here, before the model is called.
        self._sandboxes[state.trajectory_id] = await self._create()
        scope_of(state).on_exit(self._end_sandbox, state.trajectory_id)
        return state

    async def _create(self) -> Sandbox:
        return await self.backends.here().create(self.sandbox_spec)

    async def _end_sandbox(self, trajectory_id: str) -> None:
        sandbox = self._sandboxes.pop(trajectory_id, None)
        if sandbox is not None:
            await sandbox.terminate()

    async def add_model_response(
        self, state: State, prompt_messages: Messages, response: Response
    ) -> None:
        """Take the response and run its program."""
        await super().add_model_response(state, prompt_messages, response)
        started = time.time()
        await self.run_tests(state)
        state.timing.env.spans.append(TimeSpan(started, time.time()))

    async def run_tests(self, state: State) -> None:
        """Run the program of the last response. Store its report in `state["test_report"]`; without a program, None."""
        program = self.parser.parse_answer(state.trajectory[-1]["completion"]) or ""
        state["program"] = program
        if not program.strip():
            return
        report = await self._report(state, program, self.tests_of(state))
        state["test_report"] = report.as_dict()

    async def _report(self, state: State, program: str, tests: list[TestCase]) -> ProgramReport:
        """Run the program. `_works_without_program` decides who caused a failure."""
        for attempt in range(1, self.sandbox_attempts + 1):
            sandbox = self._sandboxes[state.trajectory_id]
            was_ready = False
            try:
                waited_s = await sandbox.ready()
                was_ready = True
                report = await self._attempt(state, sandbox, waited_s, program, tests)
                if report.worker_failure and not await self._works_without_program(state, tests):
                    raise SandboxError(f"The test worker failed: {report.worker_failure}")
                return report
            except (IsolationUnavailable, SandboxImageError):
                raise  # it would fail again
            except SandboxError as error:
                if attempt == self.sandbox_attempts:
                    if was_ready and await self._works_without_program(state, tests):
                        return ProgramReport(
                            (Outcome("ended_worker", str(error)[:500]),) * len(tests)
                        )
                    raise
                self.logger.warning("Testing once more in a new sandbox: %s", error)
                await self._end_sandbox(state.trajectory_id)
                self._sandboxes[state.trajectory_id] = await self._create()
        raise AssertionError("unreachable")

    async def _works_without_program(self, state: State, tests: list[TestCase]) -> bool:
        """Return whether a new sandbox can run an empty program on a test.

        Every failure after a sandbox is ready counts as the program's, unless it also happens with an empty
        program.
        """
        await self._end_sandbox(state.trajectory_id)
        self._sandboxes[state.trajectory_id] = sandbox = await self._create()
        try:
            report = await run_program(sandbox, "pass", tests[:1], limits=self.test_limits)
        except SandboxError as error:
            self.logger.warning("An empty program fails as well: %s", error)
            return False
        return all(one.verdict in ("wrong", "error", "passed") for one in report.outcomes)

    async def _attempt(
        self, state: State, sandbox: Sandbox, waited_s: float, program: str, tests: list[TestCase]
    ) -> ProgramReport:
        state["sandbox_ready_wait_time"] = waited_s + (state.get("sandbox_ready_wait_time") or 0.0)
        async with self._slot():
            started = time.perf_counter()
            report = await run_program(
                sandbox,
                program,
                tests,
                limits=self.test_limits,
                comparison=self.comparison,
                stop_at_first_failure=self.stop_at_first_failure,
            )
        state["test_time"] = time.perf_counter() - started
        return report

    @teardown
    async def teardown_backends(self) -> None:
        """Close the back ends."""
        await self.backends.aclose()


def _spec(spec: SandboxSpec | Mapping[str, Any] | None, limits: TestLimits) -> SandboxSpec:
    """Return the specification, with the additional space for one test."""
    spec = SandboxSpec.model_validate(spec or {})
    if "memory_mb" in spec.model_fields_set:
        return spec
    memory_mb = limits.memory_mb + limits.max_file_mb + _BOX_OVERHEAD_MB
    return spec.model_copy(update={"memory_mb": memory_mb})


__all__ = ["AnswerComparison", "CodeEnv", "CodeRubric", "TestCase", "TestLimits"]

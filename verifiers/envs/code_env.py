"""`CodeEnv`: the model writes a program, which is run against the tests of its row."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Mapping
from typing import Any, Literal

from verifiers.decorators import teardown
from verifiers.envs.code_tests import (
    Comparison,
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
"""What a sandbox needs besides the program: its interpreters and the files of the tests."""


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
        """The share of tests passed, or 1.0 for all of them and else 0.0."""
        fraction = await self.pass_fraction(state)
        return fraction if self._reward == "fraction" else float(fraction == 1.0)

    async def pass_fraction(self, state: State) -> float:
        """The share of tests passed."""
        report = state.get("test_report")
        return report["passed"] / report["total"] if report else 0.0

    async def has_code(self, state: State) -> float:
        """1.0 when there was a program in the completion."""
        return float(bool(state.get("program")))

    async def tests_run(self, state: State) -> float:
        """How many tests were run."""
        return float((state.get("test_report") or {}).get("run", 0))

    async def sandbox_ready_wait_time(self, state: State) -> float:
        """Seconds that the rollout waited for its sandbox."""
        return float(state.get("sandbox_ready_wait_time") or 0.0)

    async def test_time(self, state: State) -> float:
        """Seconds from the start of the first test to the end of the last."""
        return float(state.get("test_time") or 0.0)


class CodeEnv(SingleTurnEnv):
    """One answer, whose last fenced block of Python is run against the tests in the row's `info["tests"]`.

    Tests are as `verifiers.envs.code_tests.test_cases` reads them: stdin and stdout, or a function, its arguments
    and its value; each runs in a fork of its own, inside a sandbox that belongs to the rollout alone and came up while
    the model was writing. What is expected never enters it.

    `reward`: "fraction" of the tests passed, or "all" of them. `stop_at_first_failure`: by default with "all".
    `test_limits`: a `TestLimits` or its fields as a dict. `whitespace`, `float_tolerance`: what counts as right.
    `parser`: finds the program in the completion. `backend`, `sandbox_spec`: as in `SandboxEnv`. At most
    `max_concurrent_programs` are tested at once (by default two for each core), however many rollouts run.

    Whatever a program does is its score. When the sandbox or the test worker fails, the tests run again in a fresh
    sandbox. When that fails too, an empty program decides: if an empty program can be tested, the failure is the
    program's (`ended_worker`, score 0); otherwise the rollout has an error (`SandboxError`) instead of a score, and
    nothing is learned from it.
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
        )  # first: an unknown name is refused before anything has to be closed
        super().__init__(parser=parser, rubric=rubric, **kwargs)
        self.stop_at_first_failure = (
            reward == "all" if stop_at_first_failure is None else stop_at_first_failure
        )
        self.test_limits = TestLimits.model_validate(test_limits or {})
        self.comparison = Comparison(whitespace, float_tolerance)
        self.sandbox_spec = _spec(sandbox_spec, self.test_limits)
        self.sandbox_attempts = sandbox_attempts
        self.max_concurrent_programs = max_concurrent_programs or 2 * (os.cpu_count() or 1)
        self._concurrency: int | None = None
        self._slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._sandboxes: dict[str, Sandbox] = {}
        # A rubric of the author's own reads the same report; ours then only measures.
        self.add_rubric(CodeRubric(reward, 1.0 if rubric is None else 0.0, parser=parser))

    def set_concurrency(self, concurrency: int) -> None:
        """Test no more programs at once than there are rollouts."""
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
        """The tests of a row. Override it where they are elsewhere than in `info["tests"]`."""
        info = state.get("info") or {}
        if not isinstance(info, Mapping) or "tests" not in info:
            raise ConfigError(
                f"The row {state.get('example_id')} has no info['tests']. Put them there, or override tests_of."
            )
        return test_cases(info["tests"])

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Have a sandbox created. Returns before it is up."""
        state["program"] = None
        state["test_report"] = None
        self.tests_of(state)  # a row without tests is found before the model is asked
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
        """Take the answer and run its program."""
        await super().add_model_response(state, prompt_messages, response)
        started = time.time()
        await self.run_tests(state)
        state.timing.env.spans.append(TimeSpan(started, time.time()))

    async def run_tests(self, state: State) -> None:
        """Run the program in the last answer; its report is in `state["test_report"]`, without a program None."""
        program = self.parser.parse_answer(state.trajectory[-1]["completion"]) or ""
        state["program"] = program
        if not program.strip():
            return
        report = await self._report(state, program, self.tests_of(state))
        state["test_report"] = report.as_dict()

    async def _report(self, state: State, program: str, tests: list[TestCase]) -> ProgramReport:
        """Run the program. Who caused a failure is decided by one rule, see `_works_without_program`."""
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
                self.logger.warning("Testing once more in a fresh sandbox: %s", error)
                await self._end_sandbox(state.trajectory_id)
                self._sandboxes[state.trajectory_id] = await self._create()
        raise AssertionError("unreachable")

    async def _works_without_program(self, state: State, tests: list[TestCase]) -> bool:
        """Whether a fresh sandbox can run an empty program on a test.

        Everything that happens after a sandbox is ready is the program's doing, unless it also happens with an empty
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
        """End what made the sandboxes."""
        await self.backends.aclose()


def _spec(given: SandboxSpec | Mapping[str, Any] | None, limits: TestLimits) -> SandboxSpec:
    """The specification, with room for one test."""
    spec = SandboxSpec.model_validate(given or {})
    if "memory_mb" in spec.model_fields_set:
        return spec
    memory_mb = limits.memory_mb + limits.max_file_mb + _BOX_OVERHEAD_MB
    return spec.model_copy(update={"memory_mb": memory_mb})


__all__ = ["CodeEnv", "CodeRubric", "Comparison", "TestCase", "TestLimits"]

"""Checks of an environment that need no model: `vf-validate`, and the same from Python.

    load           load_environment() works within the time limit
    rows           every row has a prompt or a question, valid messages, JSON-like info, a unique example id
    same-rows      loading twice gives the same rows
    gold           the right answer has the full score
    empty          an empty answer scores nothing
    same-scores    scoring twice gives the same numbers
    isolation      rollouts change neither the dataset nor each other's scores
    contract       guarantees of every environment: it ends, cleans up, can be saved (`verifiers.testing`)
    oracle         the solution of each task scores 1 (tasks in Harbor's format)
    nop            an agent that does nothing scores less than 1 (tasks in Harbor's format)

A scripted client plays the replies through the environment's own rollout and rubric. `gold` needs the right reply. An
author can supply it as a method of the environment, or as a function beside `load_environment`:

    def gold_completion(row) -> str | list:
        # the full score on this row: one reply, or one per turn; a turn is text, tool calls or an assistant message

Other single-turn environments are tried with the row's `answer` in the usual forms (the parser's own format,
`\\boxed{}`,
plain). The full score is the sum of the rubric's positive weights, or the environment's `full_reward`.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from verifiers.errors import ConfigError, Error
from verifiers.loading import Loaded, load
from verifiers.messages import normalize_messages
from verifiers.packages.gold import (
    MAX_SILENT_TURNS,
    Gold,
    Player,
    environment_of,
    has_judge,
    is_single_turn,
    wrapped_answers,
)
from verifiers.tasks import Row, input_key
from verifiers.testing import environment_problems
from verifiers.types import RolloutOutput

TOLERANCE = 1e-6

Status = Literal["pass", "fail", "skip"]


AGENT_CHECKS = ("oracle", "nop")
"""Checks of environments with a method `reference_row`, which plays agents without a model."""
CHECKS = (
    "rows",
    "same-rows",
    "gold",
    "empty",
    "same-scores",
    "isolation",
    "contract",
    *AGENT_CHECKS,
)
"""All checks after `load`, in their order."""


class Check(NamedTuple):
    """One finding."""

    name: str
    status: Status
    detail: str
    """The observation. For a failure also the next step, for a skip the reason."""
    took_s: float


class Validation(NamedTuple):
    """All findings about one environment."""

    env_id: str
    checks: list[Check]

    @property
    def is_sound(self) -> bool:
        """Whether no check failed. Skipped checks neither pass nor fail."""
        return all(check.status != "fail" for check in self.checks)


class ValidationLimits(NamedTuple):
    """Amount and duration of the checks."""

    max_rows: int = 100
    """Maximum number of rows; -1 checks all rows of a finite dataset."""
    max_played: int = 8
    """Maximum number of rows on which rollouts are played."""
    load_s: float = 60.0
    """Maximum time for loading, in seconds."""
    play_s: float = 60.0
    """Maximum time to play and score one set of rollouts, in seconds."""


class _NotApplicable(Exception):
    """The check does not apply to this environment; the text gives the reason."""


class _Failed(Exception):
    """The check found a fault."""


async def validate(
    env: str,
    env_args: Mapping[str, Any] | None = None,
    *,
    limits: ValidationLimits | None = None,
    only: Collection[str] = (),
) -> Validation:
    """Return the findings about an environment, named by its id or by the path of its folder or file. Faults do not
    raise.

    `only` names the checks to run besides `load` and `rows`; by default all of them run. Raises ConfigError for an
    unknown name.
    """
    if unknown := sorted(set(only) - set(CHECKS)):
        raise ConfigError(
            f"{', '.join(unknown)}: no check has this name. Choose from {', '.join(CHECKS)}."
        )
    limits = limits or ValidationLimits()
    arguments = dict(env_args or {})

    def load_it() -> Loaded:
        return load(env, arguments)

    checks: list[Check] = []
    loaded = await _load(load_it, limits, checks)
    if loaded is None:
        return Validation(env, checks)
    rubric = loaded.environment.rubric
    # A blocking reward function would block the loop, and with it the time limit of the set of rollouts.
    rubric.set_scoring_timeout_s(min(rubric.scoring_timeout_s, limits.play_s))
    try:
        await _Validator(loaded, load_it, limits, checks).run(only or CHECKS)
    finally:
        await loaded.environment.aclose()
    return Validation(loaded.environment.env_id, checks)


async def _load(
    load_it: Callable[[], Loaded], limits: ValidationLimits, checks: list[Check]
) -> Loaded | None:
    found: list[Loaded] = []

    async def load_in_time() -> str:
        loaded = load_it()
        found.append(loaded)
        if loaded.load_s > limits.load_s:
            raise _Failed(f"{loaded.load_s:.2f} s, longer than {limits.load_s:g} s")
        return f"{loaded.load_s:.2f} s"

    checks.append(await _checked("load", load_in_time()))
    return found[0] if found else None


async def _checked(name: str, work: Awaitable[str]) -> Check:
    """Run one check. Any exception of the environment's code is a failure of the check, not of the validation."""
    started = time.perf_counter()

    def check(status: Status, detail: str) -> Check:
        return Check(name, status, detail, time.perf_counter() - started)

    try:
        return check("pass", await work)
    except _NotApplicable as reason:
        return check("skip", str(reason))
    except _Failed as fault:
        return check("fail", str(fault))
    except TimeoutError as error:
        return check("fail", str(error) or "It took too long.")
    except Exception as error:  # noqa: BLE001  # author code may raise anything; that is what is being checked
        text = str(error)
        return check(
            "fail", text if isinstance(error, Error) else f"{type(error).__name__}: {text}"
        )


class _Validator:
    """The checks of one loaded environment, in order. Later checks use the results of earlier ones."""

    def __init__(
        self,
        loaded: Loaded,
        load_again: Callable[[], Loaded],
        limits: ValidationLimits,
        checks: list[Check],
    ) -> None:
        self.environment = loaded.environment
        self.hook = getattr(loaded.environment, "gold_completion", None) or getattr(
            loaded.module, "gold_completion", None
        )
        self.load_again = load_again
        self.limits = limits
        self.checks = checks
        self.rows: list[Row] = []
        self.gold: dict[int, list[Gold]] = {}
        """example_id → replies with the full score."""
        self.first_scores: dict[str, list[tuple[float, dict[str, float]]]] = {}

    async def run(self, names: Collection[str]) -> None:
        """Run the checks with these names, and `rows`, which all others need."""
        has_agents = hasattr(self.environment, "reference_row")
        for name, work in (
            ("rows", self.check_rows),
            ("same-rows", self.check_same_rows),
            ("gold", self.check_gold),
            ("empty", self.check_empty),
            ("same-scores", self.check_same_scores),
            ("isolation", self.check_isolation),
            ("contract", self.check_contract),
            ("oracle", self.check_oracle),
            ("nop", self.check_nop),
        ):
            is_asked = name == "rows" or name in names
            if is_asked and (has_agents or name not in AGENT_CHECKS or len(names) < len(CHECKS)):
                self.checks.append(await _checked(name, work()))

    # ------------------------------------------------------------------------------------------------ rows

    async def check_rows(self) -> str:
        """Check that rows are well-formed."""
        source = self.environment.source("eval")
        row_count = self.limits.max_rows
        if row_count < 1 and source.is_endless:
            row_count = ValidationLimits().max_rows
        rows = source.inputs(row_count)
        if not rows:
            raise _Failed("The dataset has no rows.")
        problems = [problem for row in rows if (problem := row_problem(row)) is not None]
        ids = [row["example_id"] for row in rows]
        if len(set(ids)) < len(ids):
            twice = next(i for i in ids if ids.count(i) > 1)
            problems.append(f"the example_id {twice} is used more than once")
        if problems:
            raise _Failed(f"{len(problems)} problems: {'; '.join(problems[:3])}")
        self.rows = rows
        total = "an endless dataset" if source.is_endless else f"{len(source)}"
        return f"{len(rows)} rows of {total} are well-formed"

    async def check_same_rows(self) -> str:
        """Check that loading twice gives the same rows."""
        self._needs_rows()
        again = self.load_again().environment
        try:
            rows = again.source("eval").inputs(len(self.rows))
        finally:
            await again.aclose()
        for first, second in zip(self.rows, rows, strict=False):
            if input_key(first) != input_key(second):
                raise _Failed(
                    f"Row {first['example_id']} differs when the environment is loaded again. Seed the code that "
                    "makes rows (e.g. random.Random(seed)), or runs cannot be resumed or compared."
                )
        if len(rows) != len(self.rows):
            raise _Failed(
                f"{len(self.rows)} rows at first, {len(rows)} when the environment is loaded again."
            )
        return f"{len(rows)} rows are the same when loaded again"

    # ---------------------------------------------------------------------------------------------- scores

    async def check_gold(self) -> str:
        """Check that the right answer has the full score."""
        self._needs_scores()
        played = self._played_rows()
        if not any(map(self._full_reward, played)):
            raise _NotApplicable("no reward function has a positive weight: all scores are equal")
        worst: tuple[float, float, Row, RolloutOutput] | None = None
        preferred = 0
        for row in played:
            full = self._full_reward(row)
            candidates = self._gold_candidates(row)
            order = sorted(range(len(candidates)), key=lambda index: index != preferred)
            best: tuple[float, RolloutOutput] | None = None
            for index in order:
                output = await self._play_one(row, candidates[index])
                reward = 0.0 if _what_failed(output) else _reward(output)
                if best is None or reward > best[0]:
                    best = (reward, output)
                if reward >= full - TOLERANCE:
                    self.gold[row["example_id"]] = candidates[index]
                    self.first_scores.setdefault("gold", []).append(_scores(output))
                    preferred = index
                    break
            if best is None:
                raise _NotApplicable("rows have no answer, and there is no gold_completion(row)")
            if best[0] < full - TOLERANCE and (worst is None or best[0] < worst[0]):
                worst = (best[0], full, row, best[1])
        if worst is not None:
            raise _Failed(
                self._gold_fault(*worst, failed=len(played) - len(self.gold), played=len(played))
            )
        by = "gold_completion" if self.hook is not None else "the answer column"
        return f"{len(played)} rows score full ({self._full_reward(played[0]):g}) with {by}"

    def _gold_fault(
        self,
        reward: float,
        full: float,
        row: Row,
        output: RolloutOutput,
        *,
        failed: int,
        played: int,
    ) -> str:
        reason = _what_failed(output) or f"metrics {_shown(output.get('metrics'))}"
        advice = (
            ""
            if self.hook is not None
            else " If the answer column is not the reply of a model, define gold_completion(row) beside "
            "load_environment; if the full score is less than all weights, set full_reward on the environment."
        )
        return (
            f"On {failed} of {played} rows the right answer does not score {full:g}: row {row['example_id']} gets "
            f"{reward:g} ({reason}).{advice}"
        )

    async def check_empty(self) -> str:
        """Check that an empty answer scores nothing."""
        self._needs_scores()
        rows = self._played_rows()
        outputs = await self._play(rows, lambda state: None)
        endless = [
            o
            for o in outputs
            if isinstance(o.get("error"), Mapping) and "ScriptExhausted" in str(o["error"])
        ]
        if endless:
            raise _NotApplicable(
                f"the environment continues after {MAX_SILENT_TURNS} empty replies"
            )
        for output in outputs:
            reward = _reward(output)
            if reward > TOLERANCE:
                raise _Failed(
                    f"An empty answer scores {reward:g} on row {output['example_id']} "
                    f"(metrics {_shown(output.get('metrics'))}). Models would learn empty answers."
                )
            if fault := _what_failed(output):
                raise _Failed(f"On an empty answer to row {output['example_id']}: {fault}")
        self.first_scores["empty"] = [_scores(output) for output in outputs]
        return f"{len(outputs)} rows score {max(map(_reward, outputs)):g}"

    async def check_same_scores(self) -> str:
        """Check that scoring twice gives the same numbers."""
        self._needs_scores()
        compared = 0
        for kind, first in self.first_scores.items():
            outputs = await self._play_kind(kind)
            for before, output in zip(first, outputs, strict=True):
                compared += 1
                if _scores(output) != before:
                    raise _Failed(
                        f"The same {kind} answer to row {output['example_id']} scores {_shown(before)} the first time "
                        f"and {_shown(_scores(output))} the second."
                    )
        if not compared:
            raise _NotApplicable("nothing could be scored")
        return f"{compared} answers score the same again"

    async def check_isolation(self) -> str:
        """Check that rollouts change neither the dataset nor each other."""
        self._needs_scores()
        if not self.gold:
            raise _NotApplicable("needs a right answer to play beside an empty one")
        rows = [row for row in self._played_rows() if row["example_id"] in self.gold]
        before = [input_key(row) for row in rows]
        mixed = [dict(row) for row in rows for _ in range(2)]
        seen: dict[int, int] = {}
        turns: dict[str, int] = {}

        def replies(state: Mapping[str, Any]) -> list[Gold] | None:
            # Of the two rollouts of a row the first to reply has the right answer, the other none.
            place = turns.setdefault(state["trajectory_id"], seen.get(state["example_id"], 0))
            if not state["trajectory"]:
                seen[state["example_id"]] = place + 1
            return self.gold[state["example_id"]] if place == 0 else None

        outputs = await self._generate(mixed, replies)
        changed = [
            row["example_id"]
            for row, key in zip(rows, before, strict=True)
            if input_key(row) != key
        ]
        if changed:
            raise _Failed(
                f"Playing changed the dataset row {changed[0]}. Copy what a rollout changes."
            )
        for row in rows:
            pair = sorted(
                (_reward(o) for o in outputs if o["example_id"] == row["example_id"]), reverse=True
            )
            alone = _reward(await self._play_one(row, self.gold[row["example_id"]]))
            if self.environment.requires_group_rollouts:
                continue  # there the rewards of a group depend on each other by design
            if abs(pair[0] - alone) > TOLERANCE or pair[1] > TOLERANCE:
                raise _Failed(
                    f"Row {row['example_id']}: a right and an empty answer played at once score {pair[0]:g} and "
                    f"{pair[1]:g}; alone they score {alone:g} and 0. The rollouts share something that they change."
                )
        return f"{len(rows)} pairs of rollouts at once score as they do alone"

    async def check_contract(self) -> str:
        """Check the guarantees of every environment."""
        self._needs_scores()
        try:
            async with asyncio.timeout(self.limits.play_s):
                problems = await environment_problems(self.environment)
        except TimeoutError as error:
            raise TimeoutError(f"It took longer than {self.limits.play_s:g} s.") from error
        if problems:
            raise _Failed("; ".join(problem.rstrip(".") for problem in problems[:3]) + ".")
        return "it keeps the guarantees of every environment"

    async def check_oracle(self) -> str:
        """Check that the solution of each task has the full reward."""
        outputs, missing = await self._play_agent("oracle")
        for output in outputs:
            reward = _reward(output)
            if (fault := _what_failed(output)) or reward < 1 - TOLERANCE:
                last_words = str(output.get("agent_stderr") or "").strip()[-300:]
                raise _Failed(
                    f"The solution of {_task_name(output)} scores {reward:g}, not 1 "
                    f"({fault or last_words or 'its stderr is empty'}). Run its tests by hand after its solution."
                )
        lacking = f"; {missing} tasks without solution" if missing else ""
        return f"{len(outputs)} solutions score 1{lacking}"

    async def check_nop(self) -> str:
        """Check that an agent that does nothing has less than the full reward."""
        outputs, _ = await self._play_agent("nop")
        for output in outputs:
            if fault := _what_failed(output):
                raise _Failed(f"Without an agent, {_task_name(output)} fails: {fault}")
            if _reward(output) >= 1 - TOLERANCE:
                raise _Failed(
                    f"An agent that does nothing scores {_reward(output):g} in {_task_name(output)}. Its tests pass "
                    "without a solution, or its image contains one."
                )
        return f"{len(outputs)} tasks score at most {max(map(_reward, outputs)):g}"

    async def _play_agent(self, agent: str) -> tuple[list[RolloutOutput], int]:
        """Return a rollout of an agent without a model per row, and the number of rows that lack such an agent."""
        self._needs_rows()
        reference_row = getattr(self.environment, "reference_row", None)
        if reference_row is None:
            raise _NotApplicable("the tasks of this environment are not in Harbor's format")
        rows = [reference_row(row, agent) for row in self._played_rows()]
        found = [row for row in rows if row is not None]
        if not found:
            raise _NotApplicable("no task has a solution/solve.sh")
        columns = ["agent_stderr"]
        return await self._generate(found, lambda state: None, columns), len(rows) - len(found)

    # --------------------------------------------------------------------------------------------- playing

    def _needs_rows(self) -> None:
        if not self.rows:
            raise _NotApplicable("needs well-formed rows")

    def _needs_scores(self) -> None:
        self._needs_rows()
        if has_judge(self.environment):
            raise _NotApplicable("a judge model scores this environment")

    def _played_rows(self) -> list[Row]:
        return self.rows[: self.limits.max_played]

    def _full_reward(self, row: Row) -> float:
        own = getattr(self.environment, "full_reward", None)
        if own is not None:
            return float(own)
        weights = environment_of(self.environment, row).rubric._get_reward_weights()
        return sum(weight for weight in weights if weight > 0)

    def _gold_candidates(self, row: Row) -> list[list[Gold]]:
        if self.hook is not None:
            given = self.hook(row)
            return [[given] if isinstance(given, str | Mapping) else list(given)]
        environment = environment_of(self.environment, row)
        if not is_single_turn(environment):
            raise _NotApplicable(
                "a conversation of several turns; define gold_completion(row) beside load_environment to check it"
            )
        answer = row.get("answer")
        if answer in (None, ""):
            return []
        return [[text] for text in wrapped_answers(str(answer), environment.parser)]

    async def _play_kind(self, kind: str) -> list[RolloutOutput]:
        if kind == "empty":
            return await self._play(self._played_rows(), lambda state: None)
        rows = [row for row in self._played_rows() if row["example_id"] in self.gold]
        return await self._play(rows, lambda state: self.gold[state["example_id"]])

    async def _play_one(self, row: Row, replies: Sequence[Gold]) -> RolloutOutput:
        [output] = await self._play([row], lambda state: replies)
        return output

    async def _play(
        self,
        rows: Sequence[Row],
        replies_for: Callable[[Mapping[str, Any]], Sequence[Gold] | None],
    ) -> list[RolloutOutput]:
        return await self._generate([dict(row) for row in rows], replies_for)

    async def _generate(
        self, rows: list[Row], replies_for: Any, columns: list[str] | None = None
    ) -> list[RolloutOutput]:
        try:
            async with asyncio.timeout(self.limits.play_s):
                results = await self.environment.generate(
                    rows, Player(replies_for), "scripted", state_columns=columns
                )
        except TimeoutError as error:
            raise TimeoutError(
                f"Playing and scoring {len(rows)} rollouts took longer than {self.limits.play_s:g} s."
            ) from error
        return results["outputs"]


# --------------------------------------------------------------------------------------------------- parts


def row_problem(row: Row) -> str | None:
    """Return the fault of a formatted row, or None."""
    name = f"row {row.get('example_id')}"
    prompt = row["prompt"]
    if isinstance(prompt, str):
        if not prompt.strip():
            return f"{name} has an empty prompt"
    else:
        try:
            messages = normalize_messages(prompt, field_name="prompt")
        except (TypeError, ValueError) as error:
            return f"{name}: {error}"
        if not messages:  # the environment may build the prompt; playing shows whether it does
            return None
        if not any(message.get("content") for message in messages):
            return f"{name} has only empty messages"
        if messages[-1]["role"] == "assistant":
            return (
                f"{name} ends with the assistant's own message, so the model has nothing to answer"
            )
    info = row.get("info")
    if info is not None:
        try:
            json.dumps(info)
        except (TypeError, ValueError) as error:
            return f"{name}: info cannot be written as JSON: {error}"
    return None


def _reward(output: Mapping[str, Any]) -> float:
    reward = output.get("reward")
    return float(reward) if reward is not None and math.isfinite(float(reward)) else 0.0


def _scores(output: Mapping[str, Any]) -> tuple[float, dict[str, float]]:
    """Return reward and metrics without metrics that measure time, because `…_time` is never the same twice."""
    metrics = output.get("metrics") or {}
    return _reward(output), {k: v for k, v in metrics.items() if not k.endswith("_time")}


def _what_failed(output: Mapping[str, Any]) -> str | None:
    """Return the error of a rollout or of a reward function, or None."""
    error = output.get("error")
    if error is not None:
        return str(error.get("error_chain_repr") if isinstance(error, Mapping) else error)
    reward_errors = output.get("errors") or []
    return str(reward_errors[0].get("message", reward_errors[0])) if reward_errors else None


def _task_name(output: Mapping[str, Any]) -> str:
    return str((output.get("info") or {}).get("task_name"))


def _shown(value: Any) -> str:
    return json.dumps(value, default=str)[:200]

"""`HybridMathRubric`: compare answers as mathematics, and ask a judge about those that do not match.

`RemoteHybridMathRubric` does so with an answer that an agent has written to a file of its sandbox.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, ClassVar

from verifiers.decorators import cleanup
from verifiers.parsers.answers import extract_boxed_answer
from verifiers.parsers.parser import Parser
from verifiers.rubrics.judge_rubric import JudgeRubric
from verifiers.rubrics.math_rubric import MathRubric
from verifiers.rubrics.sandbox_rubric import note_lost_sandbox
from verifiers.state import State

DEFAULT_JUDGE_PROMPT = """\
You grade an answer to a question. You receive the question, the correct answer and a candidate's answer.

Rules:
- The correct answer is right, and the question is valid. Do not solve the question again; compare.
- Compare only the candidate's final answer. Ignore errors in the reasoning that leads to it.
- Ignore format and notation. Equivalent expressions are equal; work out whether two formulas are equivalent. Numbers \
are equal if they agree when they are rounded as the question asks.
- For a choice among options, compare the chosen option: its letter or its content.
- If the question has several parts, every part must match. A partial match is incorrect.
- An answer that is cut off, that repeats itself without end, or that refuses is invalid.

Grades:
\\boxed{{A}}: the final answer is correct.
\\boxed{{B}}: the final answer is incorrect.
\\boxed{{C}}: the answer is invalid: incomplete, repetitive or a refusal. Say which.

First write a short analysis: is the answer valid, what does the question demand, does the final answer match? Then \
end with one line that contains the grade.

<question>
{question}
</question>

<correct_answer>
{answer}
</correct_answer>

<candidate_answer>
{response}
</candidate_answer>
"""
_CORRECT = "A"
_MAX_ANSWER_BYTES = 1 << 16


class HybridMathRubric(JudgeRubric):
    """Reward `correct_answer`: 1.0 if math-verify or, with `use_judge_fallback`, the judge accepts the answer.

    The metrics `math_verify_score` and `judge_score` have weight 0. The judge is asked only if math-verify does not
    accept the answer. `timeout_seconds` and `max_workers` have the same meaning as in `MathRubric`, and the `judge_…`
    arguments the same as in `JudgeRubric`. Your own judge prompt must lead to a grade in `\\boxed{}`; A is correct.
    """

    DEFAULT_JUDGE_PARSER: ClassVar[Parser | None] = None
    DEFAULT_JUDGE_MODEL: ClassVar[str] = "gpt-5-nano"
    DEFAULT_JUDGE_CLIENT: ClassVar[Any] = None
    DEFAULT_JUDGE_PROMPT: ClassVar[str] = DEFAULT_JUDGE_PROMPT
    DEFAULT_JUDGE_SAMPLING_ARGS: ClassVar[dict[str, Any]] = {}
    DEFAULT_USE_JUDGE_FALLBACK: ClassVar[bool] = False

    def __init__(
        self,
        parser: Parser | None = DEFAULT_JUDGE_PARSER,
        use_judge_fallback: bool = DEFAULT_USE_JUDGE_FALLBACK,
        judge_client: Any = DEFAULT_JUDGE_CLIENT,
        judge_model: str = DEFAULT_JUDGE_MODEL,
        judge_prompt: str = DEFAULT_JUDGE_PROMPT,
        judge_sampling_args: Mapping[str, Any] | None = None,
        timeout_seconds: float = 5,
        max_workers: int = 50,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            parser=parser,
            judge_client=judge_client,
            judge_model=judge_model,
            judge_prompt=judge_prompt,
            judge_sampling_args=judge_sampling_args,
            **kwargs,
        )
        if not use_judge_fallback:
            self.judge_model = None
        self.math_rubric = MathRubric(
            parser=self.parser, max_workers=max_workers, timeout_seconds=timeout_seconds
        )
        self.add_reward_func(self.math_verify_score, weight=0)
        self.add_reward_func(self.judge_score, weight=0)
        self.add_reward_func(self.correct_answer, weight=1)

    judge_model: Any
    """None without the judge."""

    def _judge_objects(self, _: State) -> dict[str, Any]:
        # Functions of this class accept `**kwargs` as in v0, but an answer that needs no judge must need no key.
        wanted = any("judge_client" in call.wants for call in self.reward_calls())
        return {"judge_client": self.judge_client} if wanted else {}

    _judge_objects.provides = frozenset({"judge_client"})  # type: ignore[attr-defined]  # read by `early_stop`

    async def math_verify_score(
        self, completion: Any, answer: str, state: Any, **kwargs: Any
    ) -> float:
        """Return 1.0 if math-verify finds the answer equal to `answer`, else 0.0."""
        score = await self.math_rubric.correct_answer(self.parser, completion, answer)
        state["math_verify_score"] = score
        return score

    async def judge_score(
        self, prompt: Any, completion: Any, answer: str, state: Any, **kwargs: Any
    ) -> float:
        """Return the score of math-verify if it is 1.0 or if there is no judge, else 1.0 if the judge accepts."""
        math_score = float(state.get("math_verify_score") or 0.0)
        if math_score == 1.0 or self.judge_model is None:
            return math_score
        grade = extract_boxed_answer(await self.judge(prompt, completion, answer, state))
        score = float(grade.strip() == _CORRECT)
        state["judge_result"], state["judge_score"] = grade, score
        return score

    async def correct_answer(self, state: Any, **kwargs: Any) -> float:
        """Return 1.0 if math-verify or the judge accepts the answer."""
        return float(bool(state.get("math_verify_score") or state.get("judge_score")))

    async def teardown(self) -> None:
        """End the helper processes."""
        await super().teardown()
        await self.math_rubric.teardown()


class RemoteHybridMathRubric(HybridMathRubric):
    """A `HybridMathRubric` for agents: the answer is the text of `answer_path` in the sandbox of the rollout.

    The environment needs `keep_sandbox_for_scoring=True`. The file is compared on this machine, so that the true answer
    never enters the sandbox, and the image needs no package. Without a sandbox or a readable file, and for a rollout
    with an error, the scores are 0.0. The rubric deletes the sandbox. `solution_path`, `scorer_path` and the sizes of
    the client are accepted for v0 and have no effect.
    """

    DEFAULT_ANSWER_PATH: ClassVar[str] = "/app/answer.txt"
    DEFAULT_SOLUTION_PATH: ClassVar[str] = "/app/solution.txt"
    DEFAULT_SCORER_PATH: ClassVar[str] = "/app/score.py"
    DEFAULT_SCORER_TIMEOUT: ClassVar[int] = 30

    def __init__(
        self,
        answer_path: str = DEFAULT_ANSWER_PATH,
        solution_path: str = DEFAULT_SOLUTION_PATH,
        scorer_path: str = DEFAULT_SCORER_PATH,
        scorer_timeout: int = DEFAULT_SCORER_TIMEOUT,
        sandbox_client_max_workers: int = 50,
        sandbox_client_max_connections: int = 1000,
        sandbox_client_max_keepalive_connections: int = 200,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.answer_path = answer_path
        self.solution_path = solution_path
        self.scorer_path = scorer_path
        self.scorer_timeout = scorer_timeout
        self.sandbox_client: Any = None
        """The client for rollouts whose state has none."""

    async def math_verify_score(
        self, completion: Any, answer: str, state: Any, **kwargs: Any
    ) -> float:
        """Return 1.0 if math-verify finds the text of the answer file equal to `answer`, else 0.0."""
        written = await self._written_answer(state)
        return await super().math_verify_score(_as_completion(written), answer, state)

    async def judge_score(
        self, prompt: Any, completion: Any, answer: str, state: Any, **kwargs: Any
    ) -> float:
        """Return the score of math-verify if it is 1.0 or if there is no judge, else 1.0 if the judge accepts."""
        written = await self._written_answer(state)
        if not written:
            return 0.0
        return await super().judge_score(prompt, _as_completion(written), answer, state)

    async def _written_answer(self, state: Any) -> str:
        """Return the text of the answer file; read it once per rollout."""
        if "_written_answer" not in state:
            state["_written_answer"] = await self._read_answer(state)
        return state["_written_answer"]

    async def _read_answer(self, state: Any) -> str:
        sandbox_id, client = state.get("sandbox_id"), self._client_of(state)
        if state.get("error") is not None:
            return ""
        if not sandbox_id or client is None:
            self.logger.warning(
                "There is no sandbox to read %s from. Set keep_sandbox_for_scoring=True in the environment.",
                self.answer_path,
            )
            return ""
        command = f"head -c {_MAX_ANSWER_BYTES} {shlex.quote(self.answer_path)}"
        try:
            done = await client.execute_command(sandbox_id, command, timeout=self.scorer_timeout)
        except Exception as error:  # noqa: BLE001 - counts 0.0, as in v0
            self.logger.warning("%s could not be read: %r", self.answer_path, error)
            note_lost_sandbox(state, error)
            return ""
        return (done.stdout or "").strip() if done.exit_code == 0 else ""

    def _client_of(self, state: Any) -> Any:
        return state.get("sandbox_client") or self.sandbox_client

    @cleanup
    async def cleanup_sandbox(self, state: Any) -> None:
        """Delete the sandbox of the rollout."""
        sandbox_id, client = state.get("sandbox_id"), self._client_of(state)
        if sandbox_id and client is not None:
            try:
                await client.delete(sandbox_id)
            except Exception as error:  # noqa: BLE001 - the environment tries again
                self.logger.warning("Sandbox %s could not be deleted: %r", sandbox_id, error)


def _as_completion(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


__all__ = ["DEFAULT_JUDGE_PROMPT", "HybridMathRubric", "RemoteHybridMathRubric"]

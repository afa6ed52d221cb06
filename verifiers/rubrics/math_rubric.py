"""`MathRubric`: compare an answer with the true answer as mathematics, under a time limit that always interrupts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from verifiers.parsers.answers import extract_boxed_answer
from verifiers.parsers.maybe_think_parser import MaybeThinkParser
from verifiers.parsers.parser import Parser
from verifiers.rubrics.math_checker import CheckTimeout, MathChecker
from verifiers.rubrics.rubric import Rubric
from verifiers.types import RewardFunc

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def _boxed(text: str) -> str:
    return extract_boxed_answer(text, strict=True)


class MathRubric(Rubric):
    """Adds the reward `correct_answer`: 1.0 if math-verify finds the parsed answer and the true answer equal.

    Some comparisons never end (`9^{9^{9^9}}`), so they run in helper processes. A helper is killed after
    `timeout_seconds` of processor time, and the answer counts 0.0. Answers of more than `max_verify_chars` characters
    count 0.0 without a comparison.
    """

    def __init__(
        self,
        funcs: Sequence[RewardFunc] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
        max_workers: int = 8,
        timeout_seconds: float = 5,
        max_verify_chars: int = 50_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            funcs=funcs,
            weights=weights,
            parser=parser or MaybeThinkParser(extract_fn=_boxed),
            **kwargs,
        )
        self.timeout_seconds = timeout_seconds
        self.max_verify_chars = max_verify_chars
        self._checker = MathChecker(max_workers, timeout_seconds)
        self.add_reward_func(self.correct_answer)

    async def correct_answer(
        self, parser: Parser, completion: Any, answer: str, **kwargs: Any
    ) -> float:
        """Return 1.0 if the parsed answer is mathematically equal to `answer`, else 0.0."""
        response = parser.parse_answer(completion) or ""
        truth = str(answer)
        if not response or not truth or len(response) > self.max_verify_chars:
            return 0.0
        if _NUMBER.fullmatch(response) and response == truth:
            return 1.0
        try:
            return float(await asyncio.to_thread(self._checker.equal, truth, response))
        except CheckTimeout as error:
            self.logger.warning("%s", error)
            return 0.0

    async def teardown(self) -> None:
        """End the helper processes."""
        await super().teardown()
        self._checker.close()

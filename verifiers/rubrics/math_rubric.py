"""`MathRubric`: compare an answer with the true answer as mathematics, under a time limit that always interrupts."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from verifiers.parsers.answers import extract_boxed_answer
from verifiers.parsers.maybe_think_parser import MaybeThinkParser
from verifiers.parsers.parser import Parser
from verifiers.rubrics.math_checker import CheckTimeout, MathChecker, compare
from verifiers.rubrics.rubric import Rubric
from verifiers.types import RewardFunc

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


_OF_MATH_VERIFY = ("parse", "verify")
"""Functions of math-verify that callers may replace in this module."""


def __getattr__(name: str) -> Any:
    if name in _OF_MATH_VERIFY:
        import math_verify  # type: ignore[import-untyped]  # heavy, and it ships no types

        return getattr(math_verify, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def verify_response(
    response: str, answer: str, max_verify_chars: int, timeout_seconds: float = 5
) -> tuple[float, float]:
    """Compare two answers. Return 1.0 or 0.0, and the elapsed time in seconds.

    In the main thread math-verify's own limit applies; it does not interrupt C code. In other threads a helper process
    compares. An answer that is empty, too long or cannot be compared, and a comparison that takes too long, give 0.0.
    """
    start = time.perf_counter()
    score = 0.0
    if response and answer and len(response) <= max_verify_chars:
        try:
            score = float(_equal(answer, response, timeout_seconds))
        except Exception:  # noqa: BLE001 - any error means that the comparison failed
            score = 0.0
        except BaseException as error:
            from math_verify.errors import TimeoutException  # not derived from Exception

            if not isinstance(error, TimeoutException):
                raise
    return score, time.perf_counter() - start


_OWN_VERIFY_RESPONSE = verify_response


def _equal(truth: str, response: str, timeout_seconds: float) -> bool:
    has_signals = threading.current_thread() is threading.main_thread()
    if has_signals or _is_replaced():
        module = sys.modules[__name__]
        # math-verify accepts whole seconds only, and limits require signals
        limit_s = math.ceil(timeout_seconds) if has_signals else None
        return compare(truth, response, module.parse, module.verify, limit_s)
    checker = MathChecker(1, timeout_seconds)
    try:
        return checker.equal(truth, response)
    finally:
        checker.close()


def _is_replaced() -> bool:
    """Return whether a caller has replaced a function of this module, for example in a test."""
    own = globals()
    if verify_response is not _OWN_VERIFY_RESPONSE:
        return True
    return any(name in own and own[name] is not __getattr__(name) for name in _OF_MATH_VERIFY)


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
        if _is_replaced():
            limits = (self.max_verify_chars, self.timeout_seconds)
            score, _ = await asyncio.to_thread(verify_response, response, truth, *limits)
            return float(score)
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

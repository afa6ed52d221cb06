"""v0 import path of `HybridMathRubric`."""

from verifiers.rubrics.hybrid_math_rubric import (
    DEFAULT_JUDGE_PROMPT,
    HybridMathRubric,
    RemoteHybridMathRubric,
)

__all__ = ["DEFAULT_JUDGE_PROMPT", "HybridMathRubric", "RemoteHybridMathRubric"]

"""v0 import path of `LeanTaskSet`."""

from verifiers.envs.agents.tasksets.lean import (
    LEAN_GUARD_BEGIN_MARKER,
    LEAN_GUARD_END_MARKER,
    LEAN_SYSTEM_PROMPT,
    LeanRubric,
    LeanTaskSet,
)

__all__ = [
    "LEAN_GUARD_BEGIN_MARKER",
    "LEAN_GUARD_END_MARKER",
    "LEAN_SYSTEM_PROMPT",
    "LeanRubric",
    "LeanTaskSet",
]

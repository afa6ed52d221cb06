"""`RunnableEnvironment`: the part of `Environment` that the other modules of this folder use.

With this protocol, `environment` imports the modules that play, score and save, and they need not import it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from verifiers.errors import RewardArgumentError
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State
from verifiers.tasks import RowFormat
from verifiers.types import SamplingArgs, Tool


class RunnableEnvironment(Protocol):
    """An environment, as the modules that play, score, check and save use it."""

    logger: logging.Logger
    env_id: str
    env_args: dict[str, Any]
    loaded_from: Path | None
    rubric: Rubric
    tool_defs: list[Tool] | None
    system_prompt: str | None
    sampling_args: SamplingArgs
    score_rollouts: bool
    pass_threshold: float
    env_client: Any

    _setup_handlers: list[Callable[..., Any]]
    _stop_conditions: list[Callable[..., Any]]
    _cleanup_handlers: list[Callable[..., Any]]
    _default_rubric: Rubric | None
    _is_checked: bool
    _answer_needs: tuple[Any, list[str]] | None

    @property
    def row_format(self) -> RowFormat:
        """The format that turns a dataset row into a rollout input."""
        ...

    @property
    def requires_group_rollouts(self) -> bool:
        """Whether rewards depend on all rollouts of an example."""
        ...

    @property
    def provides_advantages(self) -> bool:
        """Whether the rubric computes its own advantages."""
        ...

    @property
    def has_update_handlers(self) -> bool:
        """Whether handlers run between the rollouts of an example and their scoring."""
        ...

    @property
    def _shown_name(self) -> str: ...

    def _client_resolver(self) -> Callable[[Any], Any]: ...

    async def init_state(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Return a fresh state for one dataset row."""
        ...

    async def rollout(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Play one rollout and return its state, unscored."""
        ...

    def _check_before_run(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, RewardArgumentError]: ...

    async def _score(self, states: list[State], *, alone: bool) -> None: ...

    async def _update_before_scoring(self, states: list[State]) -> None: ...

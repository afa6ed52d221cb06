"""The search: `gepa` proposes system prompts, the environment plays and scores them.

`gepa` is synchronous and runs in a thread. Every rollout and every reflection runs in the caller's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from verifiers.clients import resolve_client
from verifiers.envs.env_group import EnvGroup
from verifiers.errors import ConfigError
from verifiers.messages import content_text
from verifiers.prompt_search.adapter import COMPONENT, reflect
from verifiers.prompt_search.rows import Row, play_candidate, search_rows, system_text
from verifiers.types import RolloutOutput, SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

logger = logging.getLogger(__name__)

FIRST_PROMPT = "You are a helpful assistant."
"""First prompt for an environment without a system prompt."""

Value = TypeVar("Value")


class SearchOptions(NamedTuple):
    """Limits and settings of a search."""

    max_calls: int = 500
    """Number of rollouts of the whole search."""
    minibatch_size: int = 3
    """Examples per reflection."""
    perfect_score: float | None = None
    """Examples with this reward are excluded from reflection."""
    num_train: int = 100
    num_val: int = 50
    max_concurrent: int = 32
    seed: int = 0
    state_columns: Sequence[str] = ()
    """State keys that the reflecting model receives."""


class SearchResult(NamedTuple):
    """The result of a search."""

    best_prompt: str
    best_score: float
    """Mean reward on the validation examples."""
    first_prompt: str
    first_score: float
    candidates: list[tuple[str, float]]
    """Every accepted prompt with its score, in order."""
    calls: int
    """Number of rollouts that were played."""
    found: Any
    """gepa's own result."""


async def search_prompt(
    environment: Environment,
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    *,
    reflection_client: Any = None,
    reflection_model: str | None = None,
    options: SearchOptions | None = None,
    run_dir: Path | None = None,
    on_log: Callable[[str], None] | None = None,
) -> SearchResult:
    """Search for a system prompt with a higher mean reward.

    `run_dir` is the folder of gepa's state; the same call continues from it. Raises ConfigError if the extra is not
    installed, and errors that end a run (a refused key).
    """
    try:
        from gepa.api import optimize
    except ImportError as error:
        raise ConfigError("The prompt search needs gepa: pip install 'gepa>=0.1'.") from error
    options = options or SearchOptions()
    is_group = isinstance(environment, EnvGroup)
    members = environment.envs if is_group else [environment]
    names = environment.env_names if is_group else [environment.env_id or ""]
    train, validation = (
        search_rows(environment, members, names, split, number, options.seed)
        for split, number in (("train", options.num_train), ("eval", options.num_val))
    )
    first = environment.system_prompt or system_text(train[0]["prompt"]) or FIRST_PROMPT
    adapter = _Adapter(environment, client, model, sampling_args, options)
    reflect = _Reflection(
        client if reflection_client is None else reflection_client, reflection_model or model
    )
    found = await asyncio.to_thread(
        optimize,
        seed_candidate={COMPONENT: first},
        trainset=train,
        valset=validation,
        adapter=adapter,
        reflection_lm=reflect,
        max_metric_calls=options.max_calls,
        reflection_minibatch_size=options.minibatch_size,
        perfect_score=1.0 if options.perfect_score is None else options.perfect_score,
        skip_perfect_score=options.perfect_score is not None,
        seed=options.seed,
        run_dir=None if run_dir is None else str(run_dir),
        logger=_Log(on_log or logger.info),
    )
    prompts = [candidate[COMPONENT] for candidate in found.candidates]
    scores = found.val_aggregate_scores
    return SearchResult(
        prompts[found.best_idx],
        scores[found.best_idx],
        first,
        scores[0],
        list(zip(prompts, scores, strict=True)),
        found.total_metric_calls or 0,
        found,
    )


class _Log:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def log(self, message: str) -> None:
        self._say(message)


class _InLoop:
    """Runs coroutines of another thread in the loop in which the object was made.

    After the task that made the object is cancelled, its coroutines are cancelled too, so that the other thread ends.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._maker = cast("asyncio.Task[Any]", asyncio.current_task())

    def wait(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(self._run(work), self._loop).result()

    async def _run(self, work: Coroutine[Any, Any, Value]) -> Value:
        if self._maker.cancelling() or self._maker.done():
            work.close()
            raise asyncio.CancelledError
        return await work


class _Reflection(_InLoop):
    """The model that writes new prompts, in the form that gepa calls."""

    def __init__(self, client: Any, model: str) -> None:
        super().__init__()
        self._client = resolve_client(client)
        self._model = model

    def __call__(self, prompt: Any) -> str:
        return self.wait(reflect(self._client, self._model, {}, prompt))


class _Adapter(_InLoop):
    """An environment in the form that gepa calls: `evaluate` and `make_reflective_dataset`."""

    propose_new_texts: Any = None  # gepa's default proposals

    def __init__(
        self,
        environment: Environment,
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None,
        options: SearchOptions,
    ) -> None:
        super().__init__()
        self._environment = environment
        self._client = client
        self._model = model
        self._sampling_args = sampling_args
        self._options = options

    def evaluate(
        self, batch: Sequence[Row], candidate: Mapping[str, str], capture_traces: bool = False
    ) -> Any:
        """Play the rows with the candidate's prompt."""
        from gepa.core.adapter import EvaluationBatch

        outputs, scores = self.wait(
            play_candidate(
                self._environment,
                batch,
                candidate[COMPONENT],
                self._client,
                self._model,
                self._sampling_args,
                max_concurrent=self._options.max_concurrent,
                state_columns=self._options.state_columns,
            )
        )
        return EvaluationBatch(outputs, scores, outputs if capture_traces else None)

    def make_reflective_dataset(
        self, candidate: Mapping[str, str], eval_batch: Any, components_to_update: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the parts of each rollout that the reflecting model receives."""
        shown = [
            _shown(output, self._options.state_columns) for output in eval_batch.trajectories or []
        ]
        return dict.fromkeys(components_to_update, shown)


def _shown(output: RolloutOutput, state_columns: Sequence[str]) -> dict[str, Any]:
    feedback = [f"Reward: {output['reward']:.3g}"]
    if output.get("metrics"):
        feedback.append(f"Metrics: {output['metrics']}")
    if answer := output.get("answer"):
        feedback.append(f"Expected answer: {answer}")
    if error := output.get("error"):
        feedback.append(f"The rollout failed: {error['error_chain_repr']}")
    feedback += [f"{name}: {output.get(name)}" for name in state_columns]
    return {
        "Inputs": _transcript([m for m in output["prompt"] if m["role"] != "system"]),
        "Generated Outputs": _transcript(output["completion"] or []),
        "Feedback": "\n".join(feedback),
    }


def _transcript(messages: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for message in messages:
        text = content_text(message.get("content") or "")
        calls = "".join(
            f"\n[calls {call['name']}({call['arguments']})]"
            for call in message.get("tool_calls") or []
        )
        parts.append(f"{message['role']}: {text}{calls}")
    return "\n\n".join(parts)

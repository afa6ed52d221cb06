"""`Environment`: dataset + rollout protocol + rubric. A facade: each method hands over to the module that works.

datasets            → tasks
one model call      → clients
one rollout         → MultiTurnEnv.rollout
scoring             → rubrics
many rollouts       → envs.generation, rollouts.schedule
saving              → runs
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.clients import resolve_client
from verifiers.decorators import hooks_of
from verifiers.envs import generation, open_environments, preflight, stops
from verifiers.envs.datasets import HasDatasets
from verifiers.envs.hooks import call_hook, call_rollout_hook, check_rollout_hooks
from verifiers.envs.options import merged_sampling_args
from verifiers.envs.serving import HasServer
from verifiers.envs.token_counts import HasTokenCounts
from verifiers.envs.unknown_arguments import UnknownArgumentWarning, take_unknown
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    DatasetError,
    EnvironmentCodeError,
    Error,
    RewardArgumentError,
    text_of,
)
from verifiers.messages import normalize_messages
from verifiers.parsers.parser import Parser
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.state import RolloutTiming, State, StateUsageTracker
from verifiers.tools.functions import normalize_tool, to_oai_tool
from verifiers.types import (
    GenerateOutputs,
    Messages,
    MessageType,
    RolloutOutput,
    SamplingArgs,
    Tool,
)

if TYPE_CHECKING:
    from datasets import Dataset

    from verifiers.clients.client import Client
    from verifiers.types import ClientConfig

DEFAULT_SAMPLING_ARGS: SamplingArgs = {"n": 1, "extra_body": {}}
_PER_ROW_TOOLS = ("tool_defs", "oai_tools", "tools")


class Environment(HasDatasets, HasServer, HasTokenCounts, ABC):
    """Base of all environments. Authors subclass `MultiTurnEnv` or one of its subclasses.

    `dataset` and `eval_dataset` are a `datasets.Dataset`, a list of rows, a callable that builds either, or an
    iterable of rows that may never end. A row has a `prompt` (messages) or a `question`, and what the rubric needs.
    """

    def __init__(
        self,
        dataset: Any = None,
        eval_dataset: Any = None,
        system_prompt: str | None = None,
        few_shot: Messages | None = None,
        parser: Parser | None = None,
        rubric: Rubric | None = None,
        sampling_args: SamplingArgs | None = None,
        message_type: MessageType = "chat",
        tool_defs: Sequence[Any] | None = None,
        max_workers: int = 512,
        env_id: str | None = None,
        env_args: dict[str, Any] | None = None,
        map_kwargs: Mapping[str, Any] | None = None,
        max_seq_len: int | None = None,
        score_rollouts: bool = True,
        pass_threshold: float = 0.5,
        *,
        oai_tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.logger = logging.getLogger(f"verifiers.envs.{type(self).__name__}")
        if message_type not in ("chat", "completion"):
            raise ConfigError(f"message_type must be 'chat' or 'completion'; got {message_type!r}.")
        self.message_type: MessageType = message_type
        self.tool_defs: list[Tool] | None = self._normalize_tool_defs(tool_defs or oai_tools)
        self.system_prompt = system_prompt
        self.few_shot = normalize_messages(few_shot, field_name="few_shot") if few_shot else None
        if isinstance(rubric, list | tuple) or inspect.isroutine(rubric):
            raise ConfigError(
                f"rubric must be a Rubric; got {rubric!r:.200}. Write rubric=vf.Rubric(funcs=[…])."
            )
        self.parser = parser or (rubric.parser if rubric is not None else Parser())
        self.rubric: Rubric = rubric or Rubric(parser=self.parser)
        self._default_rubric = None if rubric is not None else self.rubric
        if rubric is not None and parser is not None and _parsers_differ(parser, rubric):
            self.logger.warning(
                "The environment parses with %s and its rubric with %s. Pass one parser to both.",
                type(parser).__name__,
                type(rubric.parser).__name__,
            )
        self.env_id = env_id or ""
        self.env_args = env_args or {}
        self.max_seq_len = max_seq_len
        self.map_kwargs = dict(map_kwargs or {})
        self.score_rollouts = score_rollouts
        self.pass_threshold = pass_threshold
        self.max_workers = max_workers
        self.rollouts_per_example = 1
        self.sampling_args: SamplingArgs = merged_sampling_args(
            DEFAULT_SAMPLING_ARGS, sampling_args
        )
        self._take_datasets(dataset, eval_dataset)
        self._stop_conditions = self._hooks("stop") + stops.unmarked(self)
        self._stop_plan: tuple[list[Any], list[Any]] = ([], [])
        self._setup_handlers = self._hooks("setup")
        self._update_handlers = self._hooks("update")
        self._cleanup_handlers = self._hooks("cleanup")
        self._teardown_handlers = self._hooks("teardown")
        check_rollout_hooks(
            [*self._setup_handlers, *self._stop_conditions, *self._cleanup_handlers]
        )
        self._add_marked_methods()
        take_unknown(self, kwargs)
        open_environments.add(self)

    loaded_from: Path | None = None
    """Folder or file that `verifiers.loading` loaded the environment from by its path; None for an installed one."""
    _needs_dataset = True
    _own_group: RubricGroup | None = None
    _default_rubric: Rubric | None = None
    """The empty rubric of an environment that was given none."""
    _is_checked = False
    """Whether `preflight.warn_once` has looked at this environment."""
    _answer_needs: tuple[Any, list[str]] | None = None
    """Reward functions that need an answer, as `preflight` found them for the bound functions beside them."""

    @property
    def _shown_name(self) -> str:
        """What messages call this environment: its class, and its id where it has one."""
        return f"{type(self).__name__} ({self.env_id})" if self.env_id else type(self).__name__

    def _hooks(self, kind: Any) -> list[Callable[..., Any]]:
        return [getattr(self, name) for name in hooks_of(type(self), kind)]

    def _add_marked_methods(self) -> None:
        """Methods marked `@vf.reward`, `@vf.metric`, `@vf.advantage`, as a rubric beside the one that was given."""
        own = Rubric(parser=self.parser)
        for method in self._hooks("reward"):
            own.add_reward_func(method, getattr(method, "reward_weight", 1.0))
        for method in self._hooks("metric"):
            own.add_metric(method)
        for method in self._hooks("advantage"):
            own.add_advantage_func(method)
        if own.funcs or own.has_advantages:
            self.add_rubric(own)

    def _check_before_run(
        self, rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, RewardArgumentError]:
        """Report mistakes that would make every reward meaningless. Return the reward functions that perhaps cannot be
        called, with their error.

        Raises MissingAnswer for a row without an answer, RewardArgumentError for a function that cannot be called.
        """
        preflight.check_rows(self, rows)
        preflight.warn_once(self)
        return preflight.check_arguments(self, rows)

    # ----------------------------------------------------------------------------------------- one rollout

    @staticmethod
    def _normalize_tool_defs(tools: Sequence[Any] | None) -> list[Tool] | None:
        return None if tools is None else [normalize_tool(tool) for tool in tools]

    @property
    def oai_tools(self) -> list[dict[str, Any]] | None:
        """The tool definitions in OpenAI's shape, as generation (a) had them."""
        return None if self.tool_defs is None else [to_oai_tool(tool) for tool in self.tool_defs]

    @oai_tools.setter
    def oai_tools(self, tools: Sequence[Any] | None) -> None:
        self.tool_defs = self._normalize_tool_defs(tools)

    async def init_state(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """A fresh state for one dataset row. Nothing in it is shared with other rollouts of the row."""
        state = State.for_row(input)
        if "prompt" not in state:
            state["prompt"] = self.row_format.prompt_of(input, state.get("example_id", 0))
        for key, value in input.items():
            if isinstance(value, dict | list) and key != "prompt":
                state["input"][key] = _copied(value)
        state["prompt"] = [
            deepcopy(message) if isinstance(message.get("content"), list) else message.copy()
            for message in normalize_messages(state["prompt"], field_name="prompt")
        ]
        state.begin(
            {
                "client": resolve_client(client),
                "model": model,
                "sampling_args": sampling_args,
                "is_completed": False,
                "is_truncated": False,
                "stop_condition": None,
                "tool_defs": self._tools_for(state),
                "trajectory": [],
                "trajectory_id": generation.new_id(),
                "completion": None,
                "reward": None,
                "metrics": None,
                "advantage": None,
                "error": None,
                "final_env_response": None,
                "usage": StateUsageTracker(),
                "timing": RolloutTiming(),
            }
        )
        return state

    def _tools_for(self, state: State) -> list[Tool]:
        info = state.get("info")
        if isinstance(info, Mapping):
            for key in _PER_ROW_TOOLS:
                own = info.get(key)
                if own and isinstance(own, Sequence) and not isinstance(own, str):
                    return self._normalize_tool_defs(own) or []
        own = dict.get(state, "tools") if "tools" in state.input_fields else None
        if own and isinstance(own, list) and isinstance(own[0], Mapping):
            return self._normalize_tool_defs(own) or []
        return self.tool_defs or []

    async def get_model_response(self, *args: Any, **kwargs: Any) -> Any:
        """One model call: `(state, prompt, client=None, model=None, tool_defs=None, sampling_args=None) -> Response`.

        Without a state it is generation (a)'s `(client, model, prompt, oai_tools=…, sampling_args=…, message_type=…)`.
        An SDK client then returns the object of the SDK (`.choices[0].message.content`), another client a `Response`.
        """
        if not isinstance(args[0] if args else kwargs.get("state"), State):
            return await generation.model_response_for_client(self, *args, **kwargs)
        names = ("state", "prompt", "client", "model", "tool_defs", "sampling_args", "message_type")
        given: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        state: State = given["state"]
        prompt: Any = given["prompt"]
        client = given.get("client")
        if isinstance(prompt, list) and not prompt:
            raise DatasetError(
                f"The prompt of example {state.get('example_id')} is empty when {self._shown_name} asks the model. "
                "Give the row a 'question' or messages in 'prompt', or return messages from get_prompt_messages."
            )
        chosen = state.client if client is None else resolve_client(client)
        tools = given.get("tool_defs", given.get("oai_tools"))
        sampling_args = given.get("sampling_args")
        response = await chosen.get_response(
            prompt,
            given.get("model") or state.model,
            (state.sampling_args or {}) if sampling_args is None else sampling_args,
            (state.tool_defs if tools is None else self._normalize_tool_defs(tools)) or None,
            state=state,
        )
        self.increment_state_usage_from_response(state, response)
        return response

    @abstractmethod
    async def rollout(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Play one rollout and return its state, unscored."""

    async def _render_stop(
        self, state: State, condition: Callable[..., Any], **kwargs: Any
    ) -> bool:
        if not await call_rollout_hook(condition, self, state, **kwargs):
            return False
        state.is_completed = True
        state.stop_condition = getattr(condition, "__name__", type(condition).__name__)
        return True

    async def is_completed(self, state: State, *older: State, **kwargs: Any) -> bool:
        """Whether a stop condition holds; the first one that does is the rollout's `stop_condition`.

        Before 0.1.8 it was called as `(messages, state)`; overrides from then may still do so.
        """
        if older:
            state = older[0]
        if not isinstance(state, State):  # a dict, as the tests of some authors pass
            real = State({"trajectory": [], **state})
            completed = await self.is_completed(real)
            state.update(is_completed=real.is_completed, stop_condition=real.stop_condition)
            return completed
        if type(self)._render_stop is not Environment._render_stop:
            for condition in self._stop_conditions:
                if await self._render_stop(state, condition):
                    return True
            return False
        for condition, predicate in self._stop_plan_now():
            if predicate is None:
                if await self._render_stop(state, condition):
                    return True
            elif predicate(self, state):
                state.is_completed = True
                state.stop_condition = predicate.__name__
                return True
        return False

    def _stop_plan_now(self) -> list[Any]:
        if self._stop_plan[0] != self._stop_conditions:  # someone has changed the list
            self._stop_plan = (list(self._stop_conditions), stops.plan(self._stop_conditions))
        return self._stop_plan[1]

    async def cleanup(self, state: State, *_: Any, **__: Any) -> None:
        """Run the `@vf.cleanup` handlers for one rollout."""
        await generation.clean_up(self, state)

    _cleanup = cleanup

    async def _update_before_scoring(self, states: list[State]) -> None:
        """Run the `@vf.update` handlers for rollouts of one example.

        What a handler raises is the error of the rollouts it was called for.
        """
        for handler in self._update_handlers:
            if getattr(handler, "update_stage", "rollout") == "group":
                await self._updated(handler, states, states)
            else:
                for state in states:
                    await self._updated(handler, state, [state])

    async def _updated(self, handler: Callable[..., Any], given: Any, states: list[State]) -> None:
        try:
            await call_hook(handler, given)
        except (AuthenticationError, ConfigError):
            raise  # would fail for every rollout
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an error of the rollout, as in any other hook
            for state in states:
                if state.error is None:
                    self._note_error(state, error)

    @property
    def has_update_handlers(self) -> bool:
        """Whether something runs between the rollouts of an example and their scoring."""
        return bool(self._update_handlers)

    def _note_error(self, state: State, error: BaseException) -> None:
        """End a rollout with what its environment raised; what is not a `vf.Error` becomes EnvironmentCodeError."""
        if not isinstance(error, Error):
            wrapped = EnvironmentCodeError(
                f"{type(self).__name__} raised {type(error).__name__}: {text_of(error)}"
            )
            wrapped.__cause__ = error
            error = wrapped
        self.logger.warning("Aborted rollout due to %r", error)
        self.logger.debug("Rollout aborted", exc_info=error)
        state.error = error
        state.is_completed = True
        state.stop_condition = "has_error"

    async def _run_rollout_state(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """One rollout, played and scored."""
        state = await self.rollout(input, client, model, sampling_args)
        await generation.score(self, [state], alone=True)
        return state

    async def _run_group_states(
        self,
        group_inputs: Sequence[Mapping[str, Any]],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> list[State]:
        """The rollouts of one example, played concurrently and scored together."""
        states = await generation.play_group(self, group_inputs, client, model, sampling_args)
        await generation.score(self, states, alone=False)
        return states

    async def run_rollout(self, *args: Any, **kwargs: Any) -> Any:
        """One rollout, played and scored: `(input, client, model, sampling_args, max_retries=0, state_columns=None,
        env_client=None) -> RolloutOutput`, or generation (a)'s `(sem, input, client, model, sampling_args) -> State`.
        """
        return await generation.run_rollout(self, *args, **kwargs)

    async def run_group(self, *args: Any, **kwargs: Any) -> Any:
        """The rollouts of one example: `(group_inputs, client, model, sampling_args, max_retries=0, state_columns=None,
        env_client=None) -> list[RolloutOutput]`, or generation (a)'s `(group_inputs, client, model,
        gen_sampling_args, gen_sem, score_sem) -> list[State]`.
        """
        return await generation.run_group(self, *args, **kwargs)

    # ---------------------------------------------------------------------------------------- many rollouts

    async def generate(
        self,
        inputs: Dataset | Sequence[Mapping[str, Any]],
        client: Client | ClientConfig | Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_concurrent: int = -1,
        **options: Any,
    ) -> GenerateOutputs:
        """Play and score every input; inputs of the same example form a group.

        Further options: the fields of `generation.GenerateOptions`. Failed rollouts are results with an `error`; wrong
        credentials, an option that does not exist and a run folder that cannot be written raise.
        """
        chosen = generation.GenerateOptions.from_call(max_concurrent=max_concurrent, **options)
        rows = generation.as_rows(self, inputs)
        return await generation.run_rows(self, rows, client, model, sampling_args, chosen)

    async def evaluate(
        self,
        client: Client | ClientConfig | Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        num_examples: int = -1,
        rollouts_per_example: int = 1,
        max_concurrent: int = -1,
        **options: Any,
    ) -> GenerateOutputs:
        """`generate` on `rollouts_per_example` rollouts of the first `num_examples` evaluation rows (all for -1)."""
        chosen = generation.GenerateOptions.from_call(
            max_concurrent=max_concurrent, rollouts_per_example=rollouts_per_example, **options
        )
        inputs = self._get_eval_inputs(
            num_examples, rollouts_per_example, chosen.shuffle_seed_or_none
        )
        return await generation.run_rows(
            self, generation.as_rows(self, inputs), client, model, sampling_args, chosen
        )

    def generate_sync(self, inputs: Any, client: Any, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """`generate` from code that is not async; works inside a notebook's running loop too."""
        return generation.run_sync(lambda: self.generate(inputs, client, *args, **kwargs))

    def evaluate_sync(self, client: Any, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """`evaluate` from code that is not async; works inside a notebook's running loop too."""
        return generation.run_sync(lambda: self.evaluate(client, *args, **kwargs))

    def _get_eval_inputs(
        self, num_examples: int = -1, rollouts_per_example: int = 1, seed: int | None = None
    ) -> list[dict[str, Any]]:
        return generation.eval_inputs(self, num_examples, rollouts_per_example, seed)

    @staticmethod
    def make_dataset(results: GenerateOutputs) -> Dataset:
        """The results as a `datasets.Dataset`."""
        from verifiers.runs.publish import make_dataset

        return make_dataset(results)

    def process_env_results_vllm(self, *args: Any, **kwargs: Any) -> Any:
        """Token ids and masks of finished rollouts, by the name that 0.1.7's trainers call."""
        from verifiers.envs.processed_outputs import process_env_results_vllm

        return process_env_results_vllm(self, *args, **kwargs)

    process_env_results = process_env_results_vllm

    # --------------------------------------------------------------------------------------------- settings

    @property
    def requires_group_rollouts(self) -> bool:
        """Whether rewards depend on all rollouts of an example."""
        return self.rubric.has_group_rewards

    @property
    def provides_advantages(self) -> bool:
        """Whether the rubric gives its own advantages."""
        return self.rubric.has_advantages

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set options by name, through `set_<name>` where there is one (`--extra-env-kwargs`)."""
        for name, value in kwargs.items():
            setter = getattr(self, f"set_{name}", None)
            if setter is not None:
                setter(value)
            else:
                setattr(self, name, value)

    def add_rubric(self, rubric: Rubric) -> None:
        """Score with one more rubric. A group that somebody else made, and may use elsewhere, is not changed."""
        if self._own_group is None or self.rubric is not self._own_group:
            self._own_group = RubricGroup(rubrics=[self.rubric], parser=self.rubric.parser)
            self.rubric = self._own_group
        self._own_group.rubrics.append(rubric)

    def set_concurrency(self, concurrency: int) -> None:
        """Told how many rollouts will run at once; environments with pools size them by it."""
        self.max_workers = concurrency

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Longest sequence a trainer takes, in tokens; longer ones are cut and marked as truncated."""
        self.max_seq_len = max_seq_len

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Whether to run the rubric at all."""
        self.score_rollouts = score_rollouts

    async def _teardown(self) -> None:
        for handler in self._teardown_handlers:
            await call_hook(handler)
        await self.rubric.teardown()

    async def aclose(self) -> None:
        """Run the `@vf.teardown` handlers, once."""
        if open_environments.remove(self):
            await self._teardown()

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _copied(value: Any) -> Any:
    """A copy that shares nothing that can be changed; quickly, for the usual flat `info`."""
    if type(value) is dict and all(type(item) in _PLAIN for item in value.values()):
        return value.copy()
    return deepcopy(value)


def _parsers_differ(parser: Parser, rubric: Rubric) -> bool:
    rubrics = getattr(rubric, "rubrics", [rubric])
    return all(
        type(one.parser) is not type(parser)
        or (one.parser is not parser and type(parser) is not Parser)
        for one in rubrics
    )


__all__ = ["Environment", "RolloutOutput", "UnknownArgumentWarning", "resolve_client"]

"""`Environment`: a dataset, a rollout protocol and a rubric.

The class holds the rows, the settings and the lifetime of an environment. The work of a run is in other modules:

one rollout         → `MultiTurnEnv.rollout`
play and score      → `play`
a run               → `generation`
older call forms    → `verifiers.v0.call_forms`
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import logging
import signal  # no use here: callers of v0 patch `verifiers.envs.environment.signal.signal`
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.clients import resolve_client
from verifiers.concurrency import run_sync
from verifiers.decorators import hooks_of
from verifiers.envs import generation, play, preflight, stops
from verifiers.envs.hooks import call_hook, call_rollout_hook, check_rollout_hooks
from verifiers.envs.options import GenerateOptions, merged_sampling_args
from verifiers.envs.rows import HasRows
from verifiers.envs.run_clients import endpoints_for, server_config
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    DatasetError,
    Error,
    RewardArgumentError,
    note_error,
)
from verifiers.messages import normalize_messages
from verifiers.parsers.parser import Parser
from verifiers.rollouts.retries import is_retryable, with_retries
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.runs.output import output_from_state
from verifiers.state import State, StateUsageTracker
from verifiers.types import (
    GenerateOutputs,
    Messages,
    MessageType,
    RolloutOutput,
    SamplingArgs,
    TokenUsage,
    Tool,
)
from verifiers.v0 import call_forms
from verifiers.v0.call_forms import OlderForms, also_called_as
from verifiers.v0.unknown_arguments import UnknownArgumentWarning, take_unknown

if TYPE_CHECKING:
    from datasets import Dataset

    from verifiers.clients.client import Client
    from verifiers.types import ClientConfig

DEFAULT_SAMPLING_ARGS: SamplingArgs = {"n": 1, "extra_body": {}}
SERVER_MODULE = "verifiers.serve.server_process"
"""Module that starts worker processes. It belongs to a higher layer, so it is imported by name on first use."""


class Environment(HasRows, OlderForms, ABC):
    """Base class of all environments. Authors subclass `MultiTurnEnv` or one of its subclasses.

    `dataset` and `eval_dataset` are a `datasets.Dataset`, a list of rows, a callable that builds either, or an iterable
    of rows that may be endless. A row has a `prompt` (messages) or a `question`, and the fields that the rubric needs.
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
        self._keep_open()

    loaded_from: Path | None = None
    """Folder or file from which `verifiers.loading` loaded the environment; None for an installed one."""
    _own_group: RubricGroup | None = None
    _default_rubric: Rubric | None = None
    """The empty rubric that stands in for a missing one."""
    _is_checked = False
    """Whether `preflight.warn_once` has checked this environment."""
    _answer_needs: tuple[Any, list[str]] | None = None
    """Bound reward functions, and the names of those that need an answer, as `preflight` found them."""

    @property
    def _shown_name(self) -> str:
        """Name of this environment in messages: its class, and its id if it has one."""
        return f"{type(self).__name__} ({self.env_id})" if self.env_id else type(self).__name__

    def _client_resolver(self) -> Callable[[Any], Any]:
        """Return `resolve_client` of this module. Callers may replace it there."""
        return resolve_client

    def _hooks(self, kind: Any) -> list[Callable[..., Any]]:
        return [getattr(self, name) for name in hooks_of(type(self), kind)]

    def _add_marked_methods(self) -> None:
        """Add the methods marked `@vf.reward`, `@vf.metric` or `@vf.advantage` as a further rubric."""
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
        """Report mistakes that would make every reward meaningless. Return the reward functions that may be uncallable,
        with their errors.

        Raises MissingAnswer for a row without an answer, and RewardArgumentError for a function that cannot be called.
        """
        preflight.check_rows(self, rows)
        preflight.warn_once(self)
        return preflight.check_arguments(self, rows)

    # ----------------------------------------------------------------------------------------- one rollout

    @also_called_as(call_forms.model_response_for_client, call_forms.is_call_without_state)
    async def get_model_response(
        self,
        state: State,
        prompt: Messages | str,
        client: Any = None,
        model: str | None = None,
        tool_defs: Sequence[Any] | None = None,
        sampling_args: SamplingArgs | None = None,
        message_type: Any = None,
        **older: Any,
    ) -> Any:
        """Call the model once for a rollout and return its `Response`. None stands for the value in the state.

        Without a state, the form is generation (a)'s `(client, model, prompt, oai_tools=…, sampling_args=…,
        message_type=…)`.
        """
        if isinstance(prompt, list) and not prompt:
            raise DatasetError(
                f"The prompt of example {state.get('example_id')} is empty when {self._shown_name} calls the model. "
                "Give the row a 'question' or messages in 'prompt', or return messages from get_prompt_messages."
            )
        chosen: Any = state.get("client") if client is None else resolve_client(client)
        tools = older.get("oai_tools") if tool_defs is None else tool_defs
        response = await chosen.get_response(
            prompt,
            model or state["model"],
            (state.get("sampling_args") or {}) if sampling_args is None else sampling_args,
            (state.get("tool_defs") if tools is None else self._normalize_tool_defs(tools)) or None,
            state=state,
        )
        self.increment_state_usage_from_response(state, response)
        return response

    def _get_usage_tracker(
        self, state: State, create_if_missing: bool = True
    ) -> StateUsageTracker | None:
        tracker = state.get("usage_tracker")
        if not hasattr(tracker, "increment") and create_if_missing:
            tracker = state["usage_tracker"] = state["usage"] = StateUsageTracker()
        return tracker

    def increment_state_usage(
        self, state: State, input_tokens: float = 0, output_tokens: float = 0
    ) -> None:
        """Count the tokens of a model call that the environment made itself."""
        tracker = self._get_usage_tracker(state)
        if tracker is not None:
            tracker.increment(input_tokens, output_tokens)

    def increment_state_usage_from_response(self, state: State, response: Any) -> None:
        """Count the tokens that a response reports."""
        tracker = self._get_usage_tracker(state)
        if tracker is not None:
            tracker.increment_from_response(response)

    def get_state_usage(self, state: State) -> TokenUsage | None:
        """Return the tokens of the rollout so far; None if none were counted."""
        tracker = self._get_usage_tracker(state, create_if_missing=False)
        return None if tracker is None else tracker.snapshot()

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

    @call_forms.also_takes_messages
    async def is_completed(self, state: State, **kwargs: Any) -> bool:
        """Return whether a stop condition holds. The first one that holds becomes the rollout's `stop_condition`.

        Before 0.1.8 the form was `(messages, state)`; overrides may still call it so.
        """
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
        if self._stop_plan[0] != self._stop_conditions:  # the list has been changed
            self._stop_plan = (list(self._stop_conditions), stops.plan(self._stop_conditions))
        return self._stop_plan[1]

    async def cleanup(self, state: State, *_: Any, **__: Any) -> None:
        """Run the `@vf.cleanup` handlers of one rollout."""
        await play.clean_up(self, state)

    async def _update_before_scoring(self, states: list[State]) -> None:
        """Run the `@vf.update` handlers on the rollouts of one example.

        An exception of a handler becomes the error of the rollouts that the handler received.
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
                note_error(state, error, self)

    @property
    def has_update_handlers(self) -> bool:
        """Whether handlers run between the rollouts of an example and their scoring."""
        return bool(self._update_handlers)

    # ------------------------------------------------------------------------------------ one example

    async def play_and_score(
        self,
        rows: Sequence[Mapping[str, Any]],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        *,
        alone: bool | None = None,
        max_retries: int = 0,
        play_limit: play.Limit | None = None,
        score_limit: play.Limit | None = None,
        fatal: tuple[type[Error], ...] = (),
    ) -> list[State]:
        """Play the rollouts of one example concurrently, score them, and return their states.

        `rows` is the row of the example, once per rollout. `sampling_args` are used as they are; `generate` adds those
        of the environment. `alone` scores each rollout separately; the default is to score them as a group if a reward
        function needs the group. A rollout is repeated up to `max_retries` times after an infrastructure error. Each
        rollout holds `play_limit` while it is played, the group holds `score_limit` while it is scored.

        A failed rollout is a state with an `error`. An error of a class in `fatal` is raised and cancels the others.
        """
        return await play.play_and_score(
            self,
            rows,
            client,
            model,
            sampling_args,
            alone=alone,
            max_retries=max_retries,
            play_limit=play_limit,
            score_limit=score_limit,
            fatal=fatal,
        )

    async def _score(self, states: list[State], *, alone: bool) -> None:
        """Score finished rollouts with the rubric: one rollout alone, or a group."""
        if alone:
            await self.rubric.score_rollout(states[0])
        else:
            await self.rubric.score_group(states)

    async def _run_rollout_state(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Play and score one rollout."""
        [state] = await self.play_and_score([input], client, model, sampling_args, alone=True)
        return state

    async def _run_group_states(
        self,
        group_inputs: Sequence[Mapping[str, Any]],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> list[State]:
        """Play the rollouts of one example concurrently and score them together."""
        return await self.play_and_score(group_inputs, client, model, sampling_args, alone=False)

    @also_called_as(call_forms.rollout_with_semaphore, call_forms.is_rollout_with_semaphore)
    async def run_rollout(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: Sequence[str] | None = None,
        env_client: Any = None,
    ) -> RolloutOutput:
        """Play and score one rollout. Generation (a)'s form is `(sem, input, client, model, sampling_args)`; it returns
        an unscored `State`.
        """
        if (remote := env_client or self.env_client) is not None:
            config = endpoints_for(remote, server_config(client))[0]
            return await remote.run_rollout(
                input, config, model, sampling_args or {}, max_retries, state_columns
            )
        state = await with_retries(
            lambda: self._run_rollout_state(input, client, model, sampling_args),
            lambda state: state.error,
            max_retries,
        )
        return output_from_state(state, state_columns)

    @also_called_as(call_forms.group_with_semaphores, call_forms.is_group_with_semaphores)
    async def run_group(
        self,
        group_inputs: Sequence[Mapping[str, Any]],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: Sequence[str] | None = None,
        env_client: Any = None,
        **_: Any,
    ) -> list[RolloutOutput]:
        """Play the rollouts of one example and score them together. Generation (a)'s form is `(group_inputs, client,
        model, gen_sampling_args, gen_sem, score_sem)`; it returns states.
        """
        if (remote := env_client or self.env_client) is not None:
            config = endpoints_for(remote, server_config(client))[0]
            return await remote.run_group(
                group_inputs, config, model, sampling_args or {}, max_retries, state_columns
            )
        states = await with_retries(
            lambda: self._run_group_states(group_inputs, client, model, sampling_args),
            lambda states: next((s.error for s in states if is_retryable(s.error)), None),
            max_retries,
        )
        return [output_from_state(state, state_columns) for state in states]

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
        """Play and score every input. Inputs of the same example form a group.

        Further options are the fields of `generation.GenerateOptions`. A failed rollout is a result with an `error`.
        Wrong credentials, unknown options and a run folder that cannot be written raise.
        """
        chosen = GenerateOptions.from_call(max_concurrent=max_concurrent, **options)
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
        """Run `generate` on the first `num_examples` evaluation rows (-1: all), each `rollouts_per_example` times."""
        chosen = GenerateOptions.from_call(
            max_concurrent=max_concurrent, rollouts_per_example=rollouts_per_example, **options
        )
        inputs = self._get_eval_inputs(
            num_examples, rollouts_per_example, chosen.shuffle_seed_or_none
        )
        if type(self).generate is not Environment.generate:  # an author's own sees every run
            if rollouts_per_example != 1:
                options["rollouts_per_example"] = rollouts_per_example
            return await self.generate(
                inputs, client, model, sampling_args, max_concurrent=max_concurrent, **options
            )
        return await generation.run_rows(
            self, generation.as_rows(self, inputs), client, model, sampling_args, chosen
        )

    def generate_sync(self, inputs: Any, client: Any, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """Run `generate` from code that is not async. It also works inside a notebook's running loop."""
        return run_sync(lambda: self.generate(inputs, client, *args, **kwargs))

    def evaluate_sync(self, client: Any, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """Run `evaluate` from code that is not async. It also works inside a notebook's running loop."""
        return run_sync(lambda: self.evaluate(client, *args, **kwargs))

    @staticmethod
    def make_dataset(results: GenerateOutputs) -> Dataset:
        """Return the results as a `datasets.Dataset`."""
        from verifiers.runs.publish import make_dataset

        return make_dataset(results)

    # --------------------------------------------------------------------------------------- worker processes

    env_client: Any = None
    """Client of an environment server. If it is set, all rollouts except those of `rollout` run there."""
    _server: Any = None

    async def start_server(self, *args: Any, **kwargs: Any) -> None:
        """Run the rollouts of this environment in `num_workers` other processes from now on: `(address=None,
        extra_env_kwargs=None, num_workers=1, log_level=None, log_dir=None, console_logging=True,
        health_check_interval=1.0, startup_timeout=600.0, recovery_timeout=600.0)`, times in seconds. Keyword arguments
        are `python` (the workers' interpreter) and the further options of `ZMQEnvServer`.

        The workers load the environment by its id, or by the path from which it was loaded. They end with `stop_server`
        or with this process.
        """
        await self.stop_server()
        start = importlib.import_module(SERVER_MODULE).start_server
        self._server, self.env_client = await start(self, *args, **kwargs)

    async def stop_server(self) -> None:
        """End the processes of `start_server`, if there are any."""
        server, self._server = self._server, None
        if server is not None:
            self.env_client = None
            await server.stop()

    # --------------------------------------------------------------------------------------------- settings

    @property
    def requires_group_rollouts(self) -> bool:
        """Whether rewards depend on all rollouts of an example."""
        return self.rubric.has_group_rewards

    @property
    def provides_advantages(self) -> bool:
        """Whether the rubric computes its own advantages."""
        return self.rubric.has_advantages

    def set_kwargs(self, **kwargs: Any) -> None:
        """Set options by name, through `set_<name>` if the method exists (`--extra-env-kwargs`)."""
        for name, value in kwargs.items():
            setter = getattr(self, f"set_{name}", None)
            if setter is not None:
                setter(value)
            else:
                setattr(self, name, value)

    def add_rubric(self, rubric: Rubric) -> None:
        """Score with one more rubric. A `RubricGroup` that the caller made is not changed."""
        if self._own_group is None or self.rubric is not self._own_group:
            self._own_group = RubricGroup(rubrics=[self.rubric], parser=self.rubric.parser)
            self.rubric = self._own_group
        self._own_group.rubrics.append(rubric)

    def set_concurrency(self, concurrency: int) -> None:
        """Set the number of concurrent rollouts. Environments with pools use it as their size."""
        self.max_workers = concurrency

    def set_max_seq_len(self, max_seq_len: int | None) -> None:
        """Set the maximum sequence length of a trainer, in tokens. Longer sequences are cut and marked as truncated."""
        self.max_seq_len = max_seq_len

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        """Set whether the rubric runs."""
        self.score_rollouts = score_rollouts

    def _keep_open(self) -> None:
        """Register this environment for teardown, which runs at the end of the process at the latest."""
        global _closes_at_exit
        _open.add(self)
        if not _closes_at_exit:
            _closes_at_exit = True
            atexit.register(_close_all)

    async def _teardown(self) -> None:
        for handler in self._teardown_handlers:
            await call_hook(handler)
        await self.rubric.teardown()

    async def aclose(self) -> None:
        """Run the `@vf.teardown` handlers, once."""
        if self in _open:
            _open.discard(self)
            await self._teardown()

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


_open: weakref.WeakSet[Environment] = weakref.WeakSet()
"""Environments with a pending teardown."""
_closes_at_exit = False


def _close_all() -> None:
    async def close() -> None:
        for environment in list(_open):
            try:
                await environment.aclose()
            except Exception:
                environment.logger.exception("Closing %s failed", type(environment).__name__)

    if any(environment._teardown_handlers for environment in _open):
        asyncio.run(close())


def _parsers_differ(parser: Parser, rubric: Rubric) -> bool:
    rubrics = getattr(rubric, "rubrics", [rubric])
    return all(
        type(one.parser) is not type(parser)
        or (one.parser is not parser and type(parser) is not Parser)
        for one in rubrics
    )


__all__ = ["Environment", "RolloutOutput", "UnknownArgumentWarning", "resolve_client", "signal"]

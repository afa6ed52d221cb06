"""`MultiTurnEnv`: the loop of a rollout. The model and the environment reply in turn until a stop condition holds.

Read `rollout` first. It makes the state, plays the turns (`_play`: set up, then `_turn` until `_is_completed`) and
cleans up. A turn asks for the prompt, calls the model and appends one step to the trajectory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.decorators import cleanup
from verifiers.envs import stops
from verifiers.envs.environment import Environment
from verifiers.envs.hooks import call_hook, call_rollout_hook
from verifiers.envs.play import clean_up
from verifiers.envs.preflight import check_answer, warn_once
from verifiers.envs.time_limits import ends_in_time
from verifiers.errors import EnvironmentCodeError, OverlongPromptError, note_error
from verifiers.messages import content_text, normalize_messages
from verifiers.rollouts.limits import current_limits
from verifiers.rollouts.scope import shielded
from verifiers.rubrics.tool_rubric import TurnMonitorRubric
from verifiers.state import State, TimeSpan
from verifiers.tokens import StepTokens, graph_of
from verifiers.types import (
    AssistantMessage,
    Messages,
    Response,
    SamplingArgs,
    TrajectoryStep,
    UserMessage,
)
from verifiers.v0.call_forms import called_with_state, reply_of


class MultiTurnEnv(Environment):
    """A rollout of several turns. Authors override `env_response`, often `setup_state`, and mark `@vf.stop` methods.

    `max_turns` is the maximum number of turns, -1 for no limit. `timeout_seconds` is the maximum duration of a rollout.
    """

    def __init__(
        self, max_turns: int = -1, timeout_seconds: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.max_turns = max_turns
        self.timeout_seconds = timeout_seconds
        self.max_total_completion_tokens = -1
        self.add_rubric(TurnMonitorRubric())

    def set_max_total_completion_tokens(self, max_total_completion_tokens: int) -> None:
        """Set the maximum number of tokens that the model may write per rollout; -1 for no limit."""
        self.max_total_completion_tokens = max_total_completion_tokens

    # --------------------------------------------------------------------------------- what authors override

    @abstractmethod
    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages | str:
        """Return the environment's reply to the model: messages, or text for one user message.

        `messages` is the conversation so far. Set `state["final_env_response"]` to end the rollout with that reply.
        """

    async def setup_state(self, state: State) -> State | None:
        """Prepare the state before the first turn."""
        return state

    async def get_prompt_messages(self, state: State) -> Messages:
        """Return the prompt of this turn: first the prompt of the row, later the conversation with the environment's
        reply.
        """
        last = self._last_step(state)
        if last is None:
            return state["prompt"]
        conversation = [*last["prompt"], *last["completion"]]
        reply = reply_of(await call_hook(self.env_response, conversation, state), state)
        if reply is None and state.get("final_env_response") is None:
            raise EnvironmentCodeError(
                f"{type(self).__name__}.env_response returned None. Return text or a list of messages; [] adds no "
                "message. Is a `return` missing?"
            )
        return conversation + _as_messages(reply, self.message_type)

    async def render_completion(self, state: State) -> None:
        """Set `state["completion"]`: all messages after the prompt."""
        last = self._last_step(state)
        if last is None:
            state["completion"] = []
            return
        completion = [*last["prompt"][len(state["prompt"]) :], *last["completion"]]
        if (final := state.get("final_env_response")) is not None:
            completion += _as_messages(final, "completion")
        state["completion"] = completion

    def _last_step(self, state: State) -> TrajectoryStep | None:
        """Return the last step of the rollout's own conversation."""
        trajectory = state["trajectory"]
        return trajectory[-1] if trajectory else None

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Append a step to the trajectory."""
        state["trajectory"].append(trajectory_step)

    async def add_model_response(
        self, state: State, prompt_messages: Messages, response: Response
    ) -> None:
        """Append a model response to the trajectory as a step."""
        tokens = step_tokens(response, self.max_seq_len, state["trajectory"])
        is_truncated = bool(response.message.is_truncated)
        if tokens is not None and tokens["is_truncated"]:
            is_truncated = True
        step: TrajectoryStep = {
            "prompt": prompt_messages,
            "completion": completion_messages(response),
            "response": response,
            "tokens": tokens,  # type: ignore[typeddict-item]  # a view that reads as the TypedDict
            "reward": None,
            "advantage": None,
            "is_truncated": is_truncated,
            "trajectory_id": state["trajectory_id"],
            "extras": {},
        }
        if is_truncated:
            state["is_truncated"] = True
        await self.add_trajectory_step(state, step)

    # ---------------------------------------------------------------------------------------- stop conditions

    @stops.condition(priority=100, general=True)
    def has_error(self, state: State) -> bool:
        """The rollout has an error."""
        return state.error is not None

    @stops.condition(general=True)
    def prompt_too_long(self, state: State) -> bool:
        """The conversation exceeds the model's context length."""
        return bool(dict.get(state, "prompt_too_long"))

    @stops.condition(general=True)
    def max_turns_reached(self, state: State) -> bool:
        """The model has responded `max_turns` times."""
        return self.max_turns > 0 and len(state.trajectory) >= self.max_turns

    @stops.condition(general=True)
    def max_total_completion_tokens_reached(self, state: State) -> bool:
        """The model has written the maximum number of tokens."""
        limit = self.max_total_completion_tokens
        if limit <= 0:
            return False
        return (state.usage_tracker or state.usage)["output_tokens"] >= limit

    @stops.condition(general=True)
    def max_total_tokens_reached(self, state: State) -> bool:
        """The rollout has used the maximum number of tokens of this run."""
        return current_limits().tokens_reached(state)

    @stops.condition(general=True)
    def max_cost_reached(self, state: State) -> bool:
        """The rollout has reached the cost limit of this run."""
        return current_limits().cost_reached(state)

    @stops.condition(general=True)
    def has_final_env_response(self, state: State) -> bool:
        """The environment has set its final response."""
        return state.final_env_response is not None

    @cleanup(priority=1000)
    async def render_state(self, state: State) -> None:
        """Set the completion before other handlers and reward functions read it."""
        if state.get("completion") is None:
            await call_hook(self.render_completion, state)

    def mark_timed_out(self, state: State) -> None:
        """Mark a rollout that its time limit ended."""
        state.update(timed_out=True, is_completed=True, stop_condition="timeout_reached")

    # ------------------------------------------------------------------------------------------------ the loop

    async def rollout(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Play one rollout. Failures are in the state's `error`; only cancellation is raised."""
        warn_once(self)
        state = await self.init_state(input, client, model, sampling_args)
        try:
            limit_s = self._time_limit_s()
            if limit_s is None:
                await self._play(state)
            else:
                await self._play_within(state, limit_s)
        except asyncio.CancelledError:
            state.is_completed = True
            state.stop_condition = "cancelled"
            await self._clean_up(state)
            raise
        await self._clean_up(state)
        return state

    def _time_limit_s(self) -> float | None:
        limits = [
            limit
            for limit in (self.timeout_seconds, current_limits().rollout_timeout_s)
            if limit is not None
        ]
        return min(limits) if limits else None

    async def _play_within(self, state: State, limit_s: float) -> None:
        if not await ends_in_time(self._play(state), limit_s, str(state.get("example_id"))):
            self.mark_timed_out(state)
            self._end_generation(state)

    async def _play(self, state: State) -> None:
        timing = state.timing
        timing.generation.start = timing.setup.start = time.time()
        try:
            state = await self._set_up(state)
            timing.setup.end = time.time()
            while not await self._is_completed(state):
                await self._turn(state)
        # SystemExit too: an environment may execute a model's code, which may call `exit()`.
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an exception of a rollout becomes data
            note_error(state, error, self, replace=True)
        self._end_generation(state)

    async def _set_up(self, state: State) -> State:
        for handler in self._setup_handlers:
            await call_rollout_hook(handler, self, state)
        own = await call_hook(self.setup_state, state)
        if own is not None and own is not state:
            # The caller holds this state, so the content of the author's state replaces its content.
            dict.clear(state)
            if isinstance(own, State) and own.input_fields:
                state.input_fields, state.hidden_fields = own.input_fields, own.hidden_fields
            state.update(own)
        if dict.get(state, "answer") is None:
            check_answer(self, state)
        return state

    async def _is_completed(self, state: State) -> bool:
        if type(self).is_completed is Environment.is_completed:
            return await self.is_completed(state)
        done = bool(await called_with_state(self.is_completed, state))
        if done and not state.is_completed:
            state.is_completed = True
            state.stop_condition = state.stop_condition or "is_completed"
        return done or await Environment.is_completed(self, state)

    async def _turn(self, state: State) -> None:
        timing = state.timing
        start = time.time()
        prompt = await call_hook(self.get_prompt_messages, state)
        called = time.time()
        if state.trajectory:
            timing.env.spans.append(TimeSpan(start, called))
        if state.final_env_response is not None:
            return
        try:
            response = await call_hook(self.get_model_response, state, prompt)
        except OverlongPromptError as error:
            self._note_overlong_prompt(state, prompt, error)
            return
        finally:
            timing.model.spans.append(TimeSpan(called, time.time()))
        await self.add_model_response(state, prompt, response)

    def _note_overlong_prompt(
        self, state: State, prompt: Messages, error: OverlongPromptError
    ) -> None:
        state["prompt_too_long"] = True
        state.is_truncated = True
        texts = (
            [prompt]
            if isinstance(prompt, str)
            else [content_text(m["content"]) for m in prompt if m.get("content")]
        )
        state.overlong_prompt = (
            f"The prompt of turn {len(state.trajectory) + 1} ({len(prompt)} message{'s' if len(prompt) > 1 else ''}, "
            f"{sum(map(len, texts)):,} characters) does not fit the model's context: {error}"
        )
        level = logging.DEBUG if state.trajectory else logging.WARNING
        self.logger.log(
            level,
            "Example %s ended with prompt_too_long. %s",
            state.get("example_id"),
            state.overlong_prompt,
        )

    def _end_generation(self, state: State) -> None:
        state.timing.generation.end = time.time()

    async def _clean_up(self, state: State) -> None:
        """Run the cleanup handlers and leave the scope. A cancellation in the meantime does not interrupt them."""
        try:
            if len(self._cleanup_handlers) > 1 or dict.__contains__(state, "scope"):
                await shielded(lambda: clean_up(self, state))
            else:
                await clean_up(self, state)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a resource that cannot be closed is this rollout's failure
            note_error(state, error, self)


def _as_messages(reply: Any, message_type: str) -> Messages:
    if reply is None:  # the rollout already has its final response
        return []
    if isinstance(reply, str) and message_type == "chat":
        return [UserMessage.of({"role": "user", "content": reply})]
    return normalize_messages(reply, field_name="env_response")


_KEPT = ("content", "reasoning_content", "thinking_blocks", "tool_calls")


def completion_messages(response: Response) -> Messages:
    """Return the response as one message, without the fields that describe the response."""
    message = response["message"]
    fields: dict[str, Any] = {"role": "assistant"}
    for name in _KEPT:
        value = message.get(name)
        if value is not None and value != []:
            fields[name] = value
    extra = [name for name in message if name not in message.model_fields]
    for name in extra:
        fields[name] = message[name]
    return [AssistantMessage.of(fields)]


def step_tokens(
    response: Response,
    max_seq_len: int | None = None,
    trajectory: Sequence[TrajectoryStep] = (),
) -> StepTokens | None:
    """Return the token ids of a step, cut to `max_seq_len`; None if the endpoint returned none.

    The ids are added to the token graph of `trajectory`, the earlier steps, so that each token is stored once, and the
    response then reads them from the graph. A prompt that is too long alone leaves no completion and is marked
    `overlong_prompt`. Raises TokensInvalid if ids, masks and log-probabilities differ in length.
    """
    message = response["message"]
    tokens = message.get("tokens")
    if tokens is None:
        return None
    stored = graph_of(trajectory).commit(tokens, max_length=max_seq_len)
    if not stored["is_truncated"]:
        message["tokens"] = stored
    return stored


class SingleTurnEnv(MultiTurnEnv):
    """A rollout of one turn."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"max_turns": 1, **kwargs})

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Raise NotImplementedError: the rollout ends after the first response."""
        raise NotImplementedError("SingleTurnEnv has no second turn")

    async def render_completion(self, state: State) -> None:
        """Set the completion to the one response."""
        trajectory = state["trajectory"]
        state["completion"] = trajectory[-1]["completion"] if trajectory else []

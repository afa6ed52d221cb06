"""The conversation of the root model in `RLMEnv`: scaffold, transcript, summaries of old turns, and its ends."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from verifiers.decorators import stop
from verifiers.envs import stops
from verifiers.envs.hooks import call_hook
from verifiers.envs.rlm.metrics import count_summary, prepare_counts, update_rlm_metrics_from_step
from verifiers.envs.rlm.sub_calls import SubCallEnv
from verifiers.messages import content_text
from verifiers.state import State, extract_usage_tokens
from verifiers.types import AssistantMessage, Messages, TrajectoryStep


class ConversationEnv(SubCallEnv):
    """The part of `RLMEnv` that builds the prompts of the root model.

    Steps of sub-LLMs may stand in the trajectory; only those with the `trajectory_id` of the state belong to this
    conversation. `_keep_from_assistant_index` in the state is the number of turns that summaries have replaced.
    """

    context_warning_threshold: float
    enable_summarization: bool
    min_turns_in_context: int
    max_turns_in_context: int | None
    root_max_completion_tokens: int | None

    # --------------------------------------------------------------------------------------------- own steps

    def _last_main_trajectory_step(self, state: Mapping[str, Any]) -> TrajectoryStep | None:
        """Return the last step of the root model."""
        own = state.get("trajectory_id")
        for step in reversed(state.get("trajectory") or []):
            if step.get("trajectory_id") == own:
                return step
        return None

    def _main_turn_count(self, state: Mapping[str, Any]) -> int:
        """Return the number of steps of the root model."""
        own = state.get("trajectory_id")
        return sum(step.get("trajectory_id") == own for step in state.get("trajectory") or [])

    def _last_step(self, state: State) -> TrajectoryStep | None:
        return self._last_main_trajectory_step(state)

    async def add_trajectory_step(self, state: State, trajectory_step: TrajectoryStep) -> None:
        """Append a step of the root model or of a sub-LLM, and count it."""
        update_rlm_metrics_from_step(state, trajectory_step)
        state["trajectory"].append(trajectory_step)

    # ----------------------------------------------------------------------------------------------- prompts

    async def get_prompt_messages(self, state: State) -> Messages:
        """Return the prompt of this turn: at first the prompt of the row with the scaffold, later the conversation
        without the turns that summaries have replaced.
        """
        if self._last_main_trajectory_step(state) is None:
            self._add_scaffold(state)
            return state["prompt"]
        messages = await super().get_prompt_messages(state)
        return self._without_dropped_turns(messages, state)

    def _add_scaffold(self, state: MutableMapping[str, Any]) -> None:
        if state.get("raw_prompt") is not None:
            return
        state["raw_prompt"] = state["prompt"]
        prompt = [message.copy() for message in state["prompt"]]
        scaffold = state.get("rlm_system_prompt") or self.prompt_builder.build_system_prompt()
        self.prompt_builder.inject_scaffolding_into_messages(prompt, scaffold)
        state["prompt"] = prompt

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return the results of the tool calls. They are the final response if the rollout ends with them."""
        reply = await super().env_response(messages, state, **kwargs)
        if "final_answer" not in state:
            is_full = self._is_max_turns_in_context_reached(state)
            if is_full:
                state["max_turns_in_context_stopped"] = True
            if is_full or self._is_root_budget_exhausted(state):
                await self._ensure_final_answer(state)
        if "final_answer" in state:
            state["final_env_response"] = reply
        state["_last_reply"] = reply
        return reply

    async def _ensure_final_answer(self, state: State) -> None:
        """Set `final_answer` to the content that the code has stored so far, unless it is set."""
        raise NotImplementedError

    def _is_root_budget_exhausted(self, state: Mapping[str, Any]) -> bool:
        limit = self.root_max_completion_tokens
        return limit is not None and state.get("root_llm_completion_tokens", 0) >= limit

    def _is_max_turns_in_context_reached(self, state: Mapping[str, Any]) -> bool:
        limit = self.max_turns_in_context
        return limit is not None and self._visible_turns(state) >= limit

    def _maybe_add_context_warning(
        self, output: str, state: MutableMapping[str, Any], *, ready_instruction: str
    ) -> str:
        """Append a warning to one output when the last prompt has nearly filled the context."""
        last = self._last_main_trajectory_step(state)
        if not self.max_seq_len or last is None or state.get("context_warning_sent"):
            return output
        used = extract_usage_tokens(last.get("response"))[0]
        if used < self.context_warning_threshold * self.max_seq_len:
            return output
        state["context_warning_sent"] = True
        return (
            f"{output}\n\n[CONTEXT LIMIT WARNING] {used} of {self.max_seq_len} tokens are used "
            f"({used / self.max_seq_len:.0%}). Finish your answer soon: {ready_instruction}."
        )

    # --------------------------------------------------------------------------------------------- transcript

    def _build_message_history(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the whole conversation so far, dropped turns included, as plain dicts."""
        last = self._last_main_trajectory_step(state)
        messages = [] if last is None else self._whole(state, last)
        return [{k: v for k, v in message.items() if v is not None} for message in messages]

    def _whole(self, state: Mapping[str, Any], last: Mapping[str, Any]) -> list[Any]:
        """Return the conversation up to the last step, with dropped turns where they were."""
        begin = len(state.get("prompt") or [])
        visible = [*last["prompt"], *last["completion"]]
        return [*visible[:begin], *state.get("_dropped_messages", ()), *visible[begin:]]

    async def render_completion(self, state: State) -> None:
        """Set `state["completion"]`: all messages of the root model's conversation after the prompt."""
        await super().render_completion(state)
        if dropped := state.get("_dropped_messages"):
            state["completion"] = [*dropped, *state["completion"]]

    # ---------------------------------------------------------------------------------------------- summaries

    def _visible_turns(self, state: Mapping[str, Any]) -> int:
        """Return the number of turns that the next prompt will show, this turn included."""
        return self._main_turn_count(state) - state.get("_keep_from_assistant_index", 0)

    async def summarize_turns(self, n_turns: int, summary: str, state: Any) -> str:
        """Drop the oldest `n_turns` turns from the context and keep a summary of them.

        Summaries add up. They stand in a <SUMMARY> block at the head of the first remaining response.

        Args:
            n_turns: How many of the oldest visible turns to drop. -1 drops as many as possible.
            summary: Summary of what the dropped turns contain.
        """
        prepare_counts(state)
        visible = self._visible_turns(state)
        most = max(0, visible - self.min_turns_in_context)
        wanted = most if n_turns == -1 else n_turns
        if wanted <= 0 or wanted > most:
            state["summarize_rejected_count"] += 1
            return (
                f"No turns were dropped: n_turns={n_turns}. {visible} turns are visible, at least "
                f"{self.min_turns_in_context} of them stay, so at most {most} can be dropped now."
            )
        first = state.get("_keep_from_assistant_index", 0)
        lines = [state.get("_summary_text", ""), f"[Turns {first + 1}-{first + wanted}] {summary}"]
        dropped_chars = self._compute_dropped_chars(state, wanted)
        state["_summary_text"] = "\n".join(filter(None, lines))
        state["_keep_from_assistant_index"] = first + wanted
        state["_turns_to_drop"] = state.get("_turns_to_drop", 0) + wanted
        count_summary(
            state, dropped=wanted, dropped_chars=dropped_chars, remaining=visible - wanted
        )
        return state["_summary_text"]

    def _compute_dropped_chars(self, state: Mapping[str, Any], n_turns: int) -> int:
        """Return the length of the text in the oldest visible turns that are not marked for dropping yet."""
        last = self._last_main_trajectory_step(state)
        if last is None:
            return 0
        body = [*last["prompt"], *last["completion"]][len(state.get("prompt") or []) :]
        marked = state.get("_turns_to_drop", 0)
        turns = body[_start_of_turn(body, marked) : _start_of_turn(body, marked + n_turns)]
        return sum(len(content_text(message.get("content") or "")) for message in turns)

    def _without_dropped_turns(self, messages: Messages, state: State) -> Messages:
        """Return the messages without the turns that summaries of this turn have replaced."""
        count = state.pop("_turns_to_drop", 0)
        if not count:
            return messages
        begin = len(state["prompt"])
        head, body = messages[:begin], messages[begin:]
        cut = _start_of_turn(body, count)
        dropped, kept = body[:cut], body[cut:]
        if (original := state.pop("_summarized_message", None)) is not None and dropped:
            dropped = [original, *dropped[1:]]
        state["_dropped_messages"] = [*state.get("_dropped_messages", ()), *dropped]
        if kept:
            state["_summarized_message"] = kept[0]
            kept = [with_summary(kept[0], state["_summary_text"]), *kept[1:]]
        return [*head, *kept]

    # ------------------------------------------------------------------------------------------------- ends

    @stops.condition()
    def answer_ready(self, state: State) -> bool:
        """The code has set the final answer."""
        return "final_answer" in state

    @stop
    async def prompt_too_long(self, state: State) -> bool:
        """The conversation exceeds the model's context length: take the answer that there is."""
        if not state.get("prompt_too_long"):
            return False
        await call_hook(self._ensure_final_answer, state)
        if (reply := state.get("_last_reply")) is not None:
            state["final_env_response"] = (
                reply  # the model did not see these results, but they took place
            )
        return True

    @stops.condition(general=True)
    def max_turns_reached(self, state: State) -> bool:
        """The root model has responded `max_turns` times."""
        return self.max_turns > 0 and self._main_turn_count(state) >= self.max_turns

    @stops.condition(general=True)
    def max_total_tokens_reached(self, state: State) -> bool:
        """The rollout has used the maximum number of tokens of this run, sub-LLMs included."""
        return self.exceeds_limits(state)[0]

    @stops.condition(general=True)
    def max_cost_reached(self, state: State) -> bool:
        """The rollout has reached the cost limit of this run, sub-LLMs included."""
        return self.exceeds_limits(state)[1]


def _start_of_turn(body: Messages, number: int) -> int:
    """Return the index at which the turn with this number begins; the end if there is none."""
    starts = [at for at, message in enumerate(body) if message.get("role") == "assistant"]
    return starts[number] if number < len(starts) else len(body)


def with_summary(message: Any, summary: str) -> AssistantMessage:
    """Return a copy of a response with the summary at the head of its text."""
    text = content_text(message.get("content") or "")
    changed = dict(message)
    changed["content"] = f"<SUMMARY>\n{summary}\n</SUMMARY>\n\n{text}"
    return AssistantMessage.of(changed)


__all__ = ["ConversationEnv", "with_summary"]

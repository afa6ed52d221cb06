"""The calls that code in the REPL makes: tools that run on the host, and `llm_batch`, which asks fresh models.

code ── POST /rlm/tools ─► answer_tool_request ─► a root tool
                                              └─► _root_llm_batch ─► _run_sub_llm_request ─► _run_sub_llm
code ── POST /chat/completions ─► answer_chat_request ─────────────────────┘     (tool loop) ─► get_model_response
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Any, TypedDict

from verifiers.envs.hooks import call_hook
from verifiers.envs.multiturn_env import completion_messages, step_tokens
from verifiers.envs.rlm.metrics import (
    BATCH,
    count_request,
    count_root_tool,
    prepare_counts,
    update_rlm_metrics_from_step,
)
from verifiers.envs.rlm.prompts import LAST_REQUEST, RLMPromptBuilder
from verifiers.envs.rlm.session import SubLLMEmptyModelResponseError
from verifiers.envs.tool_env import StatefulToolEnv
from verifiers.errors import ConfigError, EmptyModelResponseError, ToolParseError
from verifiers.messages import content_text, normalize_messages
from verifiers.parsers.answers import extract_boxed_answer
from verifiers.rollouts.limits import current_limits
from verifiers.state import State, StateUsageTracker, extract_usage_tokens
from verifiers.tools.functions import (
    convert_func_to_tool_def,
    parsed_arguments,
    tool_message,
    unknown_tool,
)
from verifiers.types import Messages, Response, Tool, ToolMessage, TrajectoryStep, UserMessage


class SubLLMTurn(TypedDict):
    """One model call of a sub-LLM."""

    prompt_messages: Messages
    response: Response
    tool_call_count: int


class SubLLMResult(TypedDict):
    """The outcome of one sub-LLM."""

    final_content: str
    turns: list[SubLLMTurn]
    total_prompt_tokens: int
    total_completion_tokens: int
    tool_call_count: int
    num_turns: int
    max_turns_reached: bool


class SubCallEnv(StatefulToolEnv):
    """The part of `RLMEnv` that answers the calls of code. `active_rollouts` maps rollout id → context of the rollout:
    `state`, `client`, `model`, `sub_model`, and the tasks that answer calls now.
    """

    enable_sub_llms: bool
    sub_llm_max_turns: int
    sub_llm_timeout: float
    sub_max_completion_tokens: int | None
    sub_model: str | None
    max_sub_llm_parallelism: int
    include_sub_llm_in_trajectory: bool
    prompt_builder: RLMPromptBuilder

    def _take_tools(
        self,
        root_tools: Sequence[Callable[..., Any]] | None,
        sub_tools: Sequence[Callable[..., Any]] | None,
    ) -> None:
        """Set the attributes of the tools for code and of the tools for sub-LLMs."""
        self.active_rollouts: dict[str, dict[str, Any]] = {}
        self._root_tool_context_var: contextvars.ContextVar[dict[str, Any] | None] = (
            contextvars.ContextVar("rlm_root_tool_context", default=None)
        )
        fixed = self._build_fixed_root_tools() if self.enable_sub_llms else []
        self.repl_tools = without_repetitions(root_tools or (), "root_tools")
        if any(name_of(tool) in map(name_of, fixed) for tool in self.repl_tools):
            raise ConfigError(
                f"Tool {BATCH!r} is reserved and cannot be overridden. Rename the tool, or pass "
                "enable_sub_llms=False."
            )
        self.root_tools = [*fixed, *self.repl_tools]
        self.root_tool_map = {name_of(tool): tool for tool in self.root_tools}
        self.root_tool_names = [*self.root_tool_map]
        self.root_tool_defs: list[Tool] = list(map(convert_func_to_tool_def, self.root_tools))
        self.sub_tools = without_repetitions(sub_tools or (), "sub_tools")
        self.sub_tool_map = {name_of(tool): tool for tool in self.sub_tools}
        self.sub_tool_names = [*self.sub_tool_map]
        self.sub_tool_defs: list[Tool] = list(map(convert_func_to_tool_def, self.sub_tools))

    def _build_fixed_root_tools(self) -> list[Callable[..., Any]]:
        async def llm_batch(prompts: list[str]) -> list[str]:
            """Give each prompt to a fresh copy of you, all at the same time. Return the answers in the same order.

            A copy sees its prompt only.

            Args:
                prompts: one text per copy
            """
            context = self._root_tool_context_var.get()
            assert context is not None, "llm_batch runs only inside answer_tool_request"
            return await self._root_llm_batch(context, prompts)

        return [llm_batch]

    def _new_context(self, state: MutableMapping[str, Any]) -> dict[str, Any]:
        """Return the context of a rollout whose code may call from now on."""
        return {
            "state": state,
            "client": state.get("client"),
            "model": state.get("model"),
            "sub_model": self.sub_model or state.get("model"),
            "turns": asyncio.Semaphore(self.max_sub_llm_parallelism),
            "variables": contextvars.copy_context(),
            "tasks": set(),
            "stop_error": None,
        }

    # ------------------------------------------------------------------------------------------- from the sandbox

    async def _in_rollout(
        self, rollout_id: str, work: Callable[..., Coroutine[Any, Any, Any]], body: Any
    ) -> tuple[int, dict[str, Any]]:
        """Answer a request with the context variables of its rollout, and end the work with the rollout."""
        context = self.active_rollouts.get(rollout_id)
        if context is None:
            return 404, {"error": "Rollout not found"}
        if not isinstance(body, Mapping):
            return 400, {"error": "The body must be a JSON object"}
        loop = asyncio.get_running_loop()
        task = loop.create_task(work(context, body), context=context["variables"].copy())
        context["tasks"].add(task)
        task.add_done_callback(context["tasks"].discard)
        try:
            return await task
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise  # the caller has disconnected
            return 500, {"error": "The rollout has ended"}

    async def answer_tool_request(
        self, context: dict[str, Any], body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """Call a root tool: `{"tool_name", "args", "kwargs"}` → `{"result"}`, `{"result_repr"}` or `{"error"}`."""
        name, args, kwargs = body.get("tool_name"), body.get("args", []), body.get("kwargs", {})
        if not isinstance(name, str) or not isinstance(args, list) or not isinstance(kwargs, dict):
            return 400, {"error": "tool_name must be text, args a list, and kwargs an object"}
        function = self.root_tool_map.get(name)
        if function is None:
            return 404, {"error": f"Tool {name!r} not found"}
        self._root_tool_context_var.set(context)
        started_s = time.perf_counter()
        try:
            result = await self._tool_calls.call(
                name,
                functools.partial(function, *args) if args else function,
                kwargs,
                timeout_s=None if name == BATCH else self.tool_timeout_s,
                in_thread=self.tools_in_threads and name != BATCH,
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the code that called the tool receives it
            if isinstance(error, Exception) and self._should_stop_for_error(error):
                context["stop_error"] = context["stop_error"] or error
            return 500, {"error": str(error) or type(error).__name__}
        finally:
            count_root_tool(context["state"], name, time.perf_counter() - started_s)
        try:
            json.dumps(result)
        except (TypeError, ValueError):
            return 200, {"result_repr": repr(result)}
        return 200, {"result": result}

    async def answer_chat_request(
        self, context: dict[str, Any], body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        """Run one sub-LLM: `{"messages", "_batch_id", "_request_id"}` → `{"choices"}` in OpenAI's form."""
        if not self.enable_sub_llms:
            return 404, {"error": "This environment has no sub-LLMs"}
        messages = body.get("messages", [])
        if not isinstance(messages, list):
            return 400, {"error": "messages must be a list"}
        try:
            messages = normalize_messages(messages, field_name="messages")
        except (TypeError, ValueError) as error:
            return 400, {"error": str(error)}
        ids = [str(body.get(key) or "") for key in ("_batch_id", "_request_id")]
        try:
            return 200, await self._request(context, messages, *ids)
        except Exception as error:  # noqa: BLE001 - the code that called receives it
            if self._should_stop_for_error(error):
                context["stop_error"] = context["stop_error"] or error
            return 500, {"error": str(error) or type(error).__name__}

    # ------------------------------------------------------------------------------------------------ sub-LLMs

    async def _root_llm_batch(self, context: dict[str, Any], prompts: list[Any]) -> list[str]:
        """Return one answer per prompt, in the same order. A failure is the text of its answer.

        Raises ValueError if `prompts` is not a list, and errors of a class in `stop_errors`.
        """
        if not isinstance(prompts, list):
            raise ValueError(f"llm_batch expects a list of prompts; got {type(prompts).__name__}.")
        batch_id = uuid.uuid4().hex[:8]
        calls = [
            self._answer_prompt(context, prompt, index, batch_id)
            for index, prompt in enumerate(prompts)
        ]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
        answers: list[str] = []
        for task in tasks:
            answer = task.result()
            if isinstance(answer, Exception):
                raise answer
            answers.append(answer)
        return answers

    async def _answer_prompt(
        self, context: dict[str, Any], prompt: Any, index: int, batch_id: str
    ) -> str | Exception:
        """Return the answer to a prompt, or an error that must end the rollout."""
        if not isinstance(prompt, str):
            kind = type(prompt).__name__
            return f"Error in sub-LLM call: llm_batch prompt at index {index} must be text, not {kind}."
        messages: Messages = [UserMessage.of({"role": "user", "content": prompt})]
        try:
            reply = await self._request(context, messages, batch_id, uuid.uuid4().hex[:8])
            return str(reply["choices"][0]["message"]["content"])
        except Exception as error:  # noqa: BLE001 - the code that called receives it
            if self._should_stop_for_error(error):
                return error
            return f"Error in sub-LLM call: {str(error) or type(error).__name__}"

    async def _request(
        self, context: dict[str, Any], messages: Messages, batch_id: str, request_id: str
    ) -> dict[str, Any]:
        """Run one sub-LLM, unless the budget is used up. At most `max_sub_llm_parallelism` run at once in a rollout."""
        state = context["state"]
        async with context["turns"]:
            if self._is_sub_budget_exhausted(state):
                return _completion(self._sub_llm_budget_exhausted_message(state))
            return await self._run_sub_llm_request(
                state_ref=state,
                client=context["client"],
                sub_model=context["sub_model"],
                messages=messages,
                batch_id=batch_id,
                request_id=request_id,
                parent_turn=state.get("root_llm_turns", 0),
            )

    async def _run_sub_llm_request(
        self,
        *,
        state_ref: State,
        client: Any,
        sub_model: str,
        messages: Messages,
        batch_id: str,
        request_id: str,
        parent_turn: int,
    ) -> dict[str, Any]:
        """Run one sub-LLM and count it. Return its answer in OpenAI's form."""
        system = {"role": "system", "content": self.prompt_builder.build_sub_llm_system_prompt()}
        prompt = normalize_messages([system, *messages], field_name="messages")
        result = await self._run_sub_llm(state_ref, client, sub_model, prompt)
        count_request(state_ref, max_turns_reached=result["max_turns_reached"])
        for number, turn in enumerate(result["turns"]):
            extras = {
                "is_sub_llm_call": True,
                "parent_turn": parent_turn,
                "batch_id": batch_id,
                "request_id": request_id,
                "sub_turn_index": number,
                "total_sub_turns": result["num_turns"],
                "timestamp": time.time(),
                "tool_call_count": turn["tool_call_count"],
            }
            step = self._sub_step(turn, f"{batch_id}_{request_id}", extras)
            if self.include_sub_llm_in_trajectory:
                await call_hook(self.add_trajectory_step, state_ref, step)
            else:
                update_rlm_metrics_from_step(state_ref, step)
        return _completion(extract_boxed_answer(result["final_content"]))

    def _sub_step(
        self, turn: SubLLMTurn, trajectory_id: str, extras: dict[str, Any]
    ) -> TrajectoryStep:
        response = turn["response"]
        is_kept = self.include_sub_llm_in_trajectory
        tokens = step_tokens(response, self.max_seq_len) if is_kept else None
        return {
            "prompt": turn["prompt_messages"],
            "completion": completion_messages(response),
            "response": response,
            "tokens": tokens,  # type: ignore[typeddict-item]  # a view that reads as the TypedDict
            "reward": None,
            "advantage": None,
            "is_truncated": bool(response.message.is_truncated)
            or bool(tokens and tokens["is_truncated"]),
            "trajectory_id": trajectory_id,
            "extras": extras,
        }

    async def _run_sub_llm(
        self, state: State, client: Any, model: str, messages: Messages
    ) -> SubLLMResult:
        """Play one sub-LLM: one call, or with `sub_tools` a loop of calls that ends in an answer."""
        turns: list[SubLLMTurn] = []
        conversation = list(messages)
        tools = self.sub_tool_defs or None
        for _ in range(self.sub_llm_max_turns if tools else 1):
            response = await self._call_sub_llm_api(state, client, model, conversation, tools)
            if response is None:
                return self._timed_out(turns)
            calls = (response.message.get("tool_calls") or []) if tools else []
            turns.append(_turn(conversation, response, len(calls)))
            if not calls:
                return _result(turns, _text_of(response), is_forced=False)
            conversation = [*conversation, *completion_messages(response)]
            if self._is_sub_budget_exhausted(state, turns):
                text = "Not run: the token budget of all sub-LLMs is used up."
                conversation += [tool_message(call["id"], text) for call in calls]
                break
            conversation += [await self._answer_sub_tool(call) for call in calls]
        last = UserMessage.of({"role": "user", "content": LAST_REQUEST})
        conversation = [*conversation, last]
        response = await self._call_sub_llm_api(state, client, model, conversation, None)
        if response is None:
            return self._timed_out(turns)
        turns.append(_turn(conversation, response, 0))
        return _result(turns, _text_of(response), is_forced=True)

    def _timed_out(self, turns: list[SubLLMTurn]) -> SubLLMResult:
        text = f"Error: The sub-LLM did not answer within {self.sub_llm_timeout:g} seconds."
        return _result(turns, text, is_forced=True)

    async def _call_sub_llm_api(
        self,
        state: State,
        client: Any,
        model: str,
        messages: Messages,
        tools: list[Tool] | None = None,
    ) -> Response | None:
        """Call the model with a fresh state. Return None after `sub_llm_timeout` seconds."""
        fresh = _fresh_state(state, client, model, messages)
        limit = asyncio.timeout(self.sub_llm_timeout)
        try:
            async with limit:
                return await call_hook(
                    self.get_model_response,
                    fresh,
                    messages,
                    client=client,
                    model=model,
                    tool_defs=tools,
                )
        except TimeoutError:
            if not limit.expired():
                raise
            self.logger.warning("A sub-LLM did not answer within %g s.", self.sub_llm_timeout)
            return None
        except EmptyModelResponseError as error:
            raise SubLLMEmptyModelResponseError(str(error)) from error

    async def _answer_sub_tool(self, call: Any) -> ToolMessage:
        try:
            arguments = parsed_arguments(call["name"], call["arguments"])
        except ToolParseError:
            arguments = {}
        return await self._call_sub_tool(call["name"], arguments, call["id"])

    async def _call_sub_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str
    ) -> ToolMessage:
        """Call a tool of a sub-LLM. Its exception is its result, unless the class is in `stop_errors`."""
        try:
            function = self.sub_tool_map.get(tool_name)
            if function is None:
                raise unknown_tool(tool_name, self.sub_tool_map)
            result = await self._tool_calls.call(
                tool_name,
                function,
                tool_args,
                timeout_s=self.tool_timeout_s,
                in_thread=self.tools_in_threads,
            )
        except (Exception, SystemExit) as error:
            if isinstance(error, Exception) and self._should_stop_for_error(error):
                raise
            return tool_message(tool_call_id, f"Error: {str(error) or type(error).__name__}")
        return tool_message(tool_call_id, result)

    # ------------------------------------------------------------------------------------------------- budgets

    def _is_sub_budget_exhausted(
        self, state: Mapping[str, Any], turns: Sequence[SubLLMTurn] = ()
    ) -> bool:
        """Return whether sub-LLMs may write no more tokens. `turns` are not in the counts of the state yet."""
        limit = self.sub_max_completion_tokens
        if limit is None:
            return False
        used = state.get("sub_llm_completion_tokens", 0)
        return used + sum(extract_usage_tokens(turn["response"])[1] for turn in turns) >= limit

    def _sub_llm_budget_exhausted_message(self, state_ref: Mapping[str, Any]) -> str:
        used, limit = state_ref.get("sub_llm_completion_tokens", 0), self.sub_max_completion_tokens
        return (
            f"The llm_batch token budget is used up ({used} of {limit} completion tokens). No further call is "
            "possible. Finish your answer with the information that you have."
        )

    def spent(self, state: State) -> State:
        """Return a state whose `usage` includes the sub-LLMs, for the limits of the run."""
        prepare_counts(state)
        own = state.get("usage_tracker") or state["usage"]
        usage = StateUsageTracker(own["input_tokens"], own["output_tokens"])
        usage.increment(state["sub_llm_prompt_tokens"], state["sub_llm_completion_tokens"])
        total = State()
        total.usage = total.usage_tracker = usage
        return total

    def exceeds_limits(self, state: State) -> tuple[bool, bool]:
        """Return whether the rollout has reached the token limit and the cost limit of the run, sub-LLMs included."""
        limits = current_limits()
        if not limits.are_set:
            return False, False
        total = self.spent(state)
        return limits.tokens_reached(total), limits.cost_reached(total)


def name_of(tool: Any) -> str:
    """Return the name of a tool."""
    return str(getattr(tool, "__name__", type(tool).__name__))


def without_repetitions(
    tools: Sequence[Callable[..., Any]], option: str
) -> list[Callable[..., Any]]:
    """Return the tools, each once. Raises ConfigError, a ValueError, if two different tools have one name."""
    known: dict[str, Callable[..., Any]] = {}
    for tool in tools:
        first = known.setdefault(name_of(tool), tool)
        if first is not tool and first != tool:
            raise ConfigError(
                f"Tool name collision in {option}: {name_of(tool)!r} is defined by both {first!r} and {tool!r}. "
                "Rename or remove one."
            )
    return list(known.values())


def _fresh_state(state: Mapping[str, Any], client: Any, model: str, prompt: Messages) -> State:
    """Return the state of one sub-LLM call: the row of the rollout, and an empty trajectory."""
    row = state.get("input")
    fresh = State.for_row(dict(row) if isinstance(row, Mapping) else {})
    usage = StateUsageTracker()
    fresh.begin(
        {
            "prompt": prompt,
            "client": client,
            "model": model,
            "sampling_args": state.get("sampling_args"),
            "tool_defs": None,
            "trajectory": [],
            "trajectory_id": uuid.uuid4().hex,
            "error": None,
            "usage": usage,
            "usage_tracker": usage,
        }
    )
    return fresh


def _text_of(response: Response) -> str:
    return content_text(response.message.get("content")) or ""


def _turn(prompt: Messages, response: Response, tool_call_count: int) -> SubLLMTurn:
    return {
        "prompt_messages": list(prompt),
        "response": response,
        "tool_call_count": tool_call_count,
    }


def _result(turns: list[SubLLMTurn], content: str, *, is_forced: bool) -> SubLLMResult:
    counts = [extract_usage_tokens(turn["response"]) for turn in turns]
    return {
        "final_content": content,
        "turns": turns,
        "total_prompt_tokens": sum(prompt for prompt, _ in counts),
        "total_completion_tokens": sum(completion for _, completion in counts),
        "tool_call_count": sum(turn["tool_call_count"] for turn in turns),
        "num_turns": len(turns),
        "max_turns_reached": is_forced,
    }


def _completion(content: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


__all__ = ["SubCallEnv", "SubLLMResult", "SubLLMTurn", "name_of", "without_repetitions"]

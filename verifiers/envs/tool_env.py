"""`ToolEnv`: the model calls Python functions until it responds without a call. `StatefulToolEnv` adds hidden
arguments, which the rollout's state provides.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from verifiers.envs import stops
from verifiers.envs.hooks import call_hook
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.envs.time_limits import ToolCalls
from verifiers.errors import ConfigError, ToolCallError, ToolError, ToolParseError
from verifiers.rubrics.tool_rubric import ToolMonitorRubric
from verifiers.state import State
from verifiers.tools.functions import (
    Toolbox,
    parsed_arguments,
    tool_message,
    unknown_tool,
    untyped_parameters,
)
from verifiers.types import Messages, Tool, ToolCall, ToolMessage

ErrorFormatter = Callable[[Exception], str]


def _plain(error: Exception) -> str:
    return str(error)


class ToolEnv(MultiTurnEnv):
    """Offers functions as tools.

    The model receives an error of a tool through `error_formatter`. An error of a class in `stop_errors` ends the
    rollout instead.
    """

    def __init__(
        self,
        tools: Sequence[Callable[..., Any]] | None = None,
        max_turns: int = 10,
        error_formatter: ErrorFormatter = _plain,
        stop_errors: Sequence[type[Exception]] | None = None,
        *,
        tool_timeout_s: float | None = None,
        tools_in_threads: bool = False,
        **kwargs: Any,
    ) -> None:
        """`tool_timeout_s`: maximum duration of one tool call, in seconds; the model receives an error after that.

        `tools_in_threads`: run plain functions in separate threads, so that they do not block other rollouts.
        """
        if tool_timeout_s is not None and not tool_timeout_s > 0:
            raise ConfigError(f"tool_timeout_s must be positive; got {tool_timeout_s!r}.")
        self.tool_timeout_s = tool_timeout_s
        self.tools_in_threads = tools_in_threads
        self.toolbox = Toolbox()
        self.tools: list[Callable[..., Any]] = []
        self.tool_monitor_rubric = ToolMonitorRubric()
        self.error_formatter = error_formatter
        self.stop_errors: tuple[type[Exception], ...] = tuple(stop_errors or ())
        if callable(tools) or isinstance(tools, str):
            raise ConfigError(
                f"tools must be a list of functions; got {tools!r:.200}. Write tools=[…]."
            )
        super().__init__(max_turns=max_turns, **kwargs)
        self._tool_calls = ToolCalls(self.logger)
        self.add_rubric(self.tool_monitor_rubric)
        for tool in tools or []:
            self.add_tool(tool)

    @property
    def tool_map(self) -> dict[str, Callable[..., Any]]:
        """Name → function of every tool."""
        return self.toolbox.functions

    def add_tool(self, tool: Callable[..., Any]) -> None:
        """Offer one more function to the model."""
        self._offer(tool, ())

    def _offer(self, tool: Callable[..., Any], hidden: Sequence[str]) -> None:
        definition = self.toolbox.add(tool, hidden)
        if untyped := untyped_parameters(tool, hidden):
            self.logger.warning(
                "Tool %r has no type for %s, so the model does not see which values are valid. Annotate the "
                "parameters, for example `%s: int`.",
                definition.name,
                ", ".join(map(repr, untyped)),
                untyped[0],
            )
        self.tools.append(tool)
        self.tool_defs = [d for d in self.tool_defs or [] if d.name != definition.name] + [
            definition
        ]
        self.tool_monitor_rubric.add_tool_metric(definition.name)

    def remove_tool(self, tool: Callable[..., Any]) -> None:
        """Remove a function from the tools of the model."""
        name = self.toolbox.remove(tool)
        self.tools = [known for known in self.tools if getattr(known, "__name__", None) != name]
        self.tool_defs = [
            definition for definition in self.tool_defs or [] if definition.name != name
        ]
        self.tool_monitor_rubric.remove_tool_metric(name)

    def _should_stop_for_error(self, err: Exception) -> bool:
        return isinstance(err, self.stop_errors)

    @stops.condition()
    def no_tools_called(self, state: State) -> bool:
        """The model has responded without calling a tool."""
        last = self._last_step(state)
        if last is None:
            return False
        completion = last["completion"]
        if not completion:
            return True
        message = completion[-1]
        return message.get("role") in ("assistant", "text") and not message.get("tool_calls")

    async def call_tool(
        self, tool_name: str, tool_args: dict[str, Any], tool_call_id: str, **kwargs: Any
    ) -> ToolMessage:
        """Call one tool. Authors may override or wrap this method, and may return any result instead of a message."""
        function = self.tool_map.get(tool_name)
        if function is None:
            raise unknown_tool(tool_name, self.tool_map)
        result = await self._tool_calls.call(
            tool_name,
            function,
            tool_args,
            timeout_s=self.tool_timeout_s,
            in_thread=self.tools_in_threads,
        )
        return tool_message(tool_call_id, result)

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Return the results of the calls in the model's last message, in their order."""
        calls = messages[-1].get("tool_calls") or []
        return [await self._answer(call, messages, state) for call in calls]

    async def _answer(self, tool_call: ToolCall, messages: Messages, state: State) -> ToolMessage:
        name, call_id = tool_call["name"], tool_call["id"]
        try:
            arguments = parsed_arguments(name, tool_call["arguments"])
        except ToolParseError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            if self._should_stop_for_error(cause) or self._should_stop_for_error(error):
                raise
            return tool_message(call_id, self.error_formatter(error))
        try:
            arguments = await self._prepared(name, arguments, messages, state)
            result = await call_hook(self.call_tool, name, arguments, call_id)
        except SystemExit as error:  # a tool may execute a model's code, which may call `exit()`
            exited = ToolCallError(f"Tool {name!r} called sys.exit({error.code!r}).")
            if self._should_stop_for_error(exited):
                raise exited from error
            return tool_message(call_id, self.error_formatter(exited))
        except Exception as error:
            if self._should_stop_for_error(error):
                if isinstance(error, ToolError):
                    raise
                raise ToolCallError(
                    f"Tool {name!r} raised {type(error).__name__}: {error}"
                ) from error
            return tool_message(call_id, self.error_formatter(error))
        if isinstance(result, dict) and result.get("role") == "tool":
            return result if isinstance(result, ToolMessage) else ToolMessage(**result)
        return tool_message(call_id, result)

    async def _prepared(
        self, name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        """Return the arguments with which a tool is called."""
        return arguments


def filter_signature(func: Callable[..., Any], args_to_skip: Sequence[str]) -> Callable[..., Any]:
    """Return a wrapper of the function whose signature and annotations lack `self` and `args_to_skip`.

    The wrapper takes every argument. Without arguments to skip, return the function itself.
    """
    if not args_to_skip:
        return func
    signature = inspect.signature(func)
    hidden = {"self", *args_to_skip}
    kept = [each for each in signature.parameters.values() if each.name not in hidden]

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    wrapper.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # read by inspect
    own = getattr(func, "__annotations__", {})
    wrapper.__annotations__ = {name: value for name, value in own.items() if name not in hidden}
    return wrapper


class StatefulToolEnv(ToolEnv):
    """Tools with arguments that the model does not see.

    Authors override `update_tool_args` and add tools with `add_tool(tool, args_to_skip=[…])`.
    """

    @property
    def skipped_args(self) -> dict[str, list[str]]:
        """Tool name → parameters that the model does not see."""
        return self.toolbox.hidden

    def add_tool(self, tool: Callable[..., Any], args_to_skip: Sequence[str] = ()) -> None:
        """Offer one more function to the model, without the parameters in `args_to_skip`."""
        unknown = set(args_to_skip) - set(inspect.signature(tool).parameters)
        if unknown:
            # v0 accepted this, so it cannot be an error
            self.logger.warning("%s has no parameters %s to skip.", tool, sorted(unknown))
        self._offer(tool, args_to_skip)

    @abstractmethod
    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: Messages,
        state: State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the arguments for a tool: those of the model, and those that only the state has. May be async."""

    async def _prepared(
        self, name: str, arguments: dict[str, Any], messages: Messages, state: State
    ) -> dict[str, Any]:
        return await call_hook(self.update_tool_args, name, arguments, messages, state)


__all__ = ["StatefulToolEnv", "Tool", "ToolEnv", "filter_signature"]

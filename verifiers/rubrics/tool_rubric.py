"""`ToolRubric` of the oldest v0 environments, and the metrics that tool environments add to their rubric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from verifiers.parsers.parser import Parser
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State
from verifiers.types import RewardFunc


def called_tools(completion: Any) -> list[str]:
    """Return the name of the tool of each call in the messages, typed or in OpenAI's format."""
    if not isinstance(completion, list):
        return []
    return [
        call.get("name", (call.get("function") or {}).get("name"))
        for message in completion
        if message.get("role") == "assistant"
        for call in message.get("tool_calls") or []
    ]


def tool_calls_in(completion: Any, tool_name: str | None = None) -> int:
    """Return the number of tool calls in the messages, of one tool if it is named."""
    names = called_tools(completion)
    return len(names) if tool_name is None else names.count(tool_name)


class ToolMonitorRubric(Rubric):
    """Metrics `total_tool_calls` and `<tool>_calls`, with weight 0."""

    def __init__(
        self,
        tools: Sequence[Callable[..., Any] | str] | None = None,
        *,
        tool_names: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """`tool_names` is v0's form: names without functions."""
        super().__init__(**kwargs)
        self.tool_names: list[str] = []
        self.add_metric(self.total_tool_calls)
        for tool in [*(tools or ()), *(tool_names or ())]:
            self.add_tool_metric(tool)

    async def total_tool_calls(self, completion: Any) -> float:
        """Return the number of tool calls."""
        return float(tool_calls_in(completion))

    def add_tool_metric(self, tool: Callable[..., Any] | str) -> None:
        """Count the calls of one more tool."""
        name = tool if isinstance(tool, str) else getattr(tool, "__name__", type(tool).__name__)
        if name in self.tool_names:
            return
        self.tool_names.append(name)

        def calls(completion: Any) -> float:
            return float(tool_calls_in(completion, name))

        calls.__name__ = f"{name}_calls"
        self.add_metric(calls)

    def remove_tool_metric(self, tool: Callable[..., Any] | str) -> None:
        """Stop counting the calls of a tool."""
        name = tool if isinstance(tool, str) else getattr(tool, "__name__", type(tool).__name__)
        if name in self.tool_names:
            self.tool_names.remove(name)
            keep = [f for f in self.funcs if getattr(f, "__name__", "") != f"{name}_calls"]
            self.funcs[:] = keep
            self.weights[:] = [0.0] * len(keep)


class ToolRubric(Rubric):
    """Metrics about tool calls, for environments from before 0.1.9."""

    def __init__(
        self,
        funcs: Sequence[RewardFunc] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
        tools: Sequence[Callable[..., Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(funcs=funcs, weights=weights, parser=parser, **kwargs)
        self.tools = list(tools or [])
        self.tool_names = [tool.__name__ for tool in self.tools]
        self.add_metric(self.total_tool_calls)
        for name in self.tool_names:
            self.add_metric(self.get_tool_call_count_func(name))

    async def total_tool_calls(self, completion: Any) -> float:
        """Return the number of tool calls."""
        return float(tool_calls_in(completion))

    def get_tool_call_count_func(self, tool_name: str) -> Callable[[Any], float]:
        """Return a metric that counts the calls of one tool."""

        def calls(completion: Any) -> float:
            return float(tool_calls_in(completion, tool_name))

        calls.__name__ = f"{tool_name}_calls"
        return calls


class TurnMonitorRubric(Rubric):
    """Metric `num_turns`, with weight 0."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.num_turns)

    def num_turns(self, state: State) -> float:
        """Return the number of responses of the model."""
        return float(len(state.get("trajectory") or []))

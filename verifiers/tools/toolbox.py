"""`Toolbox`: the tools of an environment, their definitions, and one call → one result."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

from verifiers.errors import ConfigError, ToolCallError, ToolParseError
from verifiers.tools.schema import convert_func_to_tool_def, is_valid_tool_content_parts
from verifiers.types import Tool, ToolMessage


class Toolbox:
    """Functions a model can call, by name; some of their parameters may be hidden from the model."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}
        self.definitions: dict[str, Tool] = {}
        self.hidden: dict[str, list[str]] = {}

    def add(self, function: Callable[..., Any], hidden: Collection[str] = ()) -> Tool:
        """Add a tool; one of the same name is replaced."""
        definition = convert_func_to_tool_def(function, hidden)
        self.functions[definition.name] = function
        self.definitions[definition.name] = definition
        if hidden:
            self.hidden[definition.name] = list(hidden)
        return definition

    def remove(self, function: Callable[..., Any] | str) -> str:
        """Remove a tool by itself or by name; its name. Raises ConfigError when there is none."""
        name = (
            function if isinstance(function, str) else getattr(function, "__name__", str(function))
        )
        if name not in self.functions:
            raise ConfigError(
                f"There is no tool {name!r} to remove; there are {[*self.functions]}."
            )
        del self.functions[name], self.definitions[name]
        self.hidden.pop(name, None)
        return name


def parsed_arguments(name: str, text: str) -> dict[str, Any]:
    """The arguments of a tool call; no text means no arguments.

    Raises ToolParseError, with the JSON error as its cause, when the text is not a JSON object.
    """
    if not text or not text.strip():
        return {}
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise ToolParseError(f"The arguments of {name!r} are not valid JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolParseError(
            f"The arguments of {name!r} must be a JSON object; got {type(arguments).__name__}: {text[:200]}"
        )
    return arguments


def unknown_tool(name: str, known: Collection[str]) -> ToolCallError:
    """The error for a tool that does not exist."""
    available = ", ".join(sorted(known)) or "none"
    return ToolCallError(f"There is no tool {name!r}. Available tools: {available}.")


def tool_message(tool_call_id: str, result: Any) -> ToolMessage:
    """The message for a tool's result: content parts as they are, everything else as text."""
    content = result if is_valid_tool_content_parts(result) else str(result)
    return ToolMessage.of({"role": "tool", "tool_call_id": tool_call_id, "content": content})

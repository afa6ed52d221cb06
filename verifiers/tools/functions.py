"""Python functions as tools: their definitions for the model, the toolbox of an environment, arguments and results.

Descriptions come from the docstring (Google, NumPy or reST style), types from the annotations. Every parameter is
listed as required, and no object accepts extra properties, as OpenAI's strict mode requires. v0 sent the same
definitions; other ones would change prompts and therefore scores.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_type_hints

from verifiers.errors import ConfigError, ToolCallError, ToolParseError
from verifiers.types import Tool, ToolMessage

_HEADING = re.compile(
    r"^[ \t]*(args|arguments|parameters|params|returns|raises|yields|attributes|examples?)"
    r"(?=[ \t]*(:[ \t]*$|\n[ \t]*-{3,}[ \t]*$))",
    re.IGNORECASE | re.MULTILINE,
)
"""The heading of a docstring's section, in Google's or NumPy's style and in any case. The parser only accepts `Args:`.
"""

VALID_TOOL_CONTENT_PART_TYPES = frozenset({"text", "image_url"})


def convert_func_to_tool_def(func: Any, hidden: Collection[str] = ()) -> Tool:
    """Return the definition of a function as a tool, without its `hidden` parameters.

    Raises ConfigError if it is not a function, if it takes `**kwargs`, which a schema cannot describe, if a
    parameter cannot be passed by name, or if an annotation cannot be expressed in JSON.
    """
    if isinstance(func, Tool):
        return func
    if not callable(func):
        raise ConfigError(f"A tool must be a function; got {type(func).__name__}: {func!r:.200}")
    name = getattr(func, "__name__", type(func).__name__)
    description, arguments = _documentation(func)
    return Tool(
        name=name,
        description=description,
        parameters=_parameters_schema(func, name, arguments, frozenset(hidden)),
    )


def untyped_parameters(func: Any, hidden: Collection[str] = ()) -> list[str]:
    """Return the names of parameters without a type for the model: not annotated, or with an undefined name."""
    if isinstance(func, Tool):
        return []
    hints = _hints(func)
    return [
        name
        for name in inspect.signature(func).parameters
        if name not in hidden and name != "self" and name not in hints
    ]


def convert_func_to_oai_tool(func: Any) -> dict[str, Any]:
    """The definition in OpenAI's form, as generation (a) of the API returned it."""
    return to_oai_tool(convert_func_to_tool_def(func))


def to_oai_tool(tool: Tool) -> dict[str, Any]:
    """`{"type": "function", "function": {...}}`."""
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def normalize_tool(tool: Any) -> Tool:
    """Return a tool definition from a `Tool`, its dict form, or OpenAI's dict."""
    if isinstance(tool, Tool):
        return tool
    if not isinstance(tool, Mapping):
        tool = tool.model_dump(exclude_none=True)
    source = tool.get("function", tool)
    if not isinstance(source, Mapping):
        source = source.model_dump(exclude_none=True)
    if not source.get("name"):
        raise ConfigError(f"A tool definition needs a 'name': {dict(tool)!r:.200}")
    fields: dict[str, Any] = {
        "name": source["name"],
        "description": source.get("description") or "",
        "parameters": source.get("parameters") or {"type": "object", "properties": {}},
    }
    if source.get("strict") is not None:
        fields["strict"] = source["strict"]
    return Tool(**fields)


def is_valid_tool_content_parts(value: Any) -> bool:
    """Return whether the result of a tool is a list of content parts, which is passed on unchanged."""
    return isinstance(value, list) and all(
        isinstance(part, Mapping) and part.get("type") in VALID_TOOL_CONTENT_PART_TYPES
        for part in value
    )


def _documentation(func: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the descriptions of the function and of its parameters."""
    text = inspect.getdoc(func)
    if not text:
        return "", {}
    from docstring_parser import ParseError, parse

    try:
        parsed = parse(_HEADING.sub(lambda heading: heading[0].title(), text))
    except ParseError:
        return text, {}
    parts = [parsed.short_description, parsed.long_description]
    between = "\n\n" if parsed.blank_after_short_description else "\n"
    description = between.join(part for part in parts if part)
    return description, {p.arg_name: p.description or "" for p in parsed.params}


def _parameters_schema(
    func: Callable[..., Any], name: str, documented: Mapping[str, str], hidden: frozenset[str]
) -> dict[str, object]:
    from pydantic import (
        Field,
        PydanticInvalidForJsonSchema,
        PydanticSchemaGenerationError,
        create_model,
    )
    from pydantic.fields import FieldInfo

    signature = inspect.signature(func)
    hints = _hints(func)
    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.name in hidden or parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            raise ConfigError(
                f"Tool {name!r} takes **{parameter.name}, which a schema cannot describe. Name its parameters."
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"Tool {name!r} takes {parameter.name!r} by position only, but models pass arguments by name. Remove "
                "the `/` from its signature."
            )
        annotation = hints.get(parameter.name, Any)
        default: Any = ... if parameter.default is inspect.Parameter.empty else parameter.default
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            annotation = list[annotation]
        options: dict[str, Any] = {}
        if isinstance(default, FieldInfo):
            options["description"] = default.description
            default = default.default
        described = documented.get(parameter.name) or _annotated_text(annotation)
        if described:
            options["description"] = described
        # The name is in the alias: pydantic refuses or warns of fields such as `schema` or `_x`.
        field = Field(default, alias=parameter.name, **options)
        fields[f"p{len(fields)}"] = (annotation, field)
    try:
        schema = create_model(f"{name}_args", **fields).model_json_schema()
    except (
        PydanticInvalidForJsonSchema,
        PydanticSchemaGenerationError,
        NameError,
        TypeError,
    ) as error:
        reason = str(error).partition("\n")[0].partition(" Set `")[0].rstrip(".")
        raise ConfigError(
            f"Tool {name!r} has a parameter that JSON cannot express: {reason}. Annotate it with str, int, float, "
            "bool, list, dict, a dataclass or a pydantic model, or hide it from the model (StatefulToolEnv.add_tool, "
            "args_to_skip)."
        ) from error
    strict = _strict(schema, schema)
    strict.setdefault("properties", {})
    strict.setdefault("required", [])
    return strict


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(func, include_extras=True)
    except (NameError, TypeError):
        return {}


def _annotated_text(annotation: Any) -> str | None:
    """Return the plain text in `Annotated[int, "text"]`, which pydantic ignores."""
    for extra in getattr(annotation, "__metadata__", ()):
        if isinstance(extra, str):
            return extra
    return None


def _strict(schema: Any, root: dict[str, Any]) -> Any:
    """Return the schema: all properties required, no extra properties or `default: null`, described refs inlined."""
    if isinstance(schema, list):
        return [_strict(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema and len(schema) > 1:
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        own = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**own, **target, **own}
    strict = {
        key: {name: _strict(item, root) for name, item in value.items()}
        if key in ("properties", "$defs")
        else _strict(value, root)
        for key, value in schema.items()
        if not (key == "default" and value is None)
    }
    if strict.get("type") == "object" and "properties" in strict:
        strict["additionalProperties"] = False
        strict["required"] = list(strict["properties"])
    return strict


class Toolbox:
    """The functions that a model can call, by name. Some of their parameters may be hidden from the model."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., Any]] = {}
        self.definitions: dict[str, Tool] = {}
        self.hidden: dict[str, list[str]] = {}

    def add(self, function: Callable[..., Any], hidden: Collection[str] = ()) -> Tool:
        """Add a tool. It replaces a tool of the same name."""
        definition = convert_func_to_tool_def(function, hidden)
        self.functions[definition.name] = function
        self.definitions[definition.name] = definition
        if hidden:
            self.hidden[definition.name] = list(hidden)
        return definition

    def remove(self, function: Callable[..., Any] | str) -> str:
        """Remove a tool, given as function or name. Return its name. Raises ConfigError if it does not exist."""
        name = (
            function if isinstance(function, str) else getattr(function, "__name__", str(function))
        )
        if name not in self.functions:
            raise ConfigError(
                f"There is no tool {name!r} to remove. Available tools: {[*self.functions]}."
            )
        del self.functions[name], self.definitions[name]
        self.hidden.pop(name, None)
        return name


def parsed_arguments(name: str, text: str) -> dict[str, Any]:
    """Return the arguments of a tool call. An empty text means no arguments.

    Raises ToolParseError, with the JSON error as its cause, if the text is not a JSON object.
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


def unknown_tool(name: str, names: Collection[str]) -> ToolCallError:
    """Return the error for a tool that does not exist."""
    available = ", ".join(sorted(names)) or "none"
    return ToolCallError(f"There is no tool {name!r}. Available tools: {available}.")


def tool_message(tool_call_id: str, result: Any) -> ToolMessage:
    """Return the message for a tool's result: content parts unchanged, everything else as text."""
    content = result if is_valid_tool_content_parts(result) else str(result)
    return ToolMessage.of({"role": "tool", "tool_call_id": tool_call_id, "content": content})

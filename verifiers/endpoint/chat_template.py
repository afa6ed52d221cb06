"""Render chat messages as token ids, and parse the tool calls in the model's text.

    <|system|>Tools: add(a, b)<|end|><|system|>text<|end|><|user|>text<|end|><|assistant|>text<|end|><|tool|>text<|end|>

The model's turn begins after `<|assistant|>` and ends with `<|end|>`. A later request that repeats the conversation
therefore begins with exactly the tokens of the earlier prompt and completion. Tools are rendered as names and
parameters only: a model of this size cannot read descriptions, and each character costs a token. `JINJA_TEMPLATE` is
the same template for other software.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from verifiers.endpoint import tokenizer

ROLE_TOKENS = {
    "system": tokenizer.SYSTEM,
    "developer": tokenizer.SYSTEM,
    "user": tokenizer.USER,
    "assistant": tokenizer.ASSISTANT,
    "tool": tokenizer.TOOL,
}

JINJA_TEMPLATE = (
    "{%- if tools %}<|system|>Tools: "
    "{%- for tool in tools %}{{ ' ' if loop.first else '; ' }}{{ tool.function.name }}("
    "{{ ((tool.function.parameters or {}).properties or {}) | list | join(', ') }})"
    "{%- endfor %}<|end|>{% endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'developer' %}<|system|>{% else %}<|{{ message.role }}|>{% endif %}"
    "{%- if message.content is string %}{{ message.content }}"
    "{%- elif message.content %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}"
    "{%- for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments if call.function.arguments is string"
    " else call.function.arguments | tojson }}"
    "}</tool_call>{% endfor %}<|end|>"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif %}"
)

_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_CANONICAL_CALL = re.compile(r'\{"name": "([^"\\]*)", "arguments": (.*)\}', re.DOTALL)


class ParsedTurn(NamedTuple):
    """The model's text, split into content and tool calls."""

    content: str | None
    """The text around the tool calls; None if there are only calls."""
    tool_calls: list[dict[str, str]]
    """One `{"name": ..., "arguments": <JSON text>}` per well-formed call."""


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
) -> list[int]:
    """Return the prompt of a conversation. Call `requests.check_messages` first."""
    ids: list[int] = []
    if tools:
        ids.append(tokenizer.SYSTEM)
        ids += tokenizer.encode("Tools: " + "; ".join(tool_signature(tool) for tool in tools))
        ids.append(tokenizer.END)
    for message in messages:
        ids.append(ROLE_TOKENS[message["role"]])
        ids += tokenizer.encode(message_text(message))
        ids.append(tokenizer.END)
    if continue_final_message and messages:
        ids.pop()
    elif add_generation_prompt:
        ids.append(tokenizer.ASSISTANT)
    return ids


def tool_signature(tool: Mapping[str, Any]) -> str:
    """Return a tool as the model sees it: `name(parameter, parameter)`."""
    function = tool["function"]
    parameters = (function.get("parameters") or {}).get("properties") or {}
    return f"{function['name']}({', '.join(parameters)})"


def message_text(message: Mapping[str, Any]) -> str:
    """Return the content and the tool calls of a message in the model's notation."""
    content = message.get("content")
    if isinstance(content, str):
        text = content
    else:
        text = "".join(part["text"] for part in content or ())
    for call in message.get("tool_calls") or ():
        text += tool_call_text(call["function"]["name"], call["function"]["arguments"])
    return text


def tool_call_text(name: str, arguments: str) -> str:
    """Return a call in the model's notation; `arguments` is JSON text and stays unchanged."""
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def parse_turn(text: str) -> ParsedTurn:
    """Separate the text from its tool calls.

    A call with invalid JSON stays in the text, so that the caller sees it. The text of the arguments is kept as
    written: rendering the call again gives the same tokens.
    """
    if "<tool_call>" not in text:
        return ParsedTurn(text, [])
    calls: list[dict[str, str]] = []
    kept: list[str] = []
    position = 0
    for match in _TOOL_CALL.finditer(text):
        call = _parse_call(match[1])
        if call is None:
            continue
        kept.append(text[position : match.start()])
        position = match.end()
        calls.append(call)
    kept.append(text[position:])
    content = "".join(kept)
    return ParsedTurn(content if content or not calls else None, calls)


def _parse_call(written: str) -> dict[str, str] | None:
    try:
        call = json.loads(written)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    if not isinstance(call.get("arguments"), dict):
        return None
    canonical = _CANONICAL_CALL.fullmatch(written)
    arguments = canonical[2] if canonical else json.dumps(call["arguments"])
    return {"name": call["name"], "arguments": arguments}

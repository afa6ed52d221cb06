"""Tool calls in the text of an answer, for engines that give nothing but tokens."""

from __future__ import annotations

import json
import re
from typing import Any

TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def hermes_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Text and tool calls of an answer in the format of Hermes and Qwen: JSON between `<tool_call>` tags."""
    calls: list[dict[str, Any]] = []
    for found in TOOL_CALL.findall(text):
        try:
            said = json.loads(found)
            function = {"name": said["name"], "arguments": said.get("arguments") or {}}
        except (ValueError, KeyError, TypeError):
            return text, []  # not a call: the environment sees what was said
        calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
    return (TOOL_CALL.sub("", text).strip() if calls else text), calls

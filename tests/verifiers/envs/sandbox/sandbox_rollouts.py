"""Small sandboxes for `SandboxEnv`, and the turns of a model that uses them."""

from typing import Any

import verifiers as vf
from verifiers.testing import call

ROWS = [{"question": f"Question {n}", "answer": str(n)} for n in range(8)]
SMALL = {"memory_gb": 0.125, "disk_size_gb": 0.03, "dataset": ROWS}


def bash(command: str) -> list[vf.ToolCall]:
    return [call("bash", command=command)]


def told(output: Any) -> list[str]:
    return [message["content"] for message in output["completion"] if message["role"] == "tool"]

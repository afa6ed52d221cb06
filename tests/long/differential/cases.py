"""Cases: an environment, the replies of its model, and the options of its evaluation."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Turn = str | dict[str, Any]
"""One reply: a text, or the fields of `Reply` in `endpoint`."""
Script = Sequence[Turn]
"""The replies of one rollout, turn by turn. The last one repeats."""

CASES: dict[str, Case] = {}


@dataclass
class Case:
    """One environment and its evaluation."""

    name: str
    make: Callable[..., Any]
    replies: Mapping[str, Sequence[Script]]
    """Text in the opening messages of a row → the scripts of its rollouts, in turn. "" fits every row."""
    rollouts: int = 1
    columns: list[str] = field(default_factory=list)
    """State columns to save."""
    judge: Mapping[str, str] = field(default_factory=dict)
    """Text in the judge's prompt → the judge's reply. "" fits every prompt."""
    sampling: dict[str, Any] = field(default_factory=dict)
    opening: int = 0
    """Number of assistant messages at the start of each prompt (few-shot examples)."""
    probe: Callable[[Any], Any] | None = None
    """Further calls on the environment; both sides must return equal JSON."""
    evaluate: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `Environment.evaluate`."""


def case(*scripts: Script, rows: Mapping[str, Sequence[Script]] | None = None, **options: Any):
    """Register the decorated function, which returns an environment, under its name."""
    replies = dict(rows or {})
    if scripts:
        replies[""] = scripts

    def register(make: Callable[..., Any]) -> Callable[..., Any]:
        if make.__name__ in CASES:
            raise ValueError(f"two environments have the name {make.__name__}")
        CASES[make.__name__] = Case(make.__name__, make, replies, **options)
        return make

    return register


def call(name: str, arguments: str | None = None, /, **values: Any) -> dict[str, Any]:
    """Return a tool call; `arguments` is the text of the arguments, for example broken JSON."""
    return {
        "name": name,
        "arguments": json.dumps(values) if arguments is None else arguments,
    }


def calls(*tool_calls: dict[str, Any], text: str | None = None) -> dict[str, Any]:
    """Return a reply with tool calls."""
    return {"content": text, "tool_calls": list(tool_calls)}


def all_cases() -> dict[str, Case]:
    """Import every module of `environments`; return all cases by name."""
    from differential import environments

    for module in pkgutil.iter_modules(environments.__path__):
        importlib.import_module(f"{environments.__name__}.{module.name}")
    return CASES

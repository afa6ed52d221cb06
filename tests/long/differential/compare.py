"""The differences between two sets of observations, as lines `path: 0.1.14 → here`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MISSING = "(missing)"
_MEASURED = ("timing",)
"""Keys whose numbers are times: only the shapes are compared."""
OF_THE_RUN = frozenset(
    {"date", "time_ms", "time", "path_to_save", "base_url", "version_info", "trajectory_id"}
)
"""Keys whose values belong to one run or one installation."""


def differences(public: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Yield one line per difference. Positions in lists are `[n]`."""
    if isinstance(public, Mapping) and isinstance(ours, Mapping):
        for key in sorted({*public, *ours}, key=str):
            if key in OF_THE_RUN and key in public and key in ours:
                continue
            inner = f"{path}.{key}" if path else str(key)
            before, now = public.get(key, MISSING), ours.get(key, MISSING)
            if key in _MEASURED:
                before, now = shape(before), shape(now)
            yield from differences(before, now, inner)
    elif not path.endswith(".classes") and _have_one_length(public, ours):
        for index, (before, now) in enumerate(zip(public, ours, strict=True)):
            yield from differences(before, now, f"{path}[{index}]")
    elif path.endswith(".classes") and _is_list(public) and _is_list(ours):
        if public[0] not in ours:  # an exception of ours is also one of the builtin class
            yield f"{path}: {public[0]} → {ours}"
    elif not _are_equal(public, ours):
        yield f"{path}: {_short(public)} → {_short(ours)}"


def _have_one_length(public: Any, ours: Any) -> bool:
    return _is_list(public) and _is_list(ours) and len(public) == len(ours)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _are_equal(public: Any, ours: Any) -> bool:
    if isinstance(public, float) and isinstance(ours, float):
        return abs(public - ours) < 1e-9
    return public == ours and isinstance(public, bool) == isinstance(ours, bool)


def shape(value: Any) -> Any:
    """Return the value with 0 in place of every number, and lists as their first element."""
    if isinstance(value, Mapping):
        return {key: shape(one) for key, one in value.items()}
    if _is_list(value):
        return [shape(one) for one in value[:1]]
    return 0 if isinstance(value, int | float) and not isinstance(value, bool) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}… ({len(text)} characters)"


def in_order(observed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the observations of a case with rollouts in the order of their examples and requests in a fixed order.

    The order in which rollouts of one run end is not part of any contract.
    """
    ordered = dict(observed)
    for name in ("outputs", "lines"):
        if name in ordered:
            ordered[name] = sorted(ordered[name], key=_rollout_key)
    if "requests" in ordered:
        ordered["requests"] = sorted(ordered["requests"], key=_request_key)
    return ordered


def _rollout_key(output: Mapping[str, Any]) -> tuple[int, str]:
    return output["example_id"], str(_texts(output.get("completion")))


def _texts(messages: Any) -> Any:
    if not _is_list(messages):
        return messages
    return [
        (one.get("role"), one.get("content"), len(one.get("tool_calls") or [])) for one in messages
    ]


def _request_key(request: Mapping[str, Any]) -> str:
    return str((_texts(request.get("messages")), request.get("prompt"), request["model"]))

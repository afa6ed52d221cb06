"""`@vf.stop @vf.setup @vf.cleanup @vf.teardown @vf.reward @vf.metric @vf.advantage`: each marks a function, nothing
more.

`hooks_of(cls, kind)` reads the marks through `vars()` along the class hierarchy, so that no property of an author's
class is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Literal, TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., Any])
Stage = Literal["rollout", "group"]
Kind = Literal["stop", "setup", "update", "cleanup", "teardown", "reward", "metric", "advantage"]


def _mark(function: Callable[..., Any] | None, kind: Kind, **options: Any) -> Any:
    def mark(target: Function) -> Function:
        setattr(target, kind, True)
        for name, value in options.items():
            setattr(target, f"{kind}_{name}", value)
        return target

    return mark if function is None else mark(function)


@overload
def stop(func: Function, priority: int = 0) -> Function: ...
@overload
def stop(func: None = None, priority: int = 0) -> Callable[[Function], Function]: ...
def stop(func: Callable[..., Any] | None = None, priority: int = 0) -> Any:
    """Mark a method `(self, state) -> bool` as a stop condition; conditions with higher priority are checked first."""
    return _mark(func, "stop", priority=priority)


@overload
def setup(func: Function, priority: int = 0) -> Function: ...
@overload
def setup(func: None = None, priority: int = 0) -> Callable[[Function], Function]: ...
def setup(func: Callable[..., Any] | None = None, priority: int = 0) -> Any:
    """Mark a method `(self, state)` that runs before the first turn, ahead of `setup_state`."""
    return _mark(func, "setup", priority=priority)


@overload
def update(func: Function, priority: int = 0, stage: Stage = "rollout") -> Function: ...
@overload
def update(
    func: None = None, priority: int = 0, stage: Stage = "rollout"
) -> Callable[[Function], Function]: ...
def update(
    func: Callable[..., Any] | None = None, priority: int = 0, stage: Stage = "rollout"
) -> Any:
    """Mark a method `(self, state)` (or `(self, states)` for a group) that runs before scoring."""
    return _mark(func, "update", priority=priority, stage=stage)


@overload
def cleanup(func: Function, priority: int = 0, stage: Stage = "rollout") -> Function: ...
@overload
def cleanup(
    func: None = None, priority: int = 0, stage: Stage = "rollout"
) -> Callable[[Function], Function]: ...
def cleanup(
    func: Callable[..., Any] | None = None, priority: int = 0, stage: Stage = "rollout"
) -> Any:
    """Mark a method `(self, state)` that runs when a rollout ends, however it ends."""
    return _mark(func, "cleanup", priority=priority, stage=stage)


@overload
def teardown(func: Function, priority: int = 0) -> Function: ...
@overload
def teardown(func: None = None, priority: int = 0) -> Callable[[Function], Function]: ...
def teardown(func: Callable[..., Any] | None = None, priority: int = 0) -> Any:
    """Mark a method `(self)` that runs once, when the environment is closed."""
    return _mark(func, "teardown", priority=priority)


@overload
def reward(
    func: Function, weight: float = 1.0, priority: int = 0, stage: Stage = "rollout"
) -> Function: ...
@overload
def reward(
    func: None = None, weight: float = 1.0, priority: int = 0, stage: Stage = "rollout"
) -> Callable[[Function], Function]: ...
def reward(
    func: Callable[..., Any] | None = None,
    weight: float = 1.0,
    priority: int = 0,
    stage: Stage = "rollout",
) -> Any:
    """Mark a reward function, as a method of an environment or rubric or for `Rubric(funcs=…)`.

    `stage="group"` makes it a group reward function regardless of the names of its arguments: it receives all
    rollouts of one example and returns one number per rollout.
    """
    return _mark(func, "reward", weight=weight, priority=priority, stage=stage)


@overload
def metric(func: Function, priority: int = 0, stage: Stage = "rollout") -> Function: ...
@overload
def metric(
    func: None = None, priority: int = 0, stage: Stage = "rollout"
) -> Callable[[Function], Function]: ...
def metric(
    func: Callable[..., Any] | None = None, priority: int = 0, stage: Stage = "rollout"
) -> Any:
    """Mark a metric: measured and saved like a reward, with weight 0."""
    return _mark(func, "metric", priority=priority, stage=stage)


@overload
def advantage(func: Function, priority: int = 0) -> Function: ...
@overload
def advantage(func: None = None, priority: int = 0) -> Callable[[Function], Function]: ...
def advantage(func: Callable[..., Any] | None = None, priority: int = 0) -> Any:
    """Mark a method `(self, states) -> list[float]` that returns the advantages of a group."""
    return _mark(func, "advantage", priority=priority)


def marks(function: Any, kind: Kind) -> bool:
    """Return whether the function carries the mark."""
    return getattr(function, kind, None) is True


def hooks_of(cls: type, kind: Kind) -> list[str]:
    """Return the names of the methods marked as `kind`: highest priority first, then by name.

    An override replaces the method of its base class. An override without the mark, or by None, removes the hook.
    """
    found: dict[str, int] = {}
    decided: set[str] = set()
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if name in decided:
                continue
            decided.add(name)
            if not isinstance(value, FunctionType | staticmethod | classmethod):
                continue
            function = value if isinstance(value, FunctionType) else value.__func__
            if marks(function, kind):
                found[name] = getattr(function, f"{kind}_priority", 0)
    return sorted(found, key=lambda name: (-found[name], name))


def discover_decorated(obj: Any, attr: Kind) -> list[Callable[..., Any]]:
    """Return the bound methods of `obj` marked as `attr`: highest priority first, then by name."""
    return [getattr(obj, name) for name in hooks_of(type(obj), attr)]

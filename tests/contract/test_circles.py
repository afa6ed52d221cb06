"""Import circles between modules, and class names that two modules share: both lists may only shrink.

An import counts wherever it stands: at the top, in a function, under TYPE_CHECKING. Modules of a circle can only be
understood together.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"verifiers": ROOT, "hub_server": ROOT, "vf_cli": ROOT / "cli"}

CIRCLES: dict[str, str] = {}
"""Modules of a circle → its reason. A circle may become smaller; a circle that is gone must leave this list."""

SHARED_NAMES: dict[str, str] = {
    "Environment": "the hub server's table, and the class of environments",
    "Task": "a task of a taskset, and a rollout of a run that is to be played",
    "SandboxSpec": "the sandbox of a task in v0's terms, and the specification for a back end",
    "Evaluation": "the hub server's table, and the result of `RolloutSource.evaluate`",
}
"""Class name that several modules define → the reason."""


@cache
def modules() -> dict[str, tuple[Path, ast.Module]]:
    """Module name → its path and syntax tree."""
    found = {}
    for package, root in PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            if "templates" not in path.parts:
                name = ".".join(path.relative_to(root).with_suffix("").parts)
                found[name.removesuffix(".__init__")] = (path, ast.parse(path.read_text()))
    return found


def imported(name: str) -> Iterator[str]:
    """Modules of ours that a module imports. A package stands for its `__init__` only."""
    path, tree = modules()[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in modules() else base


@cache
def circles() -> list[frozenset[str]]:
    """Groups of modules of which each imports each other, directly or through others."""
    below = {name: {each for each in imported(name) if each in modules()} for name in modules()}
    reached: dict[str, set[str]] = {}
    for name in below:
        seen: set[str] = set()
        waiting = list(below[name])
        while waiting:
            if (other := waiting.pop()) not in seen:
                seen.add(other)
                waiting += below[other]
        reached[name] = seen
    groups = {
        frozenset(each for each in reached[name] if name in reached[each])
        for name in reached
        if name in reached[name]
    }
    return [group for group in groups if len(group) > 1]


def test_there_are_no_import_circles_but_the_explained_ones() -> None:
    known = [frozenset(names.split()) for names in CIRCLES]
    unknown = [sorted(c) for c in circles() if not any(c <= each for each in known)]
    assert unknown == [], "cut this circle: move what both need into a module below them"


@pytest.mark.parametrize("names", CIRCLES)
def test_an_explained_circle_exists(names: str) -> None:
    assert any(circle <= set(names.split()) for circle in circles()), "gone: remove it from CIRCLES"


def classes() -> dict[str, list[str]]:
    """Public class name → modules that define it."""
    found = defaultdict(list)
    for module, (_, tree) in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return found


def test_two_classes_share_no_name_but_the_explained_ones() -> None:
    shared = {name: where for name, where in classes().items() if len(where) > 1}
    unknown = {name: where for name, where in shared.items() if name not in SHARED_NAMES}
    assert unknown == {}, "give one of them a name that says more"
    assert set(SHARED_NAMES) <= set(shared), "no longer shared: remove it from SHARED_NAMES"

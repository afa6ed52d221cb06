"""Public names that load on first use (PEP 562). This is the only mechanism for lazy names, in one form:

    if TYPE_CHECKING:
        from verifiers.types import Response as Response

    __all__, __getattr__, __dir__ = lazy_names(__name__)

The imports under `TYPE_CHECKING` are the only list of the names: type checkers read it, and `lazy_names` reads it from
the source of the package. A separate module, because every process that imports `verifiers` loads it.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

_IMPORT = re.compile(r"^    from ([\w.]+) import (?:\(\s*)?(\w+) as \2\b", re.MULTILINE)


def modules_of_names(package: str) -> dict[str, str]:
    """Return public name → module that defines it. Raise ImportError if the package has no source."""
    spec = sys.modules[package].__spec__
    source = None if spec is None else spec.loader.get_source(package)  # type: ignore[union-attr]
    if source is None:
        raise ImportError(f"The source of {package} is missing; it lists the public names.")
    return {name: module for module, name in _IMPORT.findall(source)}


def lazy_names(
    package: str,
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` for the package's own namespace."""
    namespace = vars(sys.modules[package])
    modules = modules_of_names(package)

    def __getattr__(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            names = {*modules, *(each for each in namespace if not each.startswith("_"))}
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}.{_suggestion(name, names)}"
            )
        value = namespace[name] = getattr(importlib.import_module(module), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*namespace, *modules})

    return sorted(modules), __getattr__, __dir__


def _suggestion(name: str, names: set[str]) -> str:
    import difflib  # costs a millisecond, and most processes never need it

    close = difflib.get_close_matches(name, sorted(names), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""

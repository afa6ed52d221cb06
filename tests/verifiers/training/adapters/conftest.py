"""Makes helper modules of this folder and of the one above importable by name."""

import sys
import types
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture
def package(monkeypatch):
    """`package("trl.trainer", Name=object)`: a module of that name, with the packages it lies in."""

    def install(name: str, **attributes: object) -> None:
        parts = name.split(".")
        for end in range(1, len(parts)):
            parent = ".".join(parts[:end])
            if parent not in sys.modules or sys.modules[parent] is None:
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)

    return install

"""Public names that load on first use, in a package made for the test."""

import importlib
import sys
from pathlib import Path

import pytest

INIT = '''"""A package."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from lazy_demo.heavy import load as load
    from lazy_demo.heavy import (
        LongName as LongName,
    )

__all__, __getattr__, __dir__ = lazy_names(__name__)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "lazy_demo"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "heavy.py").write_text("def load(): return 1\nclass LongName: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_demo")
    for name in ("lazy_demo", "lazy_demo.heavy"):
        sys.modules.pop(name, None)


def test_a_name_is_loaded_on_first_use_and_kept(package):
    assert "lazy_demo.heavy" not in sys.modules
    assert (package.__all__, package.load()) == (["LongName", "load"], 1)
    assert "lazy_demo.heavy" in sys.modules
    assert vars(package)["load"] is package.load


def test_dir_lists_names_that_are_not_loaded(package):
    assert {"LongName", "load", "__doc__"} <= set(dir(package))


def test_a_typo_is_an_attribute_error_with_the_closest_name(package):
    assert not hasattr(package, "nothing_like_it")
    with pytest.raises(AttributeError, match=r"'lazy_demo' has no attribute 'LongNam'.*'LongName'"):
        _ = package.LongNam
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from lazy_demo import LongNam")

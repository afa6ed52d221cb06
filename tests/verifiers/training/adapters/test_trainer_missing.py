"""What is said when a trainer's package cannot be imported: the module that is really missing, and what to install."""

import sys
from pathlib import Path

import pytest

from verifiers.training.adapters import TrainerMissing, trainer_module

INSTALL = "pip install a_trainer its_dependency"


@pytest.fixture
def package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "a_trainer"
    folder.mkdir()

    def write(source: str) -> Path:
        (folder / "__init__.py").write_text(source)
        return folder

    yield write
    for name in [one for one in sys.modules if one.startswith("a_trainer")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("source", "module", "said"),
    [
        (
            "import its_dependency",
            "a_trainer",
            "a_trainer is installed, but a_trainer imports the module 'its_dependency', which is not installed",
        ),
        ("", "a_trainer.loops", "a_trainer is installed, but this version has no module a_trainer.loops"),
        ("from json import nothing", "a_trainer", "Importing a_trainer failed: cannot import name 'nothing'"),
        ("", "another_trainer", "This adapter needs another_trainer, which is not installed"),
        ("", "a_trainer", "a_trainer has no Loop"),
    ],
)  # fmt: skip
def test_the_error_names_the_module_that_is_missing(package, source, module, said):
    package(source)
    with pytest.raises(TrainerMissing) as caught:
        trainer_module(module, "Loop", install=INSTALL)
    assert said in str(caught.value)
    assert f"`{INSTALL}`" in str(caught.value)

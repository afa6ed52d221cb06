"""The guide's package for both APIs is a taskset of the published 0.4.0; a package of its `vf-init` is named as such.

The interpreter of a virtual environment with `verifiers==0.4.0` can be given in `VERIFIERS_0_4_0_PYTHON`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from differential.interpreters import python_with

import verifiers as vf

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
ROWS = """
def rows(count):
    return [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(count)]


def is_right(reply, answer):
    return float(reply == answer)
"""
LOAD = """
import asyncio
from sums.taskset import SumsConfig, SumsTaskset
from sums import __all__ as names

tasks = list(SumsTaskset(SumsConfig(id="sums", count=3)).load())
print(names, [task.data.answer for task in tasks])
"""


@pytest.fixture(scope="session")
def v1_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with("0.4.0", tmp_path_factory.mktemp("v1") / "venv")


def test_the_package_of_the_guide_is_a_taskset(v1_python: Path) -> None:
    package = Path("sums")
    package.mkdir()
    (package / "rows.py").write_text(ROWS)
    for name in ("__init__", "environment", "taskset"):
        block = PAGE.read_text().partition(f"`sums/{name}.py`")[2]
        (package / f"{name}.py").write_text(block.partition("```text\n")[2].partition("```")[0])
    environ = {**os.environ, "PYTHONPATH": "."}
    done = subprocess.run(
        [v1_python, "-c", LOAD], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['SumsTaskset', 'load_environment'] ['0', '2', '4']"


def test_a_package_that_vf_init_of_v1_makes_is_recognised(v1_python: Path) -> None:
    subprocess.run([v1_python.with_name("vf-init"), "my-task"], check=True, capture_output=True)
    with pytest.raises(vf.Error, match=r"taskset for verifiers 0\.4 or later.*From v1 back"):
        vf.load_environment("./environments/my_task")

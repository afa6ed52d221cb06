"""Every environment of `differential.environments` here and on the published 0.1.14: no unexplained difference.

The interpreter of a virtual environment with `verifiers==0.1.14` can be given in `VERIFIERS_0_1_14_PYTHON`; otherwise
the test makes one from the machine's package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from differential.cases import all_cases
from differential.compare import differences, in_order
from differential.explained import EXPLAINED, explanation_of, rows_of

HERE = Path(__file__).parent
CASES = sorted(all_cases())
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def observed_by(python: Path | str, folder: Path) -> dict[str, Any]:
    """Return the observations of an interpreter, made in a separate process."""
    done = subprocess.run(
        [str(python), "-m", "differential.play", str(folder)],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(HERE), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "observed.json").read_text())


@pytest.fixture(scope="session")
def observations(
    public_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("observed")
    return observed_by(public_python, folder / "public"), observed_by(
        sys.executable, folder / "ours"
    )


@pytest.mark.parametrize("name", CASES)
def test_every_difference_is_explained(
    name: str, observations: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    public, ours = (in_order(one[name]) for one in observations)
    unexplained = [line for line in differences(public, ours) if not explanation_of(name, line)]
    assert unexplained == []


def test_every_explanation_is_needed_and_documented(
    observations: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    used = {
        explanation_of(name, line)
        for name in CASES
        for line in differences(*(in_order(one[name]) for one in observations))
    }
    assert [one for one in EXPLAINED if one not in used] == []
    rows = rows_of((HERE.parents[1] / "docs" / "migrating.md").read_text())
    assert [one.row for one in EXPLAINED if not any(row.startswith(one.row) for row in rows)] == []

"""A run of ours, killed after four of its six rollouts, is read and continued by the published 0.1.14, and then by us.

The other direction is `tests/cli/test_runs_of_0_1_14.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from differential.cases import Case, call, calls
from differential.endpoint import ScriptedModel, serving

from verifiers.runs.store import iterate_index, load_metadata, load_outputs

ENVIRONMENT = Path(__file__).parents[1] / "cli" / "saved_by_0_1_14"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

REPLIES = {
    "What is 1 + 1": [[calls(call("add", a=1, b=1)), "2"], ["3"]],
    "What is 2 + 2": [[calls(call("add", a=2, b=2)), "4"], [""]],
    "What is 3 + 3": [["6"], ["6"]],
}
OURS = [
    sys.executable,
    "-c",
    "import sys; from vf_cli.main import eval_main; sys.exit(eval_main())",
]
READERS = """
import json, sys
from pathlib import Path
from verifiers.utils import path_utils
from verifiers.utils.save_utils import load_outputs, validate_resume_metadata

folder = Path(sys.argv[1])
validate_resume_metadata(folder, "counting", "scripted", 3, 2)
found = path_utils.find_latest_incomplete_eval_results_path("counting", "scripted", 3, 2)
print(json.dumps({
    "valid": path_utils.is_valid_eval_results_path(folder),
    "found": str(found),
    "rewards": [output["reward"] for output in load_outputs(folder)],
}))
"""


class HoldsOneExample(ScriptedModel):
    """Does not answer the third question before `released` is set."""

    def __init__(self) -> None:
        super().__init__({"scripted": Case("scripted", lambda: None, REPLIES)})
        self.released = threading.Event()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "What is 3" in json.dumps(body):
            self.released.wait(600)
        return super().answer(path, body)


def wait_until(is_true: Callable[[], bool], limit_s: float = 300.0) -> None:
    end = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.1)


def test_a_run_of_ours_is_continued_by_0_1_14_and_again_by_us(public_python: Path) -> None:
    environ = {
        **os.environ,
        "PYTHONPATH": str(ENVIRONMENT),
        "SCRIPTED_KEY": "none",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "",
    }

    def run(*command: Any) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(
            words, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    model = HoldsOneExample()
    with serving(model) as base_url:
        options = ("counting", "-m", "scripted", "-b", base_url, "-k", "SCRIPTED_KEY", "-n", "3")
        options = (*options, "-r", "2", "-s", "-c", "6")
        killed = subprocess.Popen(
            [*OURS, *options], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: _lines() == 4 or killed.poll() is not None)
        finally:
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        folder = _folder()

        read = json.loads(run(public_python, "-c", READERS, folder).splitlines()[-1])
        assert (read["valid"], read["found"]) == (True, str(folder))
        assert sorted(read["rewards"]) == [0.0, 0.0, 1.0, 1.0]

        model.released.set()
        before = load_outputs(folder)
        run(
            public_python.with_name("vf-eval"), *options, "--disable-env-server", "--resume", folder
        )
        outputs = load_outputs(folder)  # 0.1.14 has written all lines again, by example
        assert len(outputs) == 6
        assert all(output in outputs for output in before)
        added = [output for output in outputs if output not in before]
        assert [(output["example_id"], output["reward"]) for output in added] == [(2, 1.0)] * 2
        assert [entry.output["reward"] for entry in iterate_index(folder)] == [
            output["reward"] for output in outputs
        ]
        asked = len(model.requests["scripted"])

        run(*OURS, *options, "--resume", folder)
        assert len(model.requests["scripted"]) == asked + 2  # the rollout with the empty reply
        assert len(load_outputs(folder)) == 6
        assert load_metadata(folder)["num_examples"] == 3


def _folder() -> Path:
    [results] = Path("outputs").rglob("results.jsonl")
    return results.parent


def _lines() -> int:
    found = list(Path("outputs").rglob("results.jsonl"))
    return len(found[0].read_text().splitlines()) if found else 0

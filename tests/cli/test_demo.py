"""`make demo` as it is run: the embedded model, a hub, a new virtual environment, and every command in a process."""

import os
import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.timeout(600)  # a dozen processes, each of which imports everything
def test_the_demo_evaluates_publishes_installs_and_pushes(tmp_path):
    variables = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        "COLUMNS": "120",
        "VF_HUB_PORT": "none of its business",
    }
    done = subprocess.run(
        [sys.executable, "-m", "vf_cli.demo"],
        capture_output=True,
        text=True,
        env=variables,
        cwd=tmp_path,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in (
        "published   alice/addition",
        "installed   alice/addition",
        "pushed  80 rollouts",
        "COMPLETED",
    ):
        assert said in done.stdout, done.stdout
    assert not list(tmp_path.glob("vf-demo-*")), "its folder is gone"

"""`make demo`: the first evaluation, with no account, no key and no network.

Starts the embedded model behind its OpenAI-compatible endpoint in a process of its own and runs `vf-eval` on two
bundled environments against it, exactly as a user would type it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from verifiers.endpoint import endpoint_process
from vf_cli import output

ENVIRONMENTS = ("reverse-text", "addition")
OPTIONS = ("-n", "60", "-r", "4", "--save-results", "--abbreviated-summary")


def main() -> int:
    """Run both evaluations; 0 when both commands could run."""
    output.show("Starting the embedded model …")
    with endpoint_process() as endpoint:
        output.show(f"It answers at {endpoint.base_url} as {endpoint.model!r}.")
        for environment in ENVIRONMENTS:
            arguments = [environment, "-m", endpoint.model, "-b", endpoint.base_url, *OPTIONS]
            output.show(f"\n$ vf-eval {shlex.join(arguments)}")
            done = subprocess.run(
                [Path(sys.executable).with_name("vf-eval"), *arguments],
                env={"HF_HUB_OFFLINE": "1", **os.environ},
                check=False,
            )
            if done.returncode not in (0, 1):
                return done.returncode
    output.show("\nNext: write your own with `vf-init my-env`, or read docs/quickstart.md.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

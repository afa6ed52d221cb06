"""`make demo`: evaluate, host, publish, install: with no account, no key and no network.

Starts the embedded model behind its OpenAI-compatible endpoint in a process of its own, runs `vf-eval` on two bundled
environments against it, then takes one of them through a hub (`demo_hub`). Every command is shown as a user types it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from verifiers.endpoint import EndpointProcess, endpoint_process
from vf_cli import output
from vf_cli.demo_hub import DemoFailed, through_a_hub

ENVIRONMENTS = ("reverse-text", "addition")
OPTIONS = ("-n", "60", "-r", "4", "--save-results", "--abbreviated-summary")


def main() -> int:
    """Run all of it; 0 when every command could run."""
    began = time.monotonic()
    output.show("Starting the embedded model …")
    with endpoint_process() as endpoint:
        output.show(f"It answers at {endpoint.base_url} as {endpoint.model!r}.")
        try:
            for environment in ENVIRONMENTS:
                _evaluate(environment, endpoint)
            through_a_hub(ENVIRONMENTS[-1], endpoint.base_url, endpoint.model)
        except DemoFailed as error:
            output.error(str(error))
            return 1
    output.show(f"\nAll of it took {time.monotonic() - began:.0f} s.")
    output.show(
        "Next: write your own with `vf-init my-env` (docs/quickstart.md), start a hub that stays with `vf-hub serve` "
        "and publish on it (docs/publish.md)."
    )
    return 0


def _evaluate(environment: str, endpoint: EndpointProcess) -> None:
    arguments = [environment, "-m", endpoint.model, "-b", endpoint.base_url, *OPTIONS]
    output.show(f"\n$ vf-eval {shlex.join(arguments)}")
    done = subprocess.run(
        [Path(sys.executable).with_name("vf-eval"), *arguments],
        env={"HF_HUB_OFFLINE": "1", **os.environ},
        check=False,
    )
    if done.returncode not in (0, 1):
        raise DemoFailed(f"vf-eval ended with exit code {done.returncode}.")


if __name__ == "__main__":
    sys.exit(main())

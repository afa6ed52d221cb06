"""The loop of a trainer over HTTP in plain Python. It does not import `verifiers`, so any language can do the same.

    vf-rollouts reverse-text -b http://127.0.0.1:8000 -m embedded -S '{"max_tokens": 64}'
    python docs/examples/pull_trainer.py http://127.0.0.1:8100 --steps 3

If the server requires a key, set VF_ROLLOUTS_API_KEY.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request


class Rollouts:
    """The requests to the server that a trainer needs."""

    def __init__(self, url: str, key: str | None = None):
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"

    def ask(self, path: str, body: dict | None = None, timeout_s: float = 60.0):
        """Return the JSON of a response; None if the batch is not ready (204)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            content = response.read()
            return json.loads(content) if content else None

    def batch(self, step: int) -> dict:
        """Wait for the batch of a step and return it.

        A repeated request after a lost response returns the same batch.
        """
        while True:
            try:
                batch = self.ask(f"/batches/{step}?timeout_s=30")
            except urllib.error.HTTPError as error:
                sys.exit(f"step {step}: {json.load(error)['error']['message']}")
            except OSError as error:  # the connection was lost, but the batch was not
                sys.stderr.write(f"requesting again: {error}\n")
                time.sleep(1)
                continue
            if batch is not None:
                return batch

    def set_version(self, version: int) -> None:
        """Record that the inference servers have new weights. `POST /weights` loads them instead."""
        self.ask("/version", {"version": version})


def train(batch: dict) -> None:
    """Train on a batch: index t of every list describes token t."""
    tokens = trained = 0
    for sample in batch["samples"]:
        assert len(sample["token_ids"]) == len(sample["mask"]) == len(sample["logprobs"])
        tokens += len(sample["token_ids"])
        trained += sum(sample["mask"])
    reward = batch["metrics"]["reward/mean"]
    sys.stdout.write(
        f"step {batch['step']}: reward {reward:.2f}, {trained} of {tokens} tokens are trained on\n"
    )


def main() -> None:
    """Train for several steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=3)
    chosen = parser.parse_args()
    rollouts = Rollouts(chosen.url, os.environ.get("VF_ROLLOUTS_API_KEY"))
    # The server may have delivered steps before.
    last_step = rollouts.ask("/info")["last_step"] or 0
    for step in range(last_step + 1, last_step + 1 + chosen.steps):
        batch = rollouts.batch(step)
        train(batch)
        rollouts.set_version(batch["version"] + 1)


if __name__ == "__main__":
    main()

"""A trainer's loop over HTTP, in plain Python: nothing of `verifiers` is imported, so any language can do the same.

    vf-rollouts reverse-text -b http://127.0.0.1:8000 -m embedded -S '{"max_tokens": 64}'
    python docs/examples/pull_trainer.py http://127.0.0.1:8100 --steps 3

The key, when the server wants one, is in VF_ROLLOUTS_API_KEY.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request


class Rollouts:
    """The server's requests that a trainer needs."""

    def __init__(self, url: str, key: str | None = None):
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json"}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"

    def ask(self, path: str, body: dict | None = None, timeout_s: float = 60.0):
        """The JSON of an answer; None when there is nothing yet (204)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, self.headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            content = response.read()
            return json.loads(content) if content else None

    def batch(self, step: int) -> dict:
        """The batch of a step, however long it takes. Asking again after a lost answer gives the same batch."""
        while True:
            try:
                batch = self.ask(f"/batches/{step}?timeout_s=30")
            except urllib.error.HTTPError as error:
                sys.exit(f"step {step}: {json.load(error)['error']['message']}")
            except OSError as error:  # the connection was lost: the batch was not
                sys.stderr.write(f"asking again: {error}\n")
                time.sleep(1)
                continue
            if batch is not None:
                return batch

    def set_version(self, version: int) -> None:
        """Tell that the inference servers have new weights now; `POST /weights` loads them instead."""
        self.ask("/version", {"version": version})


def train(batch: dict) -> None:
    """Where a trainer makes its step: index t of every list describes token t."""
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
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=3)
    chosen = parser.parse_args()
    rollouts = Rollouts(chosen.url, os.environ.get("VF_ROLLOUTS_API_KEY"))
    last_step = rollouts.ask("/info")["last_step"] or 0  # the server may have given out some before
    for step in range(last_step + 1, last_step + 1 + chosen.steps):
        batch = rollouts.batch(step)
        train(batch)
        rollouts.set_version(batch["version"] + 1)


if __name__ == "__main__":
    main()

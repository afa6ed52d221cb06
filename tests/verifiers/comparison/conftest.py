"""Saved runs for the tests of comparisons."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from verifiers.runs.store import RunStore

Rewards = Mapping[int, Sequence[float]]


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Save a run: `make_run("a", {0: [1.0, 0.0], 1: [1.0, 1.0]}, model="m")` has two rollouts of two examples."""

    def make(
        name: str,
        rewards: Rewards,
        *,
        fields: Callable[[int, int], Mapping[str, Any]] = lambda example, rollout: {},
        **metadata: Any,
    ) -> Path:
        folder = tmp_path / name
        with RunStore.create(folder, {"env_id": "demo", "model": name, **metadata}) as store:
            for example, values in rewards.items():
                store.append_and_wait(
                    [
                        {
                            "example_id": example,
                            "rollout_index": rollout,
                            "input_key": f"{example:064x}",
                            "prompt": [{"role": "user", "content": f"question {example}"}],
                            "answer": str(example),
                            "reward": reward,
                            "metrics": {"accuracy": reward, "num_turns": 2.0},
                            "token_usage": {"input_tokens": 8.0, "output_tokens": 4.0 + rollout},
                            "timing": {"start_time": 1.0, "total": 0.5},
                            **fields(example, rollout),
                        }
                        for rollout, reward in enumerate(values)
                    ]
                )
        return folder

    return make

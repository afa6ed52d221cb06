"""What the tests of the reference trainer share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from verifiers.training.reference.config import TrainConfig
from verifiers.training.samples import TokenSample

FIELDS: dict[str, Any] = {
    "steps": 4,
    "environment": {"id": "reverse-text", "args": {"num_train_examples": 20}},
    "model": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "source": {"groups_per_batch": 2, "rollouts_per_group": 2},
}


@pytest.fixture
def config_with() -> Callable[..., TrainConfig]:
    """A small configuration with some fields replaced."""
    return lambda **changes: TrainConfig.model_validate(FIELDS | changes)


@pytest.fixture
def make_samples() -> Callable[..., list[TokenSample]]:
    """Samples of different lengths with random tokens, trained from the third on."""

    def make(count: int, seed: int = 0) -> list[TokenSample]:
        rng = np.random.default_rng(seed)
        samples = []
        for _ in range(count):
            length = int(rng.integers(5, 14))
            mask = np.arange(length) >= 3
            samples.append(
                TokenSample(
                    token_ids=rng.integers(8, 264, length).astype(np.int32),
                    mask=mask,
                    logprobs=np.where(mask, rng.normal(-5.5, 0.3, length), 0.0).astype(np.float32),
                    prompt_len=3,
                    reward=1.0,
                    advantage=float(rng.normal()),
                )
            )
        return samples

    return make

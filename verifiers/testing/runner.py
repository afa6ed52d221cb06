"""One call that plays an environment with a scripted model, in a fixed order."""

from __future__ import annotations

from typing import Any

from verifiers.envs.environment import Environment
from verifiers.types import RolloutOutput


async def run(
    env: Environment, client: Any, *, n: int = 1, rollouts_per_example: int = 1, **options: Any
) -> list[RolloutOutput]:
    """Outputs of the first `n` evaluation rows, in their order.

    One rollout at a time, so that scripted replies meet the rollouts in order; `max_concurrent` and the other options
    of `Environment.evaluate` may be given.
    """
    results = await env.evaluate(
        client,
        options.pop("model", "scripted"),
        num_examples=n,
        rollouts_per_example=rollouts_per_example,
        **{"max_concurrent": 1, **options},
    )
    return results.outputs

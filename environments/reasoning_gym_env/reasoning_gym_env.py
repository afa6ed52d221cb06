"""The procedural tasks of the `reasoning-gym` package: any of its generators by name, or a mix of them.

A row: {"question": "State the final answer to the following arithmetic problem: 4 - 1 =", "answer": "3",
        "info": {"source_dataset": "chain_sum", "rg_index": 0}}
"""

from typing import Any

import verifiers as vf


def load_environment(
    gym: str | list[str | dict[str, Any]] = "chain_sum",
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    seed: int = 0,
) -> vf.Environment:
    """`gym` is the name of a generator, or a list of names and of dicts with `name`, `weight` and `config`."""
    return vf.ReasoningGymEnv(
        gym=gym,
        num_train_examples=num_train_examples,
        num_eval_examples=num_eval_examples,
        seed=seed,
    )

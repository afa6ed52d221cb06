"""The rows of a prompt search: drawn from one or several environments, and played with a candidate's prompt."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifiers.errors import ConfigError, is_void
from verifiers.messages import content_text
from verifiers.types import RolloutOutput, SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

Row = dict[str, Any]


def search_rows(
    env: Environment,
    envs: Sequence[Environment],
    env_names: Sequence[str],
    split: str,
    n: int,
    seed: int | None,
) -> list[Row]:
    """Return `n` rows of one environment, or `n` rows of which each of several environments gives an equal share.

    With several environments, the first ones give the remainder, and an environment with too few rows repeats them.
    Each row then has its environment in `info["env_id"]` and `task`, and its former `example_id` in
    `source_example_id`. A split other than "train" is the evaluation dataset; `n` below 0 takes every row. Raises
    ConfigError if there are no rows.
    """
    if n == 0:
        rows = []
    elif len(envs) < 2:
        rows = _taken(env, split, n, seed)
    else:
        shares = balanced_counts(n, len(envs)) if n > 0 else [-1] * len(envs)
        rows = []
        for member, name, share in zip(envs, env_names, shares, strict=True):
            drawn = _taken(member, split, share, seed) if share else []
            full = itertools.islice(itertools.cycle(drawn), share) if share > 0 else drawn
            rows += [_routed(row, name) for row in full]
        for index, row in enumerate(rows):
            row["source_example_id"], row["example_id"] = row.get("example_id"), index
    if not rows:
        raise ConfigError(f"No {split} examples available for GEPA.")
    return rows


def balanced_counts(n: int, parts: int) -> list[int]:
    """Return `n` split into whole numbers that differ by at most 1, the larger ones first."""
    return [n // parts + (index < n % parts) for index in range(parts)]


def _taken(env: Environment, split: str, n: int, seed: int | None) -> list[Row]:
    take = env.get_dataset if split == "train" else env.get_eval_dataset
    return [dict(row) for row in take(n=n, seed=seed)]


def _routed(row: Row, name: str) -> Row:
    """Return a copy of the row with the name of its environment, in front of its route inside that environment."""
    info = row.get("info")
    own = dict(info) if isinstance(info, Mapping) else ({} if info is None else {"info": info})
    inner = own.get("env_id")
    route = [inner] if isinstance(inner, str) else list(inner or [])
    return {**row, "info": {**own, "env_id": [name, *route] if route else name}, "task": name}


def with_system(prompt: Any, text: str) -> Any:
    """Return a prompt with `text` in place of the system messages at its start; a text prompt begins with `text`.

    An empty `text` leaves the prompt as it is.
    """
    if not text:
        return prompt
    if isinstance(prompt, str):
        return f"{text}\n\n{prompt}"
    rest = itertools.dropwhile(lambda message: message["role"] == "system", prompt)
    return [{"role": "system", "content": text}, *rest]


def system_text(prompt: Any) -> str | None:
    """Return the text of the system messages at the start of a prompt."""
    if isinstance(prompt, str):
        return None
    opening = itertools.takewhile(lambda message: message["role"] == "system", prompt)
    return "\n\n".join(content_text(message["content"]) for message in opening) or None


async def play_candidate(
    environment: Environment,
    rows: Sequence[Mapping[str, Any]],
    text: str,
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None,
    *,
    max_concurrent: int,
    state_columns: Sequence[str],
) -> tuple[list[RolloutOutput], list[float]]:
    """Play every row once with the candidate's prompt; return the outputs in the order of the rows, and their rewards.

    A void reward counts 0.0. Equal rows do not form a group.
    """
    numbered = [
        {**row, "example_id": index, "prompt": with_system(row["prompt"], text)}
        for index, row in enumerate(rows)
    ]
    results = await environment.generate(
        numbered,
        client,
        model,
        sampling_args,
        max_concurrent=max_concurrent,
        state_columns=list(state_columns),
    )
    outputs = results["outputs"]
    for output in outputs:
        output["example_id"] = rows[output["example_id"]].get("example_id", output["example_id"])
    return outputs, [
        0.0 if is_void(output) else float(output["reward"] or 0.0) for output in outputs
    ]

"""v0 import path of `vf-gepa`; also `python -m verifiers.scripts.gepa`.

`run_gepa_optimization` looks its helpers up in this module when it runs, so a program can replace them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verifiers.clients import resolve_client
from verifiers.configs import ClientConfig
from verifiers.envs.env_group import EnvGroup
from verifiers.envs.environment import Environment
from verifiers.evaluate.run import apply_extra_kwargs
from verifiers.loading import load_environment
from verifiers.logs import setup_logging
from verifiers.prompt_search.adapter import GEPADisplay, VerifiersGEPAAdapter, make_reflection_lm
from verifiers.prompt_search.config_file import (
    load_gepa_toml_config,
    resolve_gepa_config_args,
    unique_names,
)
from verifiers.prompt_search.rows import search_rows as _load_gepa_dataset
from verifiers.prompt_search.saved import save_gepa_results
from verifiers.runs.folders import prompt_search_folder as get_gepa_results_path
from vf_cli.main import gepa_main as main

EnvConfig = dict[str, Any]
"""`env_id`, `env_args` and `extra_env_kwargs` of one environment."""


def __getattr__(name: str) -> Any:
    if name == "optimize":
        from gepa.api import optimize

        return optimize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _gepa_extra_headers_from_group(
    endpoint_group: Sequence[Mapping[str, Any]], alias: str
) -> dict[str, str]:
    """Return the headers that all rows of an endpoint share. Raise ValueError if the rows differ."""
    headers = [dict(row.get("extra_headers") or {}) for row in endpoint_group]
    if any(own != headers[0] for own in headers):
        raise ValueError(
            f"The rows of the endpoint {alias!r} have different headers. A prompt search needs the same headers in "
            "every row."
        )
    return headers[0] if headers else {}


def _load_gepa_environment(
    env_configs: Sequence[EnvConfig],
) -> tuple[Environment, list[Environment], list[str]]:
    """Return the environment of the search, its members, and their names; several members form an `EnvGroup`."""
    names = unique_names([config["env_id"] for config in env_configs])
    envs: list[Environment] = []
    for config in env_configs:
        env = load_environment(config["env_id"], **(config.get("env_args") or {}))
        apply_extra_kwargs(env, config.get("extra_env_kwargs") or {})
        envs.append(env)
    return (envs[0] if len(envs) == 1 else EnvGroup(envs, env_names=names)), envs, names


def run_gepa_optimization(
    env_id: str,
    env_configs: Sequence[EnvConfig],
    model: str,
    reflection_model: str,
    client_config: ClientConfig,
    reflection_client_config: ClientConfig,
    max_metric_calls: int,
    minibatch_size: int,
    perfect_score: float | None,
    state_columns: list[str],
    num_train: int,
    num_val: int,
    max_concurrent: int,
    sampling_args: dict[str, Any],
    seed: int,
    run_dir: Path | None,
    save_results: bool,
    tui_mode: bool = False,
) -> Any:
    """Search for a better system prompt and return gepa's result; write `run_dir` if `save_results`."""
    env, envs, names = _load_gepa_environment(env_configs)
    trainset = _load_gepa_dataset(env, envs, names, "train", num_train, seed)
    valset = _load_gepa_dataset(env, envs, names, "validation", num_val, seed)
    initial = next((member.system_prompt for member in envs if member.system_prompt), "")
    display = GEPADisplay(
        env_id, model, reflection_model, max_metric_calls, num_train, num_val, screen=tui_mode
    )
    adapter = VerifiersGEPAAdapter(
        env=env,
        client=resolve_client(client_config),
        model=model,
        sampling_args=sampling_args,
        max_concurrent=max_concurrent,
        state_columns=state_columns,
        display=display,
    )
    limits = {} if perfect_score is None else {"perfect_score": perfect_score}
    display.start()
    display.set_valset_info(len(valset), [row["example_id"] for row in valset])
    try:
        result = sys.modules[__name__].optimize(
            seed_candidate={"system_prompt": initial},
            trainset=trainset,
            valset=valset,
            adapter=adapter,
            reflection_lm=make_reflection_lm(reflection_client_config, reflection_model),
            max_metric_calls=max_metric_calls,
            reflection_minibatch_size=minibatch_size,
            run_dir=None if run_dir is None else str(run_dir),
            seed=seed,
            display_progress_bar=False,
            skip_perfect_score=perfect_score is not None,
            logger=display,
            **limits,
        )
    finally:
        display.stop()
    if save_results and run_dir is not None:
        config = {
            "env_id": env_id,
            "envs": list(env_configs),
            "env_args": env_configs[0].get("env_args") or {} if len(env_configs) == 1 else {},
            "model": model,
            "reflection_model": reflection_model,
            "num_train": num_train,
            "num_val": num_val,
            "max_metric_calls": max_metric_calls,
            "minibatch_size": minibatch_size,
            "perfect_score": perfect_score,
            "state_columns": state_columns,
            "seed": seed,
        }
        save_gepa_results(run_dir, result, config=config)
    return result


__all__ = [
    "get_gepa_results_path",
    "load_gepa_toml_config",
    "main",
    "resolve_gepa_config_args",
    "run_gepa_optimization",
    "setup_logging",
]
if __name__ == "__main__":
    sys.exit(main())

"""Run one evaluation from its configuration: environment → client → `Environment.evaluate` → saved results.

This module neither prints nor handles signals: it takes callbacks and an event, and returns results.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.clients import resolve_client
from verifiers.configs import EvalConfig, EvalRunConfig
from verifiers.envs.options import merged_sampling_args
from verifiers.errors import ConfigError
from verifiers.loading import Loaded, load
from verifiers.run_options import RUN_OPTIONS
from verifiers.runs.description import get_env_version
from verifiers.runs.folders import new_run_folder
from verifiers.runs.resume import run_to_continue
from verifiers.types import GenerateOutputs, LogCallback, ProgressCallback, StartCallback

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

logger = logging.getLogger(__name__)

DEFAULT_IN_FLIGHT_PER_WORKER = 1024
"""Minimum number of requests at the same time per worker of an evaluation."""
MIN_NOTED_S = 2.0
"""Minimum time of a run whose worker processes are assessed, in seconds."""
BUSY_SHARE = 0.6
"""Share of one processor from which on this process counts as the bottleneck of a run with workers."""

_LOOSE_KWARGS = frozenset({"timeout_seconds", "concurrency", "max_seq_len", "score_rollouts"})
"""Settings that every environment accepts, also without an attribute of that name."""


def prepare_environment(config: EvalConfig) -> Loaded:
    """Load the environment of an evaluation and apply the extra settings. Blocks while it loads.

    Raises the errors of `load_environment`, and ConfigError for an extra setting that looks like a typo.
    """
    loaded = load(config.env_id, config.env_args)
    apply_extra_kwargs(loaded.environment, config.extra_env_kwargs)
    return loaded


def apply_extra_kwargs(environment: Environment, extra: dict[str, Any]) -> None:
    """Set attributes of the environment by name. Refuse an unknown name that is similar to a known one."""
    known = [name for name in dir(environment) if not name.startswith("_")]
    for name in extra:
        if name in _LOOSE_KWARGS or name in known or f"set_{name}" in known:
            continue
        near = get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            raise ConfigError(
                f"{type(environment).__name__} has no setting {name!r}. Did you mean {near[0]!r}?"
            )
        logger.warning(
            "%s has no setting %r; the attribute is set anyway.", type(environment).__name__, name
        )
    environment.set_kwargs(**extra)


def run_folder_for(config: EvalConfig, environment: Environment) -> Path | None:
    """Return the folder for the results: the run to continue, or a new folder; None if nothing is saved.

    Raises RunNotFound if `resume_path` is not a run.
    """
    env_id = environment.env_id
    folder = run_to_continue(
        config,
        env_id,
        lambda: example_count(config, environment),
        settings={
            "env_args": environment.env_args,
            "sampling_args": merged_sampling_args(environment.sampling_args, config.sampling_args),
        },
    )
    if folder is not None:
        return folder
    if not config.save_results and not config.resume:
        return None
    return new_run_folder(env_id, config.model, config.env_dir_path, config.output_dir)


def example_count(config: EvalConfig, environment: Environment) -> int:
    """Return the number of examples of the evaluation: as requested, limited by the size of the dataset.

    Raises ConfigError if all examples are requested and the dataset has no end.
    """
    source = environment.source("eval")
    if source.is_endless:
        if config.num_examples < 1:
            raise ConfigError(
                f"The evaluation dataset of {config.env_id!r} has no known length, so `-n -1` would never end. Give a "
                "number of examples, e.g. `-n 100`."
            )
        return config.num_examples
    available = len(source)
    return min(config.num_examples, available) if config.num_examples > 0 else available


def environment_version(environment: Environment) -> str | None:
    """Return the version of an environment's package or project folder; None if unknown."""
    return get_env_version(environment.env_id, environment.loaded_from)


async def run_evaluation(
    config: EvalConfig,
    on_start: StartCallback | None = None,
    on_log_file: Callable[[Path], None] | None = None,
    on_progress: ProgressCallback | Sequence[ProgressCallback] | None = None,
    on_log: LogCallback | None = None,
    *,
    environment: Environment | None = None,
    results_path: Path | None = None,
    stop: asyncio.Event | None = None,
    on_retry: Callable[[], None] | None = None,
) -> GenerateOutputs:
    """Evaluate, and save as configured.

    `environment` and `results_path` are optional results of `prepare_environment` and `run_folder_for`. `on_log_file`
    is accepted for callers of v0 and not called. If `num_workers` is a number, that many worker processes run the
    rollouts of this evaluation, unless `disable_env_server`. Failed rollouts are results; failures of the whole run
    (wrong credentials, a full disk) raise.
    """
    if environment is None:
        environment = prepare_environment(config).environment
    if results_path is None:
        results_path = run_folder_for(config, environment)
    if workers := worker_count(config):
        await environment.start_server(
            num_workers=workers,
            extra_env_kwargs=config.extra_env_kwargs,
            log_level="WARNING",
            max_in_flight_per_worker=_most_at_once(config, environment),
        )
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    try:
        results = await environment.evaluate(
            resolve_client(config.client_config),
            config.model,
            config.sampling_args,
            **{option.name: getattr(config, option.name) for option in RUN_OPTIONS}
            | {"save_results": results_path is not None},
            results_path=results_path,
            retry_failed=config.resume_path is not None or config.resume,
            on_start=on_start,
            on_progress=on_progress,
            on_log=on_log,
            stop=stop,
            on_retry=on_retry,
        )
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        if workers and (note := note_on_workers(workers, wall_s=wall_s, own_cpu_s=cpu_s)):
            logger.warning("%s", note)
        return results
    finally:
        await environment.stop_server()


def _most_at_once(config: EvalConfig, environment: Environment) -> int:
    """Return the number of requests that each worker accepts: as many as the run may have, so that `-c` is the only
    limit.
    """
    rollouts = example_count(config, environment) * config.rollouts_per_example
    limit = config.max_concurrent if config.max_concurrent > 0 else rollouts
    return max(DEFAULT_IN_FLIGHT_PER_WORKER, min(limit, rollouts))


def note_on_workers(workers: int, *, wall_s: float, own_cpu_s: float) -> str | None:
    """Return a note about worker processes that cannot have made a run faster; None if they may have.

    Rollouts travel through this process. If the exchange keeps a whole processor busy for most of the run, the
    environment is not the bottleneck, and one process is faster.
    """
    share = own_cpu_s / wall_s if wall_s > 0 else 0.0
    if wall_s < MIN_NOTED_S or share < BUSY_SHARE:
        return None
    return (
        f"The {workers} worker process{'es' if workers > 1 else ''} probably made this run slower: this process used "
        f"{share:.0%} of a processor to exchange rollouts with them. An environment that does not block the event loop "
        "is faster without --num-workers."
    )


def worker_count(config: EvalConfig) -> int:
    """Return the number of worker processes of an evaluation; 0 means this process."""
    return (
        0 if config.disable_env_server or config.num_workers == "auto" else int(config.num_workers)
    )


async def run_evaluations(config: EvalRunConfig) -> list[GenerateOutputs]:
    """Run several evaluations, one after the other."""
    return [await run_evaluation(one) for one in config.evals]

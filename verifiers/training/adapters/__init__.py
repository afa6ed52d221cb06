"""Adapters that run an environment inside another trainer. The rest of the library does not import them.

    trl             `rollout_func` of TRL's GRPOTrainer, rollout worker of AsyncGRPOTrainer, transfer of their weights
    verl            agent loop that samples with verl's servers
    skyrl           generator
    tinker          rollouts → trajectory groups of tinker-cookbook; model client for its sampling client
    rllm            rollouts → episodes of rLLM, a workflow, model client for its rollout engine
    art             rollouts → trajectories of ART
    nemo_gym        rollouts → response items of NeMo Gym
    flat            rollouts → one token sequence each, for trainers that accept nothing else
    engine_client   model client for an engine that maps token ids to token ids
    play            plays and scores groups of rollouts

Read `play` and `flat` first, then the file of your trainer. An adapter imports the trainer's package on first use. See
docs/adapters.md.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Literal

from verifiers.errors import ConfigError

Split = Literal["train", "eval"]


class TrainerMissing(ConfigError, ImportError):
    """The trainer's package is not installed, or its version does not fit the adapter."""


def _what_is_missing(name: str, error: ImportError, install: str) -> str:
    trainer = name.partition(".")[0]
    module = error.name or name
    if module == trainer:
        return f"This adapter needs {trainer}, which is not installed. Install it: `{install}`."
    if not isinstance(error, ModuleNotFoundError):
        return f"Importing {name} failed: {error}. This adapter was written for what `{install}` installs."
    if module.startswith(f"{trainer}."):
        return (
            f"{trainer} is installed, but this version has no module {module}. Install the version that this adapter "
            f"was written for: `{install}`."
        )
    return (
        f"{trainer} is installed, but {trainer} imports the module {module!r}, which is not installed. Install what "
        f"{trainer} needs: `{install}`."
    )


def trainer_module(name: str, *names: str, install: str) -> ModuleType:
    """Return the trainer's module `name`.

    Raise TrainerMissing, with the command `install`, if it lacks one of `names`.
    """
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise TrainerMissing(_what_is_missing(name, error, install)) from error
    missing = [wanted for wanted in names if not hasattr(module, wanted)]
    if missing:
        raise TrainerMissing(
            f"{name} has no {', '.join(missing)}: this adapter does not support the installed version. "
            f"Install another: `{install}`."
        )
    return module

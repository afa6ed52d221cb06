"""Thin adapters: an environment inside somebody else's trainer. None of them is imported by the rest of the library.

    trl             `rollout_func` of TRL's GRPOTrainer, rollout worker of AsyncGRPOTrainer, their weights to endpoints
    verl            an agent loop on verl's own servers
    skyrl           a generator
    tinker          rollouts → tinker-cookbook's trajectory groups; a client around its sampling client
    rllm            rollouts → rLLM's episodes, a workflow, its engine as a client
    art             rollouts → ART's trajectories
    nemo_gym        rollouts → NeMo Gym's response items
    flat            rollouts → one token sequence each, for trainers that take nothing else
    engine_client   a model client around "token ids in, token ids out"
    play            groups of rollouts, played and scored

A trainer's package is imported when an adapter needs one of its classes, not before. See docs/adapters.md.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Literal

from verifiers.errors import ConfigError

Split = Literal["train", "eval"]


class TrainerMissing(ConfigError, ImportError):
    """The trainer's package is not installed, or is another version than the adapter was written for."""


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
        f"{trainer} is installed, but {trainer} imports the module {module!r}, which is not installed. This command "
        f"installs what {trainer} needs: `{install}`."
    )


def trainer_module(name: str, *names: str, install: str) -> ModuleType:
    """The trainer's module `name`, which must have `names`; `install`: the command that installs it."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise TrainerMissing(_what_is_missing(name, error, install)) from error
    missing = [wanted for wanted in names if not hasattr(module, wanted)]
    if missing:
        raise TrainerMissing(
            f"{name} has no {', '.join(missing)}: this version is not known. Install another: `{install}`."
        )
    return module

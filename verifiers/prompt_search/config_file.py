"""The TOML file of `vf-gepa`.

model = "Qwen/Qwen3-4B"
reflection_model = "Qwen/Qwen3-32B"

[env]                        # or several [[env]]: one prompt for all of them
env_id = "gsm8k"
env_args = { split = "train" }

[gepa]
max_calls = 200
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError

# fmt: off
_KEYS = frozenset({
    "model", "reflection_model", "endpoints_path", "api_key_var", "api_base_url", "max_calls", "minibatch_size",
    "perfect_score", "state_columns", "num_train", "num_val", "max_concurrent", "sampling_args", "seed", "verbose",
    "run_dir", "no_save", "env_dir_path",
})
# fmt: on
_ENV_KEYS = frozenset({"env_id", "env_args", "extra_env_kwargs"})
_OTHER_NAMES = {"id": "env_id", "args": "env_args"}


def load_gepa_toml_config(path: Path) -> dict[str, Any]:
    """Return the settings of a file: `envs` (each with `env_id`, `env_args`, `extra_env_kwargs`) and the top-level and
    `[gepa]` values, flat. A file with one environment adds the environment's fields, a file with several environments
    adds their joined names as `env_id`. `_warnings` are the notes on tables of older files. Raise ConfigError naming
    the file and the key.
    """
    try:
        document = tomllib.loads(Path(path).read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"The configuration file {path} does not exist.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    tables = document.pop("env", None)
    tables = [tables] if isinstance(tables, dict) else tables
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(
            f"{path} must contain an [env] or [[env]] table; each such table needs an env_id."
        )
    envs = [_env(table, f"{path}, env number {index}") for index, table in enumerate(tables, 1)]
    settings = document | _tables_of(document, path)
    for key in settings:
        if key != "_warnings":
            _check(key, _KEYS, str(path))
    if "endpoints_path" in settings:
        settings["endpoints_path"] = str(
            Path(path).resolve().parent / str(settings["endpoints_path"])
        )
    own = envs[0] if len(envs) == 1 else {"env_id": joined_names(env["env_id"] for env in envs)}
    return {**settings, **own, "envs": envs}


def joined_names(env_ids: Iterable[str]) -> str:
    """Return the last parts of the ids: `owner/a`, `b` → `a+b`."""
    return "+".join(env_id.rpartition("/")[2] for env_id in env_ids)


def unique_names(env_ids: Sequence[str]) -> list[str]:
    """Return the ids; an id that occurs again gets a number: `a`, `a:2`."""
    return [
        env_id if env_id not in env_ids[:index] else f"{env_id}:{env_ids[:index].count(env_id) + 1}"
        for index, env_id in enumerate(env_ids)
    ]


def _tables_of(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Remove the tables of settings from the document and return their values, with `_warnings` for `[execution]`."""
    tables = {name: document.pop(name, None) for name in ("gepa", "execution", "sampling")}
    for name, table in tables.items():
        if table is not None and not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} must be a table; got {table!r}.")
    gepa, execution, sampling = (table or {} for table in tables.values())
    for key in gepa:
        if key in execution:
            raise ConfigError(f"{path} sets {key!r} in both [gepa] and [execution].")
    settings = {**gepa, **execution}
    if sampling:
        settings["sampling_args"] = sampling
    if tables["execution"] is not None:
        settings["_warnings"] = [
            f"{path}: the table [execution] is deprecated. Move its keys into [gepa], and sampling arguments into "
            "[sampling]."
        ]
    return settings


def _env(table: dict[str, Any], where: str) -> dict[str, Any]:
    table = {_OTHER_NAMES.get(key, key): value for key, value in table.items()}
    for key in table:
        _check(key, _ENV_KEYS, where)
    if not isinstance(table.get("env_id"), str) or not table["env_id"]:
        raise ConfigError(
            f"{where}: env_id must be the id of an environment; got {table.get('env_id')!r}."
        )
    return {"env_args": {}, "extra_env_kwargs": {}, **table}


def _check(key: str, known: frozenset[str], where: str) -> None:
    if key not in known:
        near = get_close_matches(key, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{where}: the key {key!r} is not valid.{hint}")


def resolve_gepa_config_args(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments of v0's command with `env_id` and `envs`. If `env_id_or_config` names a TOML file, its
    values replace the arguments.
    """
    resolved = argparse.Namespace(**vars(args))
    if not str(args.env_id_or_config).endswith(".toml"):
        resolved.env_id = args.env_id_or_config
        resolved.envs = [
            {
                "env_id": args.env_id_or_config,
                "env_args": args.env_args or {},
                "extra_env_kwargs": args.extra_env_kwargs or {},
            }
        ]
        return resolved
    for name, value in load_gepa_toml_config(Path(args.env_id_or_config)).items():
        setattr(resolved, name, value)
    resolved.config_warnings = vars(resolved).pop("_warnings", [])
    return resolved

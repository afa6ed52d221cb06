"""Many evaluations from one TOML file.

    model = "Qwen/Qwen3-4B"             # at the top: for every evaluation below
    num_examples = 50

    [[eval]]                            # one evaluation
    env_id = "gsm8k"
    num_examples = 100                  # replaces the value at the top

    [[ablation]]                        # one evaluation for each combination
    env_id = "my-env"
    env_args = { split = "test" }       # the same in all
    [ablation.sweep]
    temperature = [0.0, 0.5, 1.0]
    [ablation.sweep.env_args]
    difficulty = ["easy", "hard"]       # 3 x 2 evaluations

A value in a table replaces the whole value at the top, including tables such as `env_args` and `sampling_args`.
"""

from __future__ import annotations

import itertools
import os
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.errors import ConfigError
from verifiers.evaluate.settings import Settings, settings_of
from verifiers.run_options import FILE_OPTIONS

SWEPT_TABLES = ("env_args", "args")
"""Tables whose keys can be swept one by one, under `[ablation.sweep.env_args]`."""
_RUN_KEYS = ("heartbeat_url",)
_MODEL_KEYS = ("model", "endpoint_id")
_OLDER = {older: key for key, option in FILE_OPTIONS.items() for older in option.older}


class PlannedEvaluation(NamedTuple):
    """One evaluation of a file."""

    settings: Settings
    swept: dict[str, Any]
    """Values that distinguish the evaluation within its `[[ablation]]`, e.g. `{"temperature": 0.5}`; empty for
    `[[eval]]`.
    """


class ConfigFile(NamedTuple):
    """A whole file."""

    evaluations: list[PlannedEvaluation]
    heartbeat_url: str | None


def read_config_file(path: str | Path, overrides: Mapping[str, Any] | None = None) -> ConfigFile:
    """Return the evaluations of a file, those of `[[eval]]` first, each updated with `overrides`.

    Raises ConfigError with the file, the table, and the closest valid key for a misspelt one. An override of a key
    that an `[[ablation]]` sweeps is refused, because it would make its evaluations equal.
    """
    path = Path(path)
    document = _read(path)
    top = {
        key: value for key, value in document.items() if key not in ("eval", "ablation", *_RUN_KEYS)
    }
    _check_top(top, path)
    planned: list[PlannedEvaluation] = []
    for kind in ("eval", "ablation"):
        for index, table in enumerate(_tables(document, kind, path), 1):
            where = f"{path}, [[{kind}]] number {index}"
            for values, swept in _expanded(table, where) if kind == "ablation" else [(table, {})]:
                clash = sorted(set(swept) & set(overrides or {}))
                if clash:
                    raise ConfigError(
                        f"{where} sweeps {clash[0]}, so it cannot also be set on the command line."
                    )
                # Mistakes of the table are reported before the values at the top are added.
                settings_of(values, where)
                merged = _over(_over(top, values), overrides or {})
                settings = settings_of(_with_paths(merged, path.parent, overrides or {}), where)
                if not settings.get("env_id"):
                    raise ConfigError(f"{where} needs env_id, the environment to evaluate.")
                planned.append(PlannedEvaluation(settings, swept))
    if not planned:
        raise ConfigError(
            f"{path} has no evaluation: add an [[eval]] table with an env_id, or an [[ablation]]."
        )
    heartbeat_url = document.get("heartbeat_url")
    if heartbeat_url is not None and not isinstance(heartbeat_url, str):
        raise ConfigError(f"{path}: heartbeat_url must be a URL; got {heartbeat_url!r}.")
    return ConfigFile(planned, heartbeat_url)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.") from None
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} is not valid TOML: {error}.") from error


_V1_KEYS = frozenset({"env", "taskset", "harness", "client", "run", "num_tasks", "num_rollouts"})
"""Keys of the files of verifiers 0.4 and later."""


def _check_top(top: Mapping[str, Any], path: Path) -> None:
    """Refuse keys and values at the top that no table may have, and report a misspelt section."""
    if found := sorted(_V1_KEYS & set(top)):
        raise ConfigError(
            f"{path} is a file for verifiers 0.4 or later: it has {found[0]!r} at the top. Here, every evaluation is a "
            'table [[eval]] with an env_id (docs/migrating.md, "From v1 back").'
        )
    for key in top:
        near = get_close_matches(key, ("eval", "ablation"), n=1)
        if key not in FILE_OPTIONS and near and isinstance(top[key], dict | list):
            raise ConfigError(f"{path} has no section {key!r}. Did you mean [[{near[0]}]]?")
    for key in ("env_id", "id"):
        if key in top:
            raise ConfigError(f"{path}: {key} belongs in a table; put it under [[eval]].")
    settings_of(top, f"{path}, at the top")


def _tables(document: Mapping[str, Any], kind: str, path: Path) -> list[dict[str, Any]]:
    tables = document.get(kind, [])
    if isinstance(tables, dict):
        raise ConfigError(
            f"{path}: write [[{kind}]] with double brackets, one for each evaluation."
        )
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path}: {kind} must be [[{kind}]] tables.")
    return tables


def _expanded(
    table: Mapping[str, Any], where: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield every combination of an `[[ablation]]`, the last key varying fastest, with its swept values."""
    fixed = {key: value for key, value in table.items() if key != "sweep"}
    sweep = table.get("sweep")
    if not isinstance(sweep, dict) or not sweep:
        raise ConfigError(f"{where} needs [ablation.sweep] with the lists of values to combine.")
    for key in sorted(invalid_ablation_sweep_fields(sweep, {*FILE_OPTIONS, *_OLDER})):
        near = get_close_matches(key, FILE_OPTIONS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"Invalid sweep: {where} sweeps {key!r}, which is not a setting.{hint}")
    axes: list[tuple[tuple[str, ...], list[Any]]] = []
    for key, values in sweep.items():
        if key in SWEPT_TABLES and isinstance(values, dict):
            axes += [
                ((key, name), _swept_values(f"{key}.{name}", v, where))
                for name, v in values.items()
            ]
        else:
            axes.append(((key,), _swept_values(key, values, where)))
    for (key, *name), _ in axes:
        if name and name[0] in fixed.get(key, {}):
            raise ConfigError(f"{where} both fixes and sweeps {key}.{name[0]}; keep one of them.")
    # Keys of a swept table follow the plain keys, in any order of the file.
    axes.sort(key=lambda axis: len(axis[0]))
    for combination in itertools.product(*(values for _, values in axes)):
        values, swept = dict(fixed), {}
        for (path, _), value in zip(axes, combination, strict=True):
            swept[".".join(path)] = value
            if len(path) == 1:
                values[path[0]] = value
            else:
                values[path[0]] = {**values.get(path[0], {}), path[1]: value}
        yield values, swept


def _swept_values(name: str, values: Any, where: str) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ConfigError(
            f"Invalid sweep: {where} needs a non-empty list of values for {name}; got {values!r}."
        )
    return values


def invalid_ablation_sweep_fields(sweep: Iterable[str], valid_fields: Collection[str]) -> set[str]:
    """Return the swept keys that are not settings. The keys of `env_args` are the environment's, so any are valid."""
    return set(sweep) - set(valid_fields) - set(SWEPT_TABLES)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` over `below`, key by key. A model named in one way replaces a model named in the other way."""
    merged = dict(below)
    for older, key in _OLDER.items():
        if older in above:
            merged.pop(key, None)
        if key in above:
            merged.pop(older, None)
    if any(key in above for key in _MODEL_KEYS):
        for key in _MODEL_KEYS:
            merged.pop(key, None)
    return merged | dict(above)


def _with_paths(
    values: dict[str, Any], folder: Path, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Make the path of the registry relative to the file, as in 0.1.14; other paths are relative to the working
    folder.
    """
    value = values.get("endpoints_path")
    if (
        isinstance(value, str)
        and "endpoints_path" not in overrides
        and not Path(value).is_absolute()
    ):
        values["endpoints_path"] = os.path.normpath(folder / value)
    return values


def load_toml_config(path: str | Path) -> list[dict[str, Any]]:
    """Return the settings of each evaluation as dicts: v0's form of `read_config_file`."""
    return [planned.settings for planned in read_config_file(path).evaluations]

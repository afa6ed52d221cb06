"""v0 import path of `vf-eval`; also `python -m verifiers.scripts.eval`.

Programs of v0 drive `main` with replaced parts: `argparse.ArgumentParser.parse_args`, `setup_logging`, `load_endpoints`
and `load_toml_config` of this module, and `run_evaluation` of `verifiers.utils.eval_utils`. Such a call runs in v0's
form. Any other call is `vf-eval`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

from verifiers.clients.connect import PROVIDERS
from verifiers.configs import EvalConfig
from verifiers.errors import ConfigError
from verifiers.evaluate.registry import DEFAULT_ENDPOINTS_PATH
from verifiers.evaluate.run import run_evaluation
from verifiers.evaluate.settings import (
    DEFAULT_MODEL,
    DEFAULT_NUM_EXAMPLES,
    DEFAULT_ROLLOUTS_PER_EXAMPLE,
    resolve,
    settings_of,
)
from verifiers.loading import evaluation_defaults as get_env_eval_defaults
from verifiers.logs import setup_logging
from verifiers.run_options import DEFAULT_MAX_CONCURRENT, FILE_OPTIONS, Option, choices_of, kinds_of
from verifiers.types import Endpoints
from verifiers.utils import eval_utils
from verifiers.utils.eval_utils import load_endpoints, load_toml_config
from verifiers.utils.path_utils import (
    find_latest_incomplete_eval_results_path,
    is_valid_eval_results_path,
)
from vf_cli.eval_options import OPTIONS
from vf_cli.main import eval_main

PROVIDER_CONFIGS = {name: {"url": p.base_url, "key": p.key_var} for name, p in PROVIDERS.items()}


def main() -> int:
    """Run `vf-eval` with the arguments of this process. Return the exit code."""
    is_own_parser = argparse.ArgumentParser.parse_args.__module__ == argparse.__name__
    if is_own_parser and eval_utils.run_evaluation is run_evaluation:
        return eval_main()
    arguments = build_parser().parse_args()
    setup_logging("DEBUG" if getattr(arguments, "verbose", False) else "INFO")
    for config in configs_of(arguments):
        results = asyncio.run(eval_utils.run_evaluation(config, on_progress=None))
        if isinstance(results, Mapping) and results.get("outputs"):
            eval_utils.print_results(results)  # type: ignore[arg-type]  # a plain dict is accepted
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return a parser of the arguments of `vf-eval`. Its results have the names of v0."""
    parser = argparse.ArgumentParser(prog="vf-eval")
    parser.add_argument("env_id_or_config", help="Id of an environment, or a TOML file.")
    for one in OPTIONS.values():
        parser.add_argument(
            *one.flags, dest=one.key, help=one.help.replace("%", "%%"), **_form(one)
        )
    return parser


def _form(one: Option) -> dict[str, Any]:
    """Return how `argparse` reads an option."""
    kinds = kinds_of(one)
    origins = [get_origin(kind) for kind in kinds]
    if one.name == "resume":
        return {"nargs": "?", "const": True}
    if kinds == (bool,):
        return {"action": "store_true"}
    if one.is_repeatable:
        return {"action": "append"}
    if dict in origins:
        return {"type": json.loads}
    if list in origins:
        return {"type": lambda text: [part.strip() for part in text.split(",") if part.strip()]}
    kind: Any = {(int,): int, (float,): float}.get(kinds, str)
    return {"type": kind, "choices": choices_of(one) or None}


def configs_of(arguments: argparse.Namespace) -> list[EvalConfig]:
    """Return the evaluations of the arguments. A TOML file replaces all other arguments, as in v0."""
    target = arguments.env_id_or_config
    if target.endswith(".toml"):
        return [_config(settings_of(table, target)) for table in load_toml_config(target)]
    given = {
        key: value
        for key in FILE_OPTIONS
        if key != "resume" and (value := getattr(arguments, key, None)) not in _LEFT_OUT
    }
    if given.get("endpoints_path") == DEFAULT_ENDPOINTS_PATH:
        del given["endpoints_path"]
    config = _config(settings_of({**given, "env_id": target}, "options"))
    if "timeout" in given:
        config.extra_env_kwargs["timeout_seconds"] = given["timeout"]
    config.sampling_args.setdefault("max_tokens", getattr(arguments, "max_tokens", None))
    config.resume_path = _resumed(getattr(arguments, "resume", None), config)
    return [config]


_LEFT_OUT = (None, False, "", [], {})
"""Values that count as left out; compared by equality, so 0 needs no entry: no option accepts it."""


def _config(settings: dict[str, Any]) -> EvalConfig:
    """Return the configuration. Without an endpoint it is that of v0's default provider: no request is sent here."""
    settings = {"max_concurrent": DEFAULT_MAX_CONCURRENT, **settings}
    endpoints: Endpoints = {}
    if not settings.get("api_base_url"):
        endpoints = load_endpoints(settings.get("endpoints_path") or DEFAULT_ENDPOINTS_PATH)
        name = settings.get("endpoint_id") or settings.get("model") or DEFAULT_MODEL
        if name not in endpoints:
            settings.setdefault("provider", "prime")
    return resolve(
        settings,
        environment_defaults=get_env_eval_defaults,
        read_registry=lambda _: endpoints,
    )


def _resumed(resume: str | bool | None, config: EvalConfig) -> Path | None:
    """Return the saved run to continue, or None. Raises ConfigError for a path that is not a saved run."""
    if resume is True:
        return find_latest_incomplete_eval_results_path(
            config.env_id,
            config.model,
            config.num_examples,
            config.rollouts_per_example,
            config.env_dir_path,
            config.output_dir,
        )
    if not resume:
        return None
    path = Path(resume)
    if not is_valid_eval_results_path(path):
        raise ConfigError(f"Resume path {path} is not a valid evaluation results path.")
    return path


__all__ = [
    "DEFAULT_ENDPOINTS_PATH",
    "DEFAULT_MAX_CONCURRENT",
    "DEFAULT_MODEL",
    "DEFAULT_NUM_EXAMPLES",
    "DEFAULT_ROLLOUTS_PER_EXAMPLE",
    "PROVIDER_CONFIGS",
    "build_parser",
    "get_env_eval_defaults",
    "load_endpoints",
    "load_toml_config",
    "main",
    "setup_logging",
]
if __name__ == "__main__":
    sys.exit(main())

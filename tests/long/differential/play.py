"""Play every case with the installed `verifiers` and write what was observed.

    python -m differential.play FOLDER [CASE ...]

`FOLDER/CASE/` is the run folder, `FOLDER/observed.json` the observations by case. This program runs on both sides, so
it uses public names only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from differential.cases import Case, all_cases
from differential.endpoint import ScriptedModel, serving

os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ["SCRIPTED_KEY"] = "none"


def main(folder: Path, names: list[str]) -> None:
    """Play the cases and write `observed.json`."""
    cases = all_cases()
    chosen = names or sorted(cases)
    model = ScriptedModel(cases)
    observed: dict[str, Any] = {}
    with serving(model) as base_url:
        os.environ["SCRIPTED_URL"] = base_url
        for name in chosen:
            observed[name] = asyncio.run(observe(cases[name], base_url, folder / name))
            observed[name]["requests"] = model.requests[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "observed.json").write_text(json.dumps(observed, indent=1, default=described))


async def observe(case: Case, base_url: str, folder: Path) -> dict[str, Any]:
    """Build the environment, evaluate it, and return everything that an author or a trainer can see."""
    import verifiers as vf

    seen: dict[str, Any] = {}
    os.environ["SCRIPTED_MODEL"] = case.name
    try:
        env = case.make()
    except Exception as error:
        return {"not_built": raised(error)}
    env.env_id = env.env_id or case.name
    seen["environment"] = facts(env)
    config = vf.ClientConfig(
        api_base_url=base_url, api_key_var="SCRIPTED_KEY", max_retries=0, timeout=20
    )
    options: dict[str, Any] = {
        "num_examples": -1,
        "rollouts_per_example": case.rollouts,
        "max_concurrent": 1,
        "sampling_args": dict(case.sampling),
        "state_columns": list(case.columns),
        "save_results": True,
        "results_path": folder,
        **case.evaluate,
    }
    try:
        results = await env.evaluate(client=config, model=case.name, **options)
    except Exception as error:
        seen["run_ended"] = raised(error)
        return seen
    seen["outputs"] = [plain(output) for output in results["outputs"]]
    seen["metadata"] = plain(dict(results["metadata"]))
    seen["lines"] = [
        json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()
    ]
    seen["saved_metadata"] = json.loads((folder / "metadata.json").read_text())
    if case.probe is not None:
        try:
            seen["probe"] = plain(await maybe_await(case.probe(env)))
        except Exception as error:
            seen["probe"] = raised(error)
    return seen


async def maybe_await(value: Any) -> Any:
    """Return the value, awaited if it is awaitable."""
    return await value if hasattr(value, "__await__") else value


def facts(env: Any) -> dict[str, Any]:
    """Return the parts of an environment that other programs read."""
    rubric = env.rubric
    return {
        "reward_names": list(rubric._get_reward_func_names()),
        "reward_weights": list(rubric._get_reward_weights()),
        "tool_defs": [plain(tool) for tool in (env.tool_defs or [])],
        "message_type": env.message_type,
        "system_prompt": env.system_prompt,
        "max_turns": getattr(env, "max_turns", None),
        "stop_conditions": sorted(stop.__name__ for stop in getattr(env, "_stop_conditions", [])),
    }


def raised(error: BaseException) -> dict[str, Any]:
    """Return the classes and the text of an exception."""
    names = [one.__name__ for one in type(error).__mro__]
    return {"classes": names, "text": str(error)[:500]}


def plain(value: Any) -> Any:
    """Return the value as JSON; objects by their own fields."""
    return json.loads(json.dumps(value, default=described))


def described(value: Any) -> Any:
    """Return an object that JSON does not have as its fields or its text."""
    for method in ("model_dump", "to_dict"):
        if hasattr(value, method):
            return getattr(value, method)()
    if isinstance(value, set | tuple | frozenset):
        return sorted(value)
    return str(value)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(Path(sys.argv[1]), sys.argv[2:])

"""Modules written as authors of public environments write them: every import resolves, and every hook is called.

Each module has `load_environment`, the model's `REPLIES`, the expected `REWARDS` by rollout, and `CALLED`, to which its
hooks add their names.
"""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verifiers.testing import ScriptedClient

FOLDER = Path(__file__).with_name("public_modules")
MODULES = sorted(path.stem for path in FOLDER.glob("*.py"))


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"public_modules_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*(check_done|parallelize_scoring).*:DeprecationWarning")
@pytest.mark.parametrize("name", MODULES)
async def test_a_module_in_the_style_of_public_environments_runs(name: str) -> None:
    module: Any = loaded(name)
    env = module.load_environment()
    client = module.CLIENT() if hasattr(module, "CLIENT") else ScriptedClient(module.REPLIES)
    rollouts = getattr(module, "ROLLOUTS", 1)
    results = await env.evaluate(
        client, "m", num_examples=-1, rollouts_per_example=rollouts, max_concurrent=1
    )
    await env.aclose()
    await client.close()

    outputs = results["outputs"]
    assert [error for output in outputs for error in output["errors"]] == []
    assert [output["reward"] for output in outputs] == pytest.approx(module.REWARDS)
    if hasattr(module, "check"):
        module.check(outputs)
    else:
        assert [output["error"] for output in outputs] == [None] * len(outputs)
    named = set(re.findall(r'CALLED\.append\("(\w+)"\)', (FOLDER / f"{name}.py").read_text()))
    assert named - set(module.CALLED) == set(), "these hooks were not called"

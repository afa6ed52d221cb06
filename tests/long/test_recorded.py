"""The short form of `test_differential`: results of 0.1.14 that `differential.record` has recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from differential.cases import all_cases
from differential.compare import differences, in_order
from differential.endpoint import ScriptedModel, serving
from differential.explained import explanation_of
from differential.play import observe
from differential.record import RECORDED

CASES = all_cases()
PUBLIC = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", PUBLIC)
async def test_results_are_those_of_0_1_14(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ScriptedModel(CASES)
    with serving(model) as base_url:
        for variable, value in (("URL", base_url), ("KEY", "none"), ("MODEL", name)):
            monkeypatch.setenv(f"SCRIPTED_{variable}", value)
        ours = await observe(CASES[name], base_url, tmp_path / "run")
    ours["requests"] = model.requests[name]
    ours = in_order({key: ours.get(key) for key in PUBLIC[name]})
    found = [line for line in differences(PUBLIC[name], ours) if not explanation_of(name, line)]
    assert found == []

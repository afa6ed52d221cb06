"""Record the observations of some cases with the installed `verifiers`, which must be 0.1.14, in `recorded.json`.

python -m differential.record
"""

from __future__ import annotations

import json
import logging
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from differential.compare import OF_THE_RUN, in_order, shape
from differential.play import main

RECORDED = Path(__file__).with_name("recorded.json")
CASES = [
    "broken_json",
    "class_objects",
    "completions_api",
    "every_argument",
    "few_shot_and_system_prompt",
    "final_response",
    "group_in_a_group",
    "group_reward",
    "guess_with_stop",
    "hidden_arguments",
    "hooks_in_order",
    "info_as_json_text",
    "judge_in_a_group",
    "math_rubric",
    "one_of_two_fails",
    "rubric_group",
    "think_parser_with_boxed_answer",
    "two_at_once",
]


def record() -> None:
    """Play the cases and write what was observed, without times."""
    if version("verifiers") != "0.1.14":
        raise SystemExit(f"verifiers {version('verifiers')} is installed; install 0.1.14")
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), CASES)
        observed = json.loads((Path(folder) / "observed.json").read_text())
    recorded = {name: in_order(without_the_run(one)) for name, one in observed.items()}
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in recorded.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def without_the_run(observed: dict[str, Any]) -> dict[str, Any]:
    """Return the observations without times and values of the run; lines and metadata as they were saved."""
    kept = {key: one for key, one in observed.items() if key not in ("outputs", "metadata")}
    for line in kept.get("lines", []):
        line["timing"] = shape(line["timing"])
    metadata = kept.get("saved_metadata", {})
    metadata.update(dict.fromkeys(OF_THE_RUN & set(metadata)))
    return kept


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    record()

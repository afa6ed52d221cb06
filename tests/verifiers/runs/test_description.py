import datetime
import json
from pathlib import Path

import pytest

from verifiers.runs.description import RunDescription
from verifiers.runs.prices import ModelPrice
from verifiers.runs.store import save_metadata
from verifiers.runs.summary import summarize

# In the order in which the published 0.1.14 has them in memory; `date` and `path_to_save` it does not save.
KEYS_OF_0_1_14 = [
    "env_id",
    "env_args",
    "model",
    "base_url",
    "num_examples",
    "rollouts_per_example",
    "sampling_args",
    "date",
    "time",
    "avg_reward",
    "avg_metrics",
    "avg_error",
    "pass_at_k",
    "pass_all_k",
    "pass_threshold",
    "usage",
    "version_info",
    "state_columns",
    "path_to_save",
    "tools",
]
OURS = {
    "format_version",
    "avg_reward_error_free",
    "reward_stderr",
    "reward_ci95",
    "num_errors",
    "num_failed",
    "num_reward_errors",
    "num_truncated",
    "provenance",
}


@pytest.fixture
def description():
    return RunDescription(
        env_id="e",
        model="m",
        num_examples=2,
        rollouts_per_example=2,
        env_args={"a": 1},
        base_url="http://h/v1",
        sampling_args={"temperature": 1},
        state_columns=("trajectory",),
        path_to_save=Path("somewhere"),
    )


def test_metadata_has_the_keys_of_0_1_14_in_order_and_ours(description):
    metadata = description.metadata()
    assert [key for key in metadata if key not in OURS] == KEYS_OF_0_1_14
    assert set(metadata) - set(KEYS_OF_0_1_14) == OURS


def test_metadata_tells_the_numbers_of_the_run(description):
    outputs = [
        {
            "example_id": e,
            "reward": r,
            "error": None,
            "metrics": {"turns": 2.0},
            "token_usage": {"input_tokens": 4.0},
        }
        for e, r in [(0, 1.0), (0, 0.0), (1, 1.0), (1, 1.0)]
    ]
    outputs[1]["error"] = {"error": "ModelError"}
    metadata = dict(
        description.metadata(summarize(outputs, price=ModelPrice(1e6, 0.0)), time_s=3.0)
    )
    assert metadata["avg_reward"] == 0.75
    assert metadata["avg_reward_error_free"] == 1.0
    assert metadata["avg_error"] == 0.25
    assert metadata["num_errors"] == 1
    assert metadata["avg_metrics"] == {"turns": 2.0}
    assert metadata["pass_at_k"] == {"1": 0.75, "2": 1.0}
    assert metadata["pass_all_k"] == {"1": 0.75, "2": 0.5}
    assert metadata["usage"] == {"input_tokens": 4.0}
    assert metadata["time"] == 3.0
    assert metadata["cost"]["total_usd"] == 16.0
    low, high = metadata["reward_ci95"]
    assert low < 0.75 < high


def test_what_cannot_be_computed_is_none(description):
    metadata = dict(description.metadata())
    names = ("avg_reward", "avg_reward_error_free", "reward_stderr", "reward_ci95", "usage")
    assert [metadata[name] for name in names] == [0.0, None, None, None, None]


def test_the_date_has_a_time_zone(description):
    assert datetime.datetime.fromisoformat(description.metadata()["date"]).tzinfo is not None


def test_metadata_is_saved_as_strict_json_without_the_path(description, tmp_path):
    save_metadata(description.metadata(summarize([{"example_id": 0, "reward": 1.0}])), tmp_path)
    text = (tmp_path / "metadata.json").read_text()
    saved = json.loads(text, parse_constant=pytest.fail)
    assert saved["env_id"] == "e"
    assert "path_to_save" not in saved

"""The v0 import paths for saving, metrics, usage, errors, versions and prices, and what their names do.

Expected values were observed from the published 0.1.14 (prices and `error_data`: 0.3.1).
"""

import importlib
import itertools
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verifiers import errors
from verifiers.configs import ClientConfig
from verifiers.utils import (
    error_utils,
    metric_utils,
    pricing_utils,
    save_utils,
    usage_utils,
)

NAMES = {
    "save_utils": "GenerateOutputsBuilder extract_usage_tokens get_hf_hub_dataset_name is_json_serializable"
    " load_outputs make_dataset make_serializable push_results_to_hf_hub sanitize_metadata save_metadata"
    " save_new_outputs save_outputs serialize_timing state_to_output states_to_outputs validate_resume_metadata",
    "path_utils": "find_latest_incomplete_eval_results_path get_eval_results_path get_eval_runs_dir get_results_path"
    " get_gepa_results_path is_valid_eval_results_path write_temp_file",
    "metric_utils": "EnvMetrics ErrorRateMetric FinalInputTokensMetric FinalOutputTokensMetric InputTokensMetric"
    " MeanMetric Metric OutputTokensMetric PassAtKMetric RewardMetric",
    "usage_utils": "StateUsageTracker compute_context_token_metrics extract_usage_tokens response_usage_tokens",
    "error_utils": "ErrorChain error_data error_data_to_exception error_info error_info_to_exception error_type_name"
    " get_error_chain get_vf_error_chain",
    "version_utils": "get_commit_for_path get_env_commit get_env_version get_package_source_path get_version_info"
    " get_vf_commit get_vf_version",
    "pricing_utils": "compute_cost_usd compute_eval_cost format_cost_usd",
}


@pytest.mark.parametrize("module", NAMES)
def test_every_name_is_at_its_v0_path(module):
    found = importlib.import_module(f"verifiers.utils.{module}")
    assert [name for name in NAMES[module].split() if not hasattr(found, name)] == []


def test_importing_the_v0_paths_loads_nothing_heavy():
    code = "import sys\n" + "".join(f"import verifiers.utils.{module}\n" for module in NAMES)
    code += "heavy = {'datasets', 'openai', 'pandas', 'pyarrow', 'torch', 'huggingface_hub'}\n"
    code += "print(sorted(heavy & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def out(example_id, reward, **fields):
    return save_utils.make_serializable(
        {
            "example_id": example_id,
            "reward": reward,
            "error": None,
            "metrics": {},
            "prompt": [{"role": "user", "content": "q"}],
            "completion": [{"role": "assistant", "content": "a"}],
            "tool_defs": None,
            **fields,
        }
    )


# --- metrics


def computed(metric, outputs):
    metric.add_outputs(outputs)
    return metric.compute()


def test_means():
    outputs = [
        out(
            0,
            1.0,
            metrics={"a": 1, "b": 2},
            token_usage={"input_tokens": 4.0, "output_tokens": 1.0},
        ),
        out(0, 0.0, metrics={"a": 3}, error={"error": "E"}),
        out(1, None),
    ]
    assert computed(metric_utils.RewardMetric(), outputs[:2]) == 0.5
    assert computed(metric_utils.RewardMetric(), []) == 0.0
    assert computed(metric_utils.ErrorRateMetric(), outputs[:2]) == 0.5
    assert computed(metric_utils.EnvMetrics(), outputs) == {"a": 2.0, "b": 2.0}
    assert computed(metric_utils.InputTokensMetric(), outputs) == 4.0
    assert computed(metric_utils.OutputTokensMetric(), outputs) == 1.0
    assert computed(metric_utils.FinalInputTokensMetric(), outputs) == 0.0
    metric = metric_utils.InputTokensMetric()
    metric.add_outputs(outputs)
    assert metric.count == 1
    metric.reset()
    assert metric.compute() == 0.0
    assert isinstance(metric, metric_utils.Metric)


@pytest.mark.parametrize(
    ("rewards", "rollouts", "expected"),
    [
        ({0: [1, 0, 1], 1: [0, 0, 0]}, 3, ({"1": 1 / 3, "2": 0.5}, {"1": 1 / 3, "2": 1 / 6})),
        ({0: [0, 1] * 3}, 6, ({"1": 0.5, "2": 0.8, "4": 1.0}, {"1": 0.5, "2": 0.2, "4": 0.0})),
        ({0: [1, 0], 1: [0]}, 3, ({}, {})),
        ({0: [1], 1: [0]}, 1, ({}, {})),
        ({0: [1] * 5}, 2, ({"1": 1.0, "2": 1.0}, {"1": 1.0, "2": 1.0})),
        ({}, 2, ({}, {})),
    ],
)
def test_pass_at_k(rewards, rollouts, expected):
    outputs = [out(e, float(r)) for e, rs in rewards.items() for r in rs]
    found = computed(metric_utils.PassAtKMetric(rollouts), outputs)
    assert found[0] == pytest.approx(expected[0])
    assert found[1] == pytest.approx(expected[1])


def test_metrics_start_again_after_a_reset():
    for metric in (metric_utils.PassAtKMetric(2), metric_utils.EnvMetrics()):
        metric.add_outputs([out(0, 1.0, metrics={"a": 1}), out(0, 1.0)])
        metric.reset()
        assert metric.compute() in (({}, {}), {})


# --- builder


@pytest.fixture
def builder():
    return save_utils.GenerateOutputsBuilder(
        env_id="my-env",
        env_args={"a": 1},
        model="org/m",
        client=ClientConfig(api_base_url="http://h/v1"),
        num_examples=2,
        rollouts_per_example=2,
        state_columns=None,
        sampling_args={"t": 1},
        results_path=Path("res"),
    )


def test_the_builder_gives_outputs_and_metadata(builder):
    usage = {"input_tokens": 4.0, "output_tokens": 1.0}
    builder.add_outputs([out(1, 1.0, token_usage=usage, metrics={"x": 1})])
    builder.add_outputs(
        [out(0, 0.0, error={"error": "E", "error_chain_repr": "", "error_chain_str": ""})]
    )
    results = builder.build(sort_by_example_id=True)
    assert [output["example_id"] for output in results["outputs"]] == [0, 1]
    assert [output["example_id"] for output in builder.build_outputs()] == [1, 0]
    metadata = results["metadata"]
    expected = {
        "env_id": "my-env",
        "env_args": {"a": 1},
        "model": "org/m",
        "base_url": "http://h/v1",
        "num_examples": 2,
        "rollouts_per_example": 2,
        "sampling_args": {"t": 1},
        "avg_reward": 0.5,
        "avg_metrics": {"x": 1.0},
        "avg_error": 0.5,
        "pass_threshold": 0.5,
        "usage": usage,
        "state_columns": [],
        "path_to_save": Path("res"),
        "tools": None,
    }
    assert {key: metadata[key] for key in expected} == expected
    assert metadata["time"] >= 0
    assert save_utils.get_hf_hub_dataset_name(results) == "my-env_org-m_n2_r2"
    assert "path_to_save" not in save_utils.sanitize_metadata(metadata)


def test_tools_have_a_key(builder):
    assert builder.tools_key(None) == ""
    assert (
        builder.tools_key([{"name": "a"}])
        == builder.tools_key([{"name": "a"}])
        != builder.tools_key([{"name": "b"}])
    )


# --- dataset


def test_a_run_becomes_a_dataset_with_a_column_for_every_key(builder):
    builder.add_outputs(
        [out(0, 1.0, info={"a": 1}, foo=[1]), out(1, 0.5, info={"a": "text"}, bar="s")]
    )
    dataset = save_utils.make_dataset(builder.build())
    assert dataset["reward"][:] == [1.0, 0.5]
    assert dataset[0]["prompt"] == [{"role": "user", "content": "q"}]
    assert dataset["info"][:] == [
        '{"a": 1}',
        '{"a": "text"}',
    ]  # the types differ, so the column is JSON text
    assert (dataset["foo"][:], dataset["bar"][:]) == ([[1], None], [None, "s"])


# --- usage


def test_usage_of_a_response():
    response = type(
        "R", (), {"usage": type("U", (), {"prompt_tokens": 3, "completion_tokens": 4})()}
    )()
    assert usage_utils.extract_usage_tokens(response) == (3, 4)
    assert usage_utils.extract_usage_tokens(None) == (0, 0)
    assert usage_utils.extract_usage_tokens(object()) == (0, 0)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 3, "output_tokens": 4}, (3, 4)),
        (
            {"prompt_tokens": 0, "completion_tokens": 0, "input_tokens": 3, "output_tokens": 4},
            (3, 4),
        ),
        ({"prompt_tokens": 1, "input_tokens": 9, "output_tokens": 9}, (1, 0)),
        ({"prompt_tokens": "5", "completion_tokens": float("nan")}, (5, 0)),
        ({"prompt_tokens": -1, "completion_tokens": "many"}, (0, 0)),
        ({"prompt_tokens": None, "completion_tokens": float("inf")}, (0, 0)),
    ],
)
def test_tokens_are_extracted_under_the_names_of_every_api(usage: Any, expected: Any) -> None:
    for given in (usage, SimpleNamespace(**usage)):
        assert usage_utils.extract_usage_tokens(SimpleNamespace(usage=given)) == expected
        assert usage_utils.extract_usage_tokens({"usage": given}) == expected


# --- errors


def chained(*links):
    """The last error, caused by the one before it, and so on."""
    for inner, outer in itertools.pairwise(links):
        outer.__cause__ = inner
    return links[-1]


def test_an_error_chain_reads_as_in_v0():
    error = chained(ValueError("inner"), errors.ToolCallError("outer"))
    chain = error_utils.ErrorChain(error)
    assert str(chain) == "ToolCallError -> ValueError"
    assert repr(chain) == "ToolCallError('outer') -> ValueError('inner')"
    assert errors.ToolError in chain
    assert ValueError in chain
    assert errors.ModelError not in chain
    assert chain == error_utils.ErrorChain(chained(ValueError("x"), errors.ToolCallError("y")))
    assert hash(chain) == hash(error_utils.ErrorChain(error))
    assert chain.root_error is error


def test_chains_of_this_librarys_errors_end_at_the_first_other():
    error = chained(errors.ModelError("inner"), ValueError("mid"), errors.ToolError("outer"))
    assert [type(e) for e in error_utils.get_error_chain(error)] == [
        errors.ToolError,
        ValueError,
        errors.ModelError,
    ]
    assert [type(e) for e in error_utils.get_vf_error_chain(error)] == [errors.ToolError]
    assert error_utils.get_error_chain(error, ValueError) == []
    assert error_utils.get_error_chain(None) == []


def test_saved_errors_become_exceptions_again():
    saved = error_utils.error_info(chained(ValueError("inner"), errors.ModelError("outer")))
    restored = error_utils.error_info_to_exception(saved, (errors.InfraError, errors.ModelError))
    assert type(restored) is errors.ModelError
    assert "outer" in str(restored)
    assert type(error_utils.error_info_to_exception(saved, (ValueError,))) is ValueError
    assert error_utils.error_info_to_exception(saved, (errors.SandboxError,)) is None
    assert type(error_utils.error_from_data(saved)) is errors.ModelError
    assert type(error_utils.error_from_data({"error": "Unknown"})) is errors.Error


def test_error_data():
    data = error_utils.error_data(chained(ValueError("inner"), errors.ToolCallError("outer")))
    assert (data["error"], data["message"]) == ("ToolCallError", "outer")
    assert error_utils.is_error_data(data)
    assert error_utils.validate_error_data(data) is data
    with pytest.raises(TypeError, match="have the text fields"):
        error_utils.validate_error_data({"x": 1})
    assert error_utils.error_type_name(errors.ToolError()) == "ToolError"
    assert error_utils.error_type_name({"error": "A"}) == "A"
    assert error_utils.error_type_name("A") is None
    types = error_utils.vf_error_types()
    assert (
        types.index(errors.BrowserSandboxError)
        < types.index(errors.SandboxError)
        < types.index(errors.Error)
    )


def test_prices():
    assert pricing_utils.format_cost_usd(1.5) == "$1.50"
    pricing = pricing_utils.ModelPricing(input_usd_per_mtok=2.0, output_usd_per_mtok=2.0)
    assert pricing["input_usd_per_mtok"] == 2.0


@pytest.mark.parametrize(
    "value",
    [object(), {1}, b"x", {"deep": [object()]}, print],
    ids=["object", "set", "bytes", "deep", "function"],
)
def test_a_requested_column_that_json_cannot_hold_is_named(make_state, value):
    state = make_state(secret=value)
    with pytest.raises(ValueError, match="value for 'secret' is not JSON-serializable"):
        save_utils.state_to_output(state, ["reward", "secret"])
    with pytest.raises(ValueError, match="'secret' is not JSON-serializable"):
        save_utils.states_to_outputs([state], state_columns=["secret"])
    assert "secret" not in save_utils.state_to_output(state, [])


@pytest.mark.parametrize(
    "value", [{"a": [1, None]}, (1, 2), Path("x"), ValueError("x"), datetime(2026, 1, 1), None]
)
def test_a_requested_column_of_plain_data_is_kept(make_state, value):
    [output] = save_utils.states_to_outputs([make_state(plain=value)], ["plain"])
    assert output["plain"] is value

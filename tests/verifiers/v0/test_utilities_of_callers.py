"""Functions of `verifiers.utils` in the forms that callers of v0 rely on."""

from pathlib import Path
from typing import Any

import pytest

from verifiers.utils.error_utils import ErrorChain
from verifiers.utils.eval_utils import load_endpoints, print_results

ENTRY = '[[endpoint]]\nendpoint_id = "e"\nmodel = "m"\nkey = "K"\nurl = "http://a/v1"\n'


@pytest.mark.parametrize(
    "text",
    [
        ENTRY + 'api_base_url = "http://b/v1"',
        ENTRY + 'api_key_var = "K2"',
        ENTRY + 'headers = {A = "b"}\nextra_headers = {A = "b"}',
        ENTRY + "headers = 3",
        ENTRY + 'client_type = "openai_completions"',
        "[[endpoint]",
    ],
)
def test_a_registry_that_is_not_valid_is_logged_and_counts_as_empty(
    text: str, tmp_path: Path, caplog: Any
) -> None:
    (tmp_path / "endpoints.toml").write_text(text)
    assert load_endpoints(str(tmp_path / "endpoints.toml")) == {}
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert "endpoints.toml" in record.getMessage()


def test_two_names_of_one_field_with_equal_values_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.toml"
    path.write_text(ENTRY + 'api_base_url = "http://a/v1"\napi_key_var = "K"')
    assert load_endpoints(path) == {"e": [{"model": "m", "key": "K", "url": "http://a/v1"}]}
    assert load_endpoints(tmp_path / "nothing.toml") == {}


def test_results_are_printed_by_rollout_index_with_the_mean_tokens(capsys: Any) -> None:
    outputs = [
        {
            "example_id": example,
            "prompt": [],
            "completion": [],
            "reward": example + index / 3,
            "metrics": {"f": index / 7},
            "token_usage": {
                "input_tokens": 11.0 + 2 * index,
                "output_tokens": 3.0,
                "final_input_tokens": 5.0,
                "final_output_tokens": 1.0,
            },
        }
        for example in range(2)
        for index in range(2)
    ]
    print_results({"outputs": outputs, "metadata": {}})  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("r")][1:3] == [
        "r1: [0.0, 1.0]",
        "r2: [0.333, 1.333]",
    ]
    assert lines[lines.index("r1: [0.0, 0.0]") + 1] == "r2: [0.143, 0.143]"
    assert lines[lines.index("Usage:") :] == [
        "Usage:",
        "input_tokens (avg): 12.000",
        "output_tokens (avg): 3.000",
        "final_input_tokens (avg): 5.000",
        "final_output_tokens (avg): 1.000",
    ]


def test_an_error_chain_leaves_comparisons_with_other_types_to_them() -> None:
    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    chain = ErrorChain(ValueError("x"))
    assert chain.__eq__("ValueError") is NotImplemented
    assert chain == Anything()
    assert chain != "ValueError"
    assert chain == ErrorChain(ValueError("y"))

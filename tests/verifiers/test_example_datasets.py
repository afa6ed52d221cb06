"""Rows of the public data sets as questions with answers; the data sets themselves are not fetched here."""

import logging
from typing import Any

import datasets
import pytest

import verifiers as vf
from verifiers.example_datasets import EXAMPLE_DATASETS, get_preprocess_fn
from verifiers.utils.data_utils import format_dataset
from verifiers.utils.eval_utils import quiet_datasets

GPQA = {
    "Question": "q",
    "Correct Answer": "4",
    **{f"Incorrect Answer {n}": str(n) for n in (1, 2, 3)},
}
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "gsm8k": ({"question": "q", "answer": "steps #### 5"}, "5"),
    "math": ({"problem": "q", "solution": r"so \boxed{4}"}, "4"),
    "math500": ({"problem": "q", "solution": "x", "answer": "4"}, "4"),
    "aime2024": ({"problem": "q", "answer": "025"}, "25"),
    "aime2025": ({"question": "q", "answer": "70"}, "70"),
    "amc2023": ({"problem": "q", "answer": "4"}, "4"),
    "mmlu": ({"question": "q", "choices": ["w", "x", "y", "z"], "answer": 2}, "C"),
    "mmlu_pro": ({"question": "q", "options": ["w", "x", "y", "z"], "answer": "C"}, "C"),
    "openbookqa": (
        {
            "question_stem": "q",
            "choices": {"text": ["a", "b"], "label": ["A", "B"]},
            "answerKey": "B",
        },
        "B",
    ),
    "openrs": ({"problem": "q", "solution": "x", "answer": "4"}, "4"),
    "prime_code": ({"prompt": "q", "verification_info": "{}"}, "{}"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_becomes_a_question_with_an_answer(name: str) -> None:
    row, answer = ROWS[name]
    found = get_preprocess_fn(name)(row)
    assert (set(found), found["answer"]) == ({"question", "answer"}, answer)
    assert "q" in found["question"]


def test_choices_are_shuffled_by_the_question_so_the_order_stays() -> None:
    one, other = (get_preprocess_fn("gpqa_main")(GPQA) for _ in range(2))
    assert one == other
    assert f"\n{one['answer']}: 4" in one["question"]
    letters = {
        get_preprocess_fn("gpqa_main")({**GPQA, "Question": str(n)})["answer"] for n in range(40)
    }
    assert letters == set("ABCD")


def test_every_name_has_a_test_row() -> None:
    alike = {"gpqa_main", "gpqa_diamond", "openrs_easy", "openrs_hard"}
    assert set(EXAMPLE_DATASETS) == set(ROWS) | alike


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """`datasets.load_dataset` over rows of our own: the loading around it is real, the network is not there."""
    asked: list[Any] = []

    def load_dataset(path: str, configuration: str | None) -> Any:
        asked.append((path, configuration))
        if path == "openai/gsm8k":
            rows = [{"question": f"q{n}", "answer": f"#### {n}"} for n in range(10)]
            return datasets.DatasetDict(test=datasets.Dataset.from_list(rows))
        if path == "knoveleng/open-rs":
            rows = [{"problem": "q", "answer": level, "level": level} for level in ("Easy", "Hard")]
            return datasets.DatasetDict(train=datasets.Dataset.from_list(rows))
        if path == "opencompass/AIME2025":
            return datasets.DatasetDict(
                test=datasets.Dataset.from_list([{"question": "q", "answer": configuration}])
            )
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    datasets.disable_progress_bars()
    return asked


def test_loading(loaded: list[Any]) -> None:
    dataset = vf.load_example_dataset("gsm8k")
    assert (dataset.column_names, len(dataset), dataset[3]) == (
        ["question", "answer"],
        10,
        {"question": "q3", "answer": "3"},
    )
    some = vf.load_example_dataset("gsm8k", n=3, seed=1)
    assert (
        some["question"]
        == vf.load_example_dataset("gsm8k", n=3, seed=1)["question"]
        != ["q0", "q1", "q2"]
    )
    assert vf.load_example_dataset("openrs_hard")["answer"] == ["Hard"]
    assert vf.load_example_dataset("aime2025")["answer"] == ["AIME2025-I", "AIME2025-II"]
    assert loaded[0] == ("openai/gsm8k", "main")


def test_what_cannot_be_loaded_says_why_and_what_to_do(loaded: list[Any]) -> None:
    with pytest.raises(ValueError, match="'nq' is not supported; supported: aime2024"):
        vf.load_example_dataset("nq")
    with pytest.raises(ValueError, match="has no split 'dev'; it has test"):
        vf.load_example_dataset("gsm8k", split="dev")
    with pytest.raises(
        vf.DatasetError,
        match=r"HuggingFaceH4/MATH-500\) could not be loaded: ConnectionError: no network",
    ):
        vf.load_example_dataset("math500")


def test_v0s_format_dataset() -> None:
    rows = datasets.Dataset.from_list([{"q": "2+2?", "a": "4"}])
    [row] = format_dataset(
        rows, "Be brief.", question_key="q", answer_key="a", map_kwargs={"num_proc": None}
    )
    assert [m["content"] for m in row["prompt"]] == ["Be brief.", "2+2?"]
    assert (row["answer"], row["example_id"]) == ("4", 0)


@pytest.mark.parametrize("shows_bars", [True, False])
def test_datasets_is_quiet_in_the_block_and_as_before_after_it(shows_bars: bool) -> None:
    (datasets.enable_progress_bars if shows_bars else datasets.disable_progress_bars)()
    datasets.utils.logging.set_verbosity_info()
    try:
        with quiet_datasets():
            assert datasets.utils.logging.get_verbosity() == logging.WARNING
            assert datasets.are_progress_bars_disabled()
        assert datasets.utils.logging.get_verbosity() == logging.INFO
        assert datasets.are_progress_bars_disabled() is not shows_bars
    finally:
        datasets.utils.logging.set_verbosity_warning()
        datasets.enable_progress_bars()


def test_the_loader_is_also_at_the_path_of_the_oldest_releases() -> None:
    from verifiers.utils import load_example_dataset

    assert load_example_dataset is vf.load_example_dataset

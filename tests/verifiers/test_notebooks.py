"""Results and progress in a notebook, and as a pandas table."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.notebooks import NotebookProgress
from verifiers.testing import ScriptedClient


def is_right(completion: Any, answer: str) -> float:
    return float(answer in completion[-1]["content"])


def make_env() -> vf.Environment:
    rows = [{"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(3)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[is_right]))


def evaluated(reply: str = "2", **options: Any) -> vf.GenerateOutputs:
    return make_env().evaluate_sync(
        ScriptedClient(then=reply), "scripted", rollouts_per_example=2, **options
    )


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A kernel that keeps what is displayed, in the order of display and update."""
    shown: list[str] = []

    def display(html: Any, *, display_id: bool) -> Any:
        assert display_id
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython).update(get_ipython=lambda: SimpleNamespace(kernel=object()), display=displays)
    vars(displays).update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return shown


def test_results_are_a_pandas_table_with_a_row_per_rollout() -> None:
    table = evaluated().to_pandas()

    assert len(table) == 6
    assert list(table.columns[:4]) == ["example_id", "rollout_index", "reward", "is_right"]
    assert list(table["example_id"]) == [0, 0, 1, 1, 2, 2]
    assert list(table["rollout_index"]) == [0, 1, 0, 1, 0, 1]
    assert dict(table.groupby("example_id")["reward"].mean()) == {0: 0.0, 1: 1.0, 2: 0.0}
    assert table["completion"][0][-1]["content"] == "2"
    assert table["error"].isna().all()


def test_failed_rollouts_and_no_rollouts_are_pandas_tables_too() -> None:
    failed = vf.GenerateOutputs(outputs=[{"error": {"error": "ModelError"}, "reward": 0.0}])

    assert list(failed.to_pandas()["error"]) == ["ModelError"]
    assert list(vf.GenerateOutputs(outputs=[]).to_pandas()["reward"]) == []


def test_results_show_a_table_in_a_notebook() -> None:
    html = evaluated()._repr_html_()

    assert "6 rollouts" in html
    assert "reward 0.333 ± " in html
    assert html.count("<tr>") == 7
    assert "<th>is_right</th>" in html


def test_the_table_of_a_notebook_is_bounded_and_says_where_the_rest_is() -> None:
    many = vf.GenerateOutputs(outputs=[{"completion": "x" * 5000, "reward": 1.0}] * 1000)

    html = many._repr_html_()

    assert len(html) < 20_000
    assert "980 more rollouts" in html
    assert "to_pandas" in html


def test_completions_cannot_run_in_the_notebook_of_the_reader() -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    html = evaluated(attack)._repr_html_()
    hostile = vf.GenerateOutputs(
        outputs=[{"metrics": {attack: attack}, "stop_condition": attack, "error": attack}],
        metadata={"model": attack, "env_id": attack},
    )._repr_html_()

    for text in (html, hostile):
        assert "<script" not in text
        assert "<img" not in text


def test_a_run_in_a_notebook_shows_its_progress(notebook: list[str]) -> None:
    evaluated()

    assert "0 of 6 rollouts" in notebook[0]
    assert "6 of 6 rollouts" in notebook[-1]
    assert "reward 0.333" in notebook[-1]


@pytest.mark.parametrize("options", [{"use_tqdm": False}, {"on_progress": lambda *_: None}])
def test_callbacks_or_use_tqdm_replace_the_progress_of_a_notebook(
    notebook: list[str], options: dict[str, Any]
) -> None:
    evaluated(**options)

    assert notebook == []


def test_without_a_notebook_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    evaluated()

    assert capsys.readouterr() == ("", "")


def test_many_groups_update_the_display_a_few_times_a_second(notebook: list[str]) -> None:
    progress = NotebookProgress(clock=lambda: 1.0)  # all within one moment
    progress.start([None] * 1000, None)
    outputs = [{"reward": 1.0}] * 1000
    for done in range(1, 1001):
        progress.update(outputs[:done], outputs[:1], None)

    assert len(notebook) == 2

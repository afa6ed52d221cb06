"""Columns that no rollout has are said; those that some have are not."""

import logging

import pytest

from verifiers.runs.output import StateColumns


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, "verifiers.runs.output")
    return lambda: [record.getMessage() for record in caplog.records]


def output(**fields):
    return {"example_id": 0, "error": None, **fields}


def test_a_column_that_some_rollouts_have_is_nobodys_mistake(said):
    columns = StateColumns(["late"])
    columns.saw([output(late=None)], [{"other": 1}])
    columns.saw([output(late=3)], [{"late": 3}])
    columns.report()
    assert said() == []


def test_a_key_whose_value_is_none_is_there(said):
    columns = StateColumns(["note"])
    columns.saw([output(note=None)], [{"note": None}])
    columns.report()
    assert said() == []


def test_a_slip_is_said_after_the_first_rollout_and_not_again(said):
    columns = StateColumns(["scroe"])
    for _ in range(3):
        columns.saw([output(scroe=None)], [{"score": 1}])
    columns.report()
    assert said() == ["The first rollout has no state column 'scroe' (did you mean 'score'?)."]


def test_what_is_unlike_any_key_is_said_once_at_the_end(said):
    columns = StateColumns(["zzz", "qqq"])
    columns.saw([output(zzz=None, qqq=None)], [{"score": 1}])
    assert said() == []
    columns.report()
    [message] = said()
    assert message.startswith(
        "No rollout had a state column 'zzz', 'qqq'. Saved as null. Existing keys"
    )
    assert "score" in message
    assert "scope" not in message, "live objects cannot be saved"


def test_failed_rollouts_prove_nothing(said):
    columns = StateColumns(["plan"])
    columns.saw([output(plan=None, error={"error": "ModelError"})], [{"plam": 1}])
    columns.report()
    assert said() == []


def test_rollouts_of_another_process_are_judged_by_their_values(said):
    columns = StateColumns(["plan", "plam"])
    columns.saw([output(plan=1, plam=None)], None)
    columns.report()
    assert said() == ["The first rollout has no state column 'plam' (did you mean 'plan'?)."]


def test_the_librarys_own_keys_are_always_right(said):
    columns = StateColumns(["advantage", "trajectory", "timed_out", "usage"])
    columns.saw([output()], [{"score": 1}])
    columns.report()
    assert said() == []


def test_without_columns_nothing_is_looked_at():
    columns = StateColumns([])
    columns.saw([output()], None)
    assert columns.missing == []

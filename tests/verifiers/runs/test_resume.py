import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.errors import BrowserSandboxError, ConfigError
from verifiers.runs.folders import runs_folder
from verifiers.runs.resume import (
    DatasetChanged,
    RunMismatch,
    differences,
    failed_by_infrastructure,
    find_latest_incomplete,
    plan,
    validate_resume_metadata,
)
from verifiers.runs.store import RunNotFound, RunStore, save_metadata
from verifiers.tasks import input_key


def row(example_id, text="q"):
    return {
        "example_id": example_id,
        "prompt": [{"role": "user", "content": f"{text}{example_id}"}],
        "answer": "a",
    }


def rollout(of, rollout_index=None, error=None):
    saved = {
        "example_id": of["example_id"],
        "input_key": input_key(of),
        "reward": 1.0,
        "error": error,
    }
    return saved if rollout_index is None else {**saved, "rollout_index": rollout_index}


def error(name):
    return {"error": name, "error_chain_repr": name, "error_chain_str": name}


def wanted(found):
    return [(m.row["example_id"], m.rollout_index) for m in found.missing]


ROWS = [row(i) for i in range(3)]


def test_a_new_run_misses_everything():
    assert wanted(plan(ROWS[:2], 2, [])) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_only_what_is_missing_is_run():
    saved = [rollout(ROWS[0], 1), rollout(ROWS[2], 0)]
    found = plan(ROWS, 2, saved)
    assert wanted(found) == [(0, 0), (1, 0), (1, 1), (2, 1)]
    assert found.kept == (0, 1)
    assert [(r["example_id"], indices) for r, indices in found.groups()] == [
        (0, [0]),
        (1, [0, 1]),
        (2, [1]),
    ]
    assert str(found) == "2 rollouts saved, 4 to run"


def test_more_examples_and_more_rollouts_run_only_the_difference():
    saved = [rollout(r, i) for r in ROWS[:2] for i in range(2)]
    assert wanted(plan(ROWS, 2, saved)) == [(2, 0), (2, 1)]
    assert wanted(plan(ROWS[:2], 3, saved)) == [(0, 2), (1, 2)]


def test_fewer_examples_and_rollouts_leave_the_rest_as_surplus():
    saved = [rollout(r, i) for r in ROWS for i in range(2)]
    found = plan(ROWS[:1], 1, saved)
    assert (found.missing, found.kept, found.surplus) == ((), (0,), (1, 2, 3, 4, 5))


def test_lines_of_0_1_14_are_numbered_in_the_order_they_were_saved():
    saved = [
        {"example_id": 0, "reward": 1.0},
        rollout(ROWS[0], 0),
        {"example_id": 0, "reward": 0.0},
    ]
    found = plan(ROWS[:1], 4, saved)
    assert (wanted(found), found.kept) == ([(0, 3)], (0, 1, 2))


def test_a_duplicate_is_surplus():
    assert plan(ROWS[:1], 2, [rollout(ROWS[0], 0), rollout(ROWS[0], 0)]).surplus == (1,)


def test_rows_may_carry_their_key():
    rows = [{**ROWS[0], "input_key": "given"}]
    assert (
        plan(rows, 1, [{"example_id": 0, "input_key": "given", "rollout_index": 0}]).missing == ()
    )


def test_a_changed_row_is_refused_and_named():
    with pytest.raises(
        DatasetChanged, match=r"1 saved examples now have other content .*\(example ids 1\)"
    ) as caught:
        plan([ROWS[0], row(1, "other")], 1, [rollout(r, 0) for r in ROWS[:2]])
    assert isinstance(caught.value, ConfigError)


def test_a_changed_order_is_recognised():
    rows = [{**ROWS[1], "example_id": 0}, {**ROWS[0], "example_id": 1}]
    with pytest.raises(DatasetChanged, match="2 of the old rows are now at another position"):
        plan(rows, 1, [rollout(r, 0) for r in ROWS[:2]])


def test_a_changed_row_is_run_again_on_request():
    rows = [ROWS[0], row(1, "other")]
    found = plan(rows, 1, [rollout(r, 0) for r in ROWS[:2]], on_changed="rerun")
    assert wanted(found) == [(1, 0)]
    assert found.kept == (0,)
    assert [*found.superseded] == [1]
    assert "the row changed" in found.superseded[1]
    assert found.changed[0].current_key == input_key(rows[1])
    assert (
        str(found) == "1 rollouts saved, 1 to run; 1 saved rollouts run again; 1 examples changed"
    )


def test_a_changed_row_is_kept_on_request():
    found = plan(
        [ROWS[0], row(1, "other")], 2, [rollout(r, 0) for r in ROWS[:2]], on_changed="keep"
    )
    assert wanted(found) == [(0, 1), (1, 1)]
    assert found.kept == (0, 1)
    assert not found.superseded
    assert [changed.example_id for changed in found.changed] == [1]


def test_failures_are_tried_again_on_request():
    saved = [
        rollout(ROWS[0], 0, error("RateLimitError")),
        rollout(ROWS[0], 1, error("BrowserSandboxError")),
        rollout(ROWS[0], 2, error("RewardError")),
        rollout(ROWS[0], 3),
    ]
    assert plan(ROWS[:1], 4, saved).missing == ()
    found = plan(ROWS[:1], 4, saved, is_retryable=failed_by_infrastructure)
    assert wanted(found) == [(0, 0), (0, 1)]
    assert found.superseded[0] == "it failed with RateLimitError and is tried again"


def test_author_mistakes_are_no_infrastructure_failures():
    assert BrowserSandboxError  # loaded, so its name is known
    assert not failed_by_infrastructure({"error": error("EnvironmentCodeError")})
    assert not failed_by_infrastructure({"error": None})
    assert failed_by_infrastructure({"error": error("TunnelError")})


def test_groups_scored_together_are_run_again_whole():
    saved = [rollout(ROWS[0], 0), rollout(ROWS[0], 1), rollout(ROWS[1], 1)]
    found = plan(ROWS[:2], 2, saved, whole_groups=True)
    assert wanted(found) == [(1, 0), (1, 1)]
    assert found.kept == (0, 1)
    assert found.superseded == {2: "its group is scored together and was not complete"}


def test_a_failed_member_takes_its_group_along():
    saved = [rollout(ROWS[0], 0), rollout(ROWS[0], 1, error("TunnelError"))]
    found = plan(ROWS[:1], 2, saved, whole_groups=True, is_retryable=failed_by_infrastructure)
    assert wanted(found) == [(0, 0), (0, 1)]
    assert set(found.superseded) == {0, 1}


def test_impossible_requests_are_named():
    with pytest.raises(ConfigError, match="at least 1; got 0"):
        plan(ROWS, 0, [])
    with pytest.raises(ConfigError, match="Two rows have the example_id 0"):
        plan([ROWS[0], ROWS[0]], 1, [])


# --- properties

NAMES = st.sampled_from(["RateLimitError", "RewardError", None])


@st.composite
def runs(draw):
    count = draw(st.integers(1, 5))
    rows = [row(i) for i in range(count)]
    changed = draw(st.sets(st.integers(0, count - 1)))
    saved = []
    for _ in range(draw(st.integers(0, 20))):
        number = draw(st.integers(0, count + 1))
        source = row(number, "old" if number in changed and draw(st.booleans()) else "q")
        index = draw(st.none() | st.integers(0, 4))
        name = draw(NAMES)
        saved.append(rollout(source, index, None if name is None else error(name)))
    options = {
        "whole_groups": draw(st.booleans()),
        "is_retryable": draw(st.sampled_from([None, failed_by_infrastructure])),
        "on_changed": draw(st.sampled_from(["rerun", "keep"])),
    }
    return rows, draw(st.integers(1, 4)), saved, options


@given(runs())
def test_saved_and_missing_are_exactly_what_is_wanted(run):
    rows, rollouts_per_example, saved, options = run
    found = plan(rows, rollouts_per_example, saved, **options)
    parts = [*found.kept, *found.superseded, *found.surplus]
    assert sorted(parts) == list(range(len(saved)))  # every saved rollout is in exactly one part
    missing = wanted(found)
    assert len(missing) == len(set(missing))
    assert len(missing) + len(found.kept) == len(rows) * rollouts_per_example
    for r in rows:
        kept = [p for p in found.kept if saved[p]["example_id"] == r["example_id"]]
        numbered = {saved[p]["rollout_index"] for p in kept if "rollout_index" in saved[p]}
        to_run = {i for e, i in missing if e == r["example_id"]}
        assert not numbered & to_run
        assert len(kept) + len(to_run) == rollouts_per_example
        if options["whole_groups"]:
            assert not kept or not to_run
        for p in kept:
            assert options["on_changed"] == "keep" or saved[p]["input_key"] == input_key(r)


@given(runs())
def test_after_running_what_is_missing_nothing_is_missing(run):
    rows, rollouts_per_example, saved, options = run
    found = plan(rows, rollouts_per_example, saved, **options)
    left = [output for position, output in enumerate(saved) if position not in found.superseded]
    done = left + [rollout(m.row, m.rollout_index) for m in found.missing]
    again = plan(rows, rollouts_per_example, done, **options)
    assert (again.missing, again.superseded) == ((), {})
    assert len(again.kept) == len(rows) * rollouts_per_example


@given(runs())
def test_planning_twice_gives_the_same_plan(run):
    rows, rollouts_per_example, saved, options = run
    assert plan(rows, rollouts_per_example, saved, **options) == plan(
        rows, rollouts_per_example, iter(saved), **options
    )


# --- with a store


def test_a_plan_is_carried_out_on_a_run_folder(tmp_path):
    with RunStore.create(tmp_path / "run", {}) as store:
        store.append_and_wait([rollout(ROWS[0], 0, error("TunnelError")), rollout(ROWS[1], 0)])
        found = plan(ROWS, 1, store.outputs(), is_retryable=failed_by_infrastructure)
        store.supersede(found.superseded)
        store.append_and_wait([rollout(m.row, m.rollout_index) for m in found.missing])
        assert plan(ROWS, 1, store.outputs(), is_retryable=failed_by_infrastructure).missing == ()
        assert sorted(o.example_id for o in store.outputs()) == [0, 1, 2]


# --- settings

SAVED = {
    "env_id": "e",
    "model": "m",
    "num_examples": 2,
    "rollouts_per_example": 2,
    "sampling_args": {"temperature": 1},
}


@pytest.fixture
def saved_run(tmp_path):
    save_metadata(SAVED, tmp_path)
    return tmp_path


@pytest.mark.parametrize("grown", [(2, 2), (3, 2), (2, 3), (-1, 2)])
def test_a_run_may_grow(saved_run, grown):
    validate_resume_metadata(saved_run, "e", "m", *grown, sampling_args={"temperature": 1})


def test_every_setting_that_differs_is_named(saved_run):
    with pytest.raises(ValueError, match="cannot be continued") as caught:
        validate_resume_metadata(
            saved_run, "x", "y", 1, 1, sampling_args={"temperature": 0}, env_args={"a": 1}
        )
    assert isinstance(caught.value, RunMismatch)
    message = str(caught.value)
    assert "env_id: saved 'e', requested 'x'" in message
    assert "model: saved 'm', requested 'y'" in message
    assert "num_examples: saved 2, requested 1 (it may only grow)" in message
    assert "rollouts_per_example: saved 2, requested 1 (it may only grow)" in message
    assert "sampling_args: saved {'temperature': 1}, requested {'temperature': 0}" in message
    assert "env_args" not in message  # the saved run does not say


def test_settings_are_compared_as_json():
    assert differences({"env_args": {"sizes": [1, 2]}}, {"env_args": {"sizes": (1, 2)}}) == []


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(RunNotFound):
        validate_resume_metadata(tmp_path / "no", "e", "m", 1, 1)


# --- the run to continue


def test_the_latest_run_with_rollouts_missing_is_found(make_run):
    runs = runs_folder("my-env", "m")
    half = make_run(runs / "aaaaaaaa", 1, 100)
    full = make_run(runs / "bbbbbbbb", 4, 200)
    assert find_latest_incomplete("my-env", "m", 2, 2) == half
    assert (
        find_latest_incomplete("my-env", "m", 3, 2) == full
    )  # a larger -n continues the complete one
    assert find_latest_incomplete("my-env", "m", 2, 3) == full  # and so does a larger -r
    assert find_latest_incomplete("my-env", "m", 2, 1) is None
    assert find_latest_incomplete("other", "m", 2, 2) is None


def test_runs_with_other_settings_or_broken_metadata_are_passed_over(make_run):
    runs = runs_folder("my-env", "m")
    make_run(runs / "1", 0, 1, model="other")
    make_run(runs / "2", 0, 1, num_examples=5)
    make_run(runs / "3", 0, 1, env_id="other")
    (make_run(runs / "4", 0, 1) / "metadata.json").write_text("{half")
    (make_run(runs / "5", 0, 1) / "metadata.json").write_text("[]")
    assert find_latest_incomplete("my-env", "m", 2, 2) is None


def test_a_half_written_line_does_not_count_as_saved(make_run):
    folder = make_run(runs_folder("my-env", "m") / "aaaaaaaa", 3, 100)
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"example_id": 0, "rew')
    assert find_latest_incomplete("my-env", "m", 2, 2) == folder

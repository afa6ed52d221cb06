"""`State`: one flat dict, with the dataset row as a view that writes through."""

import copy
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import verifiers as vf
from verifiers.state import StateUsageTracker
from verifiers.testing import ScriptedClient
from verifiers.utils.save_utils import state_to_output

keys = st.sampled_from(["answer", "info", "mine", "other"])
operations = st.lists(
    st.tuples(
        st.sampled_from(["set", "delete", "set in input", "delete in input", "update", "pop"]),
        keys,
        st.integers(),
    )
)


def state(**fields: Any) -> vf.State:
    return vf.State.for_row({"prompt": [], "answer": "4", "info": {}, **fields})


@given(operations)
def test_the_view_of_the_row_and_the_state_never_disagree(
    steps: list[tuple[str, str, int]],
) -> None:
    made, model = state(), {"prompt": [], "answer": "4", "info": {}}
    row = set(model)
    for what, key, value in steps:
        if what in ("set", "update"):
            made.update({key: value}) if what == "update" else made.__setitem__(key, value)
            model[key] = value
        elif what == "set in input":
            made["input"][key] = value
            model[key] = value
            row.add(key)
        elif what in ("delete", "pop") and key in model:
            made.pop(key) if what == "pop" else made.__delitem__(key)
            del model[key]
        elif what == "delete in input" and key in model and key in row:
            del made["input"][key]
            del model[key]
            row.discard(key)
    assert dict(made) == model
    assert dict(made["input"]) == {key: model[key] for key in row if key in model}
    assert all((key in made) == (key in model) for key in ("answer", "info", "mine", "other"))


def test_input_fields_are_ordinary_keys() -> None:
    made = state()
    assert "answer" in made
    made.update(answer="new")
    assert made["answer"] == made["input"]["answer"] == "new"
    assert "mine" not in made["input"]
    made["mine"] = 1
    with pytest.raises(KeyError):
        made["input"]["mine"]


def test_a_state_of_generation_b_is_made_with_its_input() -> None:
    made = vf.State(input={"prompt": [], "answer": "4"}, extra=1)
    assert (made["answer"], made["extra"], made["input"].copy()) == (
        "4",
        1,
        {"prompt": [], "answer": "4"},
    )
    made["input"] = {"answer": "5"}
    assert made["answer"] == "5"


def test_framework_keys_are_attributes_too() -> None:
    made = state()
    made.reward = 1.0
    assert (made["reward"], made.reward, made.error) == (1.0, 1.0, None)


def test_views_of_older_names() -> None:
    made = state(
        trajectory=[{"response": "r1"}, {"response": "r2"}], tool_defs=["t"], usage={"n": 1}
    )
    assert made["responses"] == ["r1", "r2"]
    assert (made["turn"], made["oai_tools"], made["usage_tracker"]) == (2, ["t"], {"n": 1})
    assert made.get("responses") == ["r1", "r2"]
    made["turn"] += 5
    assert made["turn"] == 7


def test_a_row_without_a_task_is_its_own_task() -> None:
    assert state()["task"]["answer"] == "4"
    assert state(task="sums")["task"] == "sums"
    assert state().get("task") is None


def test_missing_keys() -> None:
    with pytest.raises(KeyError, match="nope"):
        state()["nope"]
    assert state().get("nope", 3) == 3


@pytest.mark.parametrize(
    "how", [copy.copy, vf.State.copy, lambda s: pickle.loads(pickle.dumps(s)), copy.deepcopy]
)
def test_copies_know_their_row_and_leave_live_objects_where_they_are(how: Any) -> None:
    made = state(mine=[1])
    copied = how(made)
    assert type(copied) is vf.State
    assert copied == made
    assert copied.input_fields == made.input_fields
    copied["answer"] = "other"
    assert made["answer"] == "4"


def test_pickling_drops_live_objects() -> None:
    made = state()
    made["client"] = lambda: None  # cannot be pickled
    assert "client" not in pickle.loads(pickle.dumps(made))


def test_what_json_cannot_hold_is_named() -> None:
    made = state(mine={"deep": object()})
    with pytest.raises(TypeError, match=r"state\['mine'\] is not JSON serializable"):
        made.assert_serializable()
    state(mine=vf.UserMessage(content="x"), client=object()).assert_serializable()
    json.dumps(state().saved_items())


def test_the_row_stays_a_mapping_when_a_column_is_called_input() -> None:
    made = vf.State.for_row({"prompt": [], "answer": "4", "input": "2+2"})
    assert dict(made["input"]) == {"prompt": [], "answer": "4", "input": "2+2"}
    assert made["input"]["input"] == made.get("input")["input"] == "2+2"
    assert made["task"]["input"] == "2+2"
    for copied in (made.copy(), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert copied["input"]["input"] == "2+2"
    made["input"]["input"] = "3+3"
    assert (made["input"]["input"], "input" in dict(made)) == ("3+3", False)
    del made["input"]["input"]
    assert dict(made["input"]) == {"prompt": [], "answer": "4"}


@pytest.mark.parametrize("how", ["update", "update by name", "|=", "set", "in the constructor"])
def test_however_input_is_written_it_replaces_the_row(how: str) -> None:
    row = {"answer": "5", "input": {"deep": 1}}
    made = vf.State(input=row) if how == "in the constructor" else vf.State.for_row({"answer": "4"})
    if how == "update":
        made.update({"input": row, "mine": 1})
    elif how == "update by name":
        made.update(input=row)
    elif how == "|=":
        made |= {"input": row}
    elif how == "set":
        made["input"] = row
    assert dict(made["input"]) == row
    assert made.setdefault("input", {})["answer"] == made["answer"] == "5"


def test_text_in_place_of_the_row_is_refused() -> None:
    with pytest.raises(TypeError, match=r"state\['input'\] is the dataset row, and 'text' is not"):
        state()["input"] = "text"


def test_a_tracker_counts_calls_and_shows_a_live_view_that_nobody_can_change() -> None:
    tracker = StateUsageTracker()
    view = tracker.usage
    assert (dict(view), tracker.snapshot()) == ({"input_tokens": 0.0, "output_tokens": 0.0}, None)
    tracker.increment(3, "4", mark_seen=False)  # type: ignore[arg-type]  # text, as some endpoints send
    assert (view["output_tokens"], tracker.snapshot()) == (4.0, None)
    tracker.increment_from_response(SimpleNamespace(usage=None))
    assert tracker.snapshot() is None
    tracker.increment_from_response(SimpleNamespace(usage={"input_tokens": 1, "output_tokens": 2}))
    assert tracker.snapshot() == {"input_tokens": 4.0, "output_tokens": 6.0}
    with pytest.raises(TypeError):
        view["input_tokens"] = 1.0  # type: ignore[index]  # what is tested
    with pytest.raises(ValueError, match="non-negative; got -1"):
        tracker.increment(-1)


async def test_a_rollout_counts_its_tokens_whatever_an_author_writes_into_usage() -> None:
    class Own(vf.SingleTurnEnv):
        async def setup_state(self, state: vf.State) -> vf.State:
            state["usage"] = {"input_tokens": 100.0, "output_tokens": 100.0}
            return state

    env = Own(dataset=[{"question": "q"}], rubric=vf.Rubric(), max_total_completion_tokens=50)
    state = await env.rollout(env.get_dataset()[0], ScriptedClient(["12345"]), "m")
    assert (state.error, state["usage"]["input_tokens"]) == (None, 100.0)
    output = state_to_output(state)
    assert output["token_usage"]["output_tokens"] == state["usage_tracker"]["output_tokens"] < 50
    assert "usage_tracker" not in output
    assert pickle.loads(pickle.dumps(state))["usage"] == state["usage"]
    state["usage_tracker"].increment(0, 7)
    assert env.get_state_usage(state) == dict(state["usage_tracker"])

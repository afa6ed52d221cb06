"""Constructing an environment, its datasets, and what it warns of."""

import logging
import threading
import warnings
from typing import Any

import pytest
from datasets import Dataset

import verifiers as vf
from verifiers.envs.environment import UnknownArgumentWarning
from verifiers.tasks import Rows
from verifiers.testing import ScriptedClient, run

ROWS = [{"question": f"q{number}", "answer": str(number)} for number in range(5)]


def single(**kwargs: Any) -> vf.SingleTurnEnv:
    return vf.SingleTurnEnv(**{"dataset": ROWS, **kwargs})


def contents(rows: Any) -> list[str]:
    return [row["prompt"][-1]["content"] for row in rows]


# ------------------------------------------------------------------------------------------------ datasets


def generator() -> Any:
    yield from ROWS


@pytest.mark.parametrize(
    "dataset",
    [
        ROWS,
        Dataset.from_list(ROWS),
        lambda: ROWS,
        lambda: Dataset.from_list(ROWS),
        generator,
        iter(ROWS),
    ],
    ids=["list", "Dataset", "builds a list", "builds a Dataset", "generator function", "iterator"],
)
async def test_a_dataset_may_be_given_in_many_ways(dataset: Any) -> None:
    env = single(dataset=dataset)
    client = ScriptedClient(then="x")
    outputs = await run(env, client, n=3)
    assert [output["answer"] for output in outputs] == ["0", "1", "2"]
    assert [output["example_id"] for output in outputs] == [0, 1, 2]
    assert contents(env.get_dataset(n=2)) == ["q0", "q1"]


def test_a_builder_runs_when_rows_are_first_needed_and_once() -> None:
    built = []

    def build() -> Any:
        built.append(1)
        return ROWS

    env = single(dataset=build)
    assert built == []
    assert len(env.get_dataset()) == len(env.get_dataset(n=3, seed=1)) + 2 == 5
    assert built == [1]


@pytest.mark.parametrize("kind", [list, Dataset.from_list])
def test_a_seed_shuffles_what_is_returned_and_nothing_else(kind: Any) -> None:
    env = single(dataset=kind(ROWS))
    first = contents(env.get_dataset(seed=7))
    assert first == contents(env.get_dataset(seed=7)) != contents(env.get_dataset())
    assert contents(env.get_dataset()) == [f"q{number}" for number in range(5)]
    assert sorted(first) == contents(env.get_dataset())


def test_lists_and_arrow_datasets_are_shuffled_alike() -> None:
    one, other = single(dataset=ROWS), single(dataset=Dataset.from_list(ROWS))
    for seed in range(4):
        assert contents(one.get_dataset(seed=seed)) == contents(other.get_dataset(seed=seed))


def test_list_rows_keep_their_own_keys() -> None:
    rows = [
        {"question": "a", "info": {"x": 1}, "prompt": None},
        {
            "prompt": [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "user", "content": "b", "name": None},
            ],
            "info": {"y": [1]},
        },
    ]
    first, second = single(dataset=rows).get_dataset()
    assert first["info"] == {"x": 1}
    assert second["info"] == {"y": [1]}
    assert not any(value is None for message in second["prompt"] for value in message.values())


def test_rows_answer_to_the_common_methods_of_a_dataset() -> None:
    rows = single().get_dataset()
    assert isinstance(rows, Rows)
    assert rows.column_names == ["question", "answer", "example_id", "prompt"]
    assert rows["answer"] == ["0", "1", "2", "3", "4"]
    assert contents(rows.select([3, 1])) == ["q3", "q1"]
    assert contents(rows[1:3]) == ["q1", "q2"]
    assert rows.filter(lambda row: row["answer"] == "4")[0]["example_id"] == 4
    assert isinstance(rows.select_columns(["question", "answer"]).to_dataset(), Dataset)


def test_the_evaluation_set_falls_back_to_the_training_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "verifiers"):
        assert len(single().get_eval_dataset(n=2)) == 2
    assert "falling back to train dataset" in caplog.text
    own = single(eval_dataset=[{"question": "held out"}])
    assert contents(own.get_eval_dataset()) == ["held out"]


def test_an_environment_without_any_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="Either dataset or eval_dataset must be provided"):
        vf.SingleTurnEnv()
    only_eval = vf.SingleTurnEnv(eval_dataset=ROWS)
    with pytest.raises(ValueError, match="dataset is not set"):
        only_eval.get_dataset()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([{"text": "x"}], r"Row 0 has neither 'prompt' nor 'question'; its keys are \['text'\]"),
        ([{"prompt": [{"role": "user"}]}], "needs a 'content'"),
        ([{"prompt": [{"role": "alien", "content": "x"}]}], "Unknown role 'alien'"),
        ([{"prompt": 5}], "prompt must be text or a list of messages; got int"),
        (["question"], "Row 0 is a str, not a dict"),
        ({"train": ROWS}, r"not a mapping with the keys \['train'\]"),
        (5, "cannot be made from int"),
    ],
)
async def test_a_dataset_that_cannot_be_used_says_why(dataset: Any, message: str) -> None:
    env = single(dataset=dataset)
    with pytest.raises(vf.DatasetError, match=message):
        await run(env, ScriptedClient())


async def test_an_endless_dataset_needs_a_number_and_stays_the_same() -> None:
    def endless() -> Any:
        number = 0
        while True:
            yield {"question": f"q{number}"}
            number += 1

    env = single(dataset=endless)
    with pytest.raises(vf.DatasetError, match="say how many examples"):
        await run(env, ScriptedClient(), n=-1)
    assert contents(env.get_dataset(n=3)) == contents(env.get_dataset(n=5))[:3]
    with pytest.raises(vf.DatasetError, match="seed its generator"):
        env.get_dataset(n=3, seed=1)


def test_system_prompt_and_few_shot_come_before_the_question() -> None:
    few_shot = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    env = single(system_prompt="Be brief.", few_shot=few_shot)
    spoken = [(m["role"], m["content"]) for m in env.get_dataset(n=1)[0]["prompt"]]
    assert spoken == [
        ("system", "Be brief."),
        ("user", "1+1?"),
        ("assistant", "2"),
        ("user", "q0"),
    ]


def test_a_prompt_with_its_own_system_message_keeps_it() -> None:
    own = [{"role": "system", "content": "Own."}, {"role": "user", "content": "q"}]
    env = single(dataset=[{"prompt": own}, {"prompt": own[1:]}], system_prompt="Be brief.")
    assert [row["prompt"][0]["content"] for row in env.get_dataset()] == ["Own.", "Be brief."]


async def test_rows_that_share_an_id_are_numbered_anew(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"question": "a", "example_id": 7}, {"question": "b", "example_id": 7}]
    outputs = await run(
        single(dataset=rows), ScriptedClient(then="x"), n=2, state_columns=["src_id"]
    )
    assert [(o["example_id"], o["src_id"]) for o in outputs] == [(0, 7), (1, 7)]
    assert "share an example_id" in caplog.text


def test_ids_that_are_numpy_integers_are_ids() -> None:
    import numpy as np

    [row] = single(dataset=[{"question": "a", "example_id": np.int64(7)}]).get_dataset()
    assert (row["example_id"], type(row["example_id"])) == (7, int)


async def test_a_row_with_a_string_task_evaluates_and_offers_it() -> None:
    seen = []
    rubric = vf.Rubric(funcs=[lambda task: seen.append(task) or 1.0])
    [output] = await run(
        single(dataset=[{"question": "q", "task": "sums"}], rubric=rubric), ScriptedClient(["x"])
    )
    assert (output["task"], seen, output["reward"]) == ("sums", ["sums"], 1.0)


def test_info_given_as_json_text_is_read() -> None:
    env = single(
        dataset=[{"question": "q", "info": '{"level": 3}'}, {"question": "q", "info": "plain"}]
    )
    assert [row["info"] for row in env.get_dataset()] == [{"level": 3}, "plain"]


def test_the_stored_dataset_can_be_replaced() -> None:
    env = single()
    env.dataset = [{"question": "new"}]
    assert contents(env.get_dataset()) == ["new"]
    assert env.eval_dataset is None


# -------------------------------------------------------------------------------------------- construction


def test_an_argument_that_looks_like_a_slip_is_reported_and_others_become_attributes() -> None:
    with pytest.warns(UnknownArgumentWarning, match="'rubic' .*did you mean 'rubric'"):
        single(rubic=vf.Rubric())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert single(difficulty="hard").difficulty == "hard"  # type: ignore[attr-defined]


def test_an_environment_can_be_made_outside_the_main_thread_and_touches_no_signals() -> None:
    import signal

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(single()))
    thread.start()
    thread.join()
    assert len(made) == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_properties_of_a_subclass_are_not_evaluated_while_it_is_made() -> None:
    class Env(vf.SingleTurnEnv):
        @property
        def costly(self) -> int:
            raise AssertionError("evaluated")

    Env(dataset=ROWS)


def test_the_parser_comes_from_the_rubric_unless_given() -> None:
    parser = vf.XMLParser(["answer"])
    assert single(rubric=vf.Rubric(parser=parser)).parser is parser
    assert single(parser=parser).rubric.parser is parser


def test_two_different_parsers_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    rubric = vf.Rubric(parser=vf.XMLParser(["a"]))
    single(parser=vf.ThinkParser(), rubric=rubric)
    assert "parses with ThinkParser and its rubric with XMLParser" in caplog.text


@pytest.mark.parametrize(
    ("parser", "rubric", "is_reported"),
    [
        (vf.XMLParser(["a"]), vf.Rubric(), True),
        (vf.Parser(), vf.Rubric(parser=vf.XMLParser(["a"])), True),
        (vf.Parser(), vf.Rubric(), False),
        (vf.XMLParser(["a"]), None, False),
        (None, vf.Rubric(parser=vf.XMLParser(["a"])), False),
    ],
)
def test_parsers_of_different_classes_are_reported(
    parser: Any, rubric: Any, is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    single(parser=parser, rubric=rubric)
    assert ("Pass one parser to both" in caplog.text) is is_reported


def test_a_wrong_message_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'chat' or 'completion'; got 'text'"):
        single(message_type="text")


async def test_sampling_arguments_are_merged_and_the_callers_stay_as_they_were() -> None:
    own = {"temperature": 0.5, "extra_body": {"a": 1}}
    given = {"max_tokens": 5, "extra_body": {"b": 2}}
    client = ScriptedClient(["x"])
    await run(single(sampling_args=own), client, sampling_args=given)
    assert client.requests[0].sampling_args == {
        "n": 1,
        "temperature": 0.5,
        "max_tokens": 5,
        "extra_body": {"a": 1, "b": 2},
    }
    assert (own["extra_body"], given["extra_body"]) == ({"a": 1}, {"b": 2})


async def test_teardown_handlers_run_once() -> None:
    closed = []

    class Env(vf.SingleTurnEnv):
        @vf.teardown(priority=1)
        async def first(self) -> None:
            closed.append("first")

        @vf.teardown
        def second(self) -> None:
            closed.append("second")

    class Own(vf.Rubric):
        @vf.teardown
        async def third(self) -> None:
            closed.append("rubric")

    async with Env(dataset=ROWS, rubric=Own()) as env:
        pass
    await env.aclose()
    assert closed == ["first", "second", "rubric"]


def test_set_kwargs_uses_setters_where_there_are_some() -> None:
    env = single()
    env.set_kwargs(max_seq_len=5, max_turns=3, max_total_completion_tokens=7, anything="x")
    assert (env.max_seq_len, env.max_turns, env.max_total_completion_tokens) == (5, 3, 7)
    assert env.anything == "x"  # type: ignore[attr-defined]


def test_hooks_can_be_listed() -> None:
    class Env(vf.SingleTurnEnv):
        @vf.stop(priority=1)
        async def enough(self, state: vf.State) -> bool:
            return True

    names = [condition.__name__ for condition in Env(dataset=ROWS)._stop_conditions]
    assert names[:2] == ["has_error", "enough"]
    assert [handler.__name__ for handler in Env(dataset=ROWS)._cleanup_handlers] == ["render_state"]


def right(completion: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: vf.ToolEnv(tools=right, dataset=[{"question": "q"}]), r"Write tools=\[…\]"),
        (lambda: vf.ToolEnv(tools="add", dataset=[{"question": "q"}]), r"Write tools=\[…\]"),
        (lambda: vf.Rubric(funcs=right), r"Write Rubric\(funcs=\[…\]\)"),
        (
            lambda: vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=[right]),
            r"rubric must be a Rubric; got \[.*Write rubric=vf\.Rubric\(funcs=\[…\]\)",
        ),
        (
            lambda: vf.SingleTurnEnv(dataset=[{"question": "q"}], rubric=right),
            r"rubric must be a Rubric; got <function right",
        ),
    ],
)
def test_one_thing_where_a_list_belongs_is_said_with_the_right_spelling(
    make: Any, said: str
) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        make()


def test_the_name_of_a_dataset_is_not_taken_for_its_rows() -> None:
    env = vf.SingleTurnEnv(dataset="gsm8k", rubric=vf.Rubric())
    with pytest.raises(vf.DatasetError, match=r"not the text 'gsm8k'.*load_example_dataset"):
        env.get_dataset()


def test_an_argument_that_is_a_slip_is_reported_at_the_line_of_the_author() -> None:
    class Own(vf.SingleTurnEnv):
        pass

    for make in (vf.SingleTurnEnv, Own):
        with pytest.warns(UnknownArgumentWarning) as caught:
            make(dataset=[{"question": "q"}], rubric=vf.Rubric(), system_promt="x")
        assert [warning.filename for warning in caught] == [__file__]


def test_a_data_frame_is_refused_with_what_to_pass() -> None:
    import pandas

    env = vf.SingleTurnEnv(dataset=pandas.DataFrame([{"question": "q"}]), rubric=vf.Rubric())
    with pytest.raises(vf.DatasetError, match=r"not a DataFrame.*to_dict\('records'\)"):
        env.get_dataset()

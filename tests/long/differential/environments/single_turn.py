"""One question, one reply: rows, prompts, parsers and reward functions."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

import verifiers as vf
from differential.cases import case

LONG = "so " * 3000


def sums(count: int = 2, **fields: Any) -> Dataset:
    rows = [
        {"question": f"What is {n} + {n}?", "answer": str(2 * n), **fields} for n in range(count)
    ]
    return Dataset.from_list(rows)


def exact(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"] == answer)


@case(["0"], ["2"], [""], [LONG], rollouts=4)
def exact_answer() -> vf.Environment:
    """Right, wrong, empty and very long replies."""
    return vf.SingleTurnEnv(dataset=sums(), rubric=vf.Rubric(funcs=[exact]))


@case([{"content": "0", "finish_reason": "length"}], ["0"], rollouts=2)
def cut_reply() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(), rubric=vf.Rubric(funcs=[exact]))


@case([{"content": None}], [{"content": "", "finish_reason": "length"}], rollouts=2)
def no_content() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(1), rubric=vf.Rubric(funcs=[exact]))


@case([{"content": "0", "no_usage": True}])
def no_usage() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(1), rubric=vf.Rubric(funcs=[exact]))


@case([{"content": "0", "reasoning_content": "zero and zero"}])
def reasoning() -> vf.Environment:
    def thought(completion: Any) -> float:
        return float(len(completion[-1]["reasoning_content"] or ""))

    return vf.SingleTurnEnv(dataset=sums(1), rubric=vf.Rubric(funcs=[exact, thought]))


@case(["0"], opening=1, sampling={"temperature": 0.5, "max_tokens": 7, "top_p": 0.9, "seed": 3})
def few_shot_and_system_prompt() -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=sums(),
        system_prompt="Answer with a number.",
        few_shot=[
            {"role": "user", "content": "What is 5 + 5?"},
            {"role": "assistant", "content": "10"},
        ],
        rubric=vf.Rubric(funcs=[exact]),
        sampling_args={"temperature": 0.1, "presence_penalty": 0.5},
    )


@case(["0"])
def rows_with_prompts() -> vf.Environment:
    """Rows with their own messages; the system prompt of the environment is in front of them."""
    rows = [
        {"prompt": [{"role": "user", "content": "zero?"}], "answer": "0"},
        {
            "prompt": [
                {"role": "system", "content": "own"},
                {"role": "user", "content": "zero again?"},
            ],
            "answer": "0",
        },
    ]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), system_prompt="shared", rubric=vf.Rubric(funcs=[exact])
    )


@case(["0"], columns=["info", "answer"])
def info_as_dict() -> vf.Environment:
    def level(info: Any) -> float:
        return info["level"] / 10

    return vf.SingleTurnEnv(
        dataset=sums(info={"level": 3, "tags": ["a", "b"]}),
        rubric=vf.Rubric(funcs=[exact, level], weights=[1.0, 0.5]),
    )


@case(["0"])
def info_as_json_text() -> vf.Environment:
    def level(info: Any) -> float:
        return info["level"] / 10

    return vf.SingleTurnEnv(
        dataset=sums(info='{"level": 3}'), rubric=vf.Rubric(funcs=[exact, level])
    )


@case(["0"], columns=["extra_column", "unknown_column"])
def extra_columns() -> vf.Environment:
    """Further columns of the dataset are fields of the state."""

    def doubled(state: Any) -> float:
        return 2.0 * state["extra_column"]

    return vf.SingleTurnEnv(
        dataset=sums(extra_column=4), rubric=vf.Rubric(funcs=[exact, doubled], weights=[1, 0])
    )


@case(["7"])
def own_example_ids() -> vf.Environment:
    rows = [{"question": "seven?", "answer": "7", "example_id": 10 + n} for n in range(2)]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact]))


@case(["0"])
def dataset_from_callable() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=lambda: sums(1), rubric=vf.Rubric(funcs=[exact]))


@case(["held out"])
def only_evaluation_rows() -> vf.Environment:
    rows = [{"question": "which?", "answer": "held out"}]
    return vf.SingleTurnEnv(eval_dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact]))


@case(["held out"])
def both_datasets() -> vf.Environment:
    """`evaluate` takes the evaluation rows."""
    rows = [{"question": "which?", "answer": "held out"}]
    return vf.SingleTurnEnv(
        dataset=sums(), eval_dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact])
    )


@case(["0"], evaluate={"num_examples": 1}, rollouts=2)
def one_of_many_rows() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(4), rubric=vf.Rubric(funcs=[exact]))


@case(
    [{"content": " four", "finish_reason": "stop"}],
    [{"content": "", "finish_reason": "length"}],
    rollouts=2,
)
def completions_api() -> vf.Environment:
    rows = [{"prompt": "Two and two is", "answer": " four"}]

    def same(completion: Any, answer: str) -> float:
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        return float(text == answer)

    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        message_type="completion",
        rubric=vf.Rubric(funcs=[same]),
    )


@case(["picture"])
def question_with_image() -> vf.Environment:
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    rows = [{"prompt": [{"role": "user", "content": content}], "answer": "picture"}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact]))


@case(["0"])
def task_as_object() -> vf.Environment:
    import json

    task = json.dumps(
        {"prompt": [{"role": "user", "content": "zero?"}], "answer": "0", "kind": "k"}
    )
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}], "task": task}]),
        rubric=vf.Rubric(funcs=[exact]),
    )


@case(["0"])
def no_rubric() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(1))


@case(["0"])
def not_scored() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(1), rubric=vf.Rubric(funcs=[exact]), score_rollouts=False)


@case(["4"])
def answers_of_other_types() -> vf.Environment:
    """Numbers and lists as answers."""

    def known(completion: Any, answer: Any) -> float:
        return float(isinstance(answer, list) and completion[-1]["content"] in answer)

    rows = [{"question": "four?", "answer": ["4", "four"]}, {"question": "five?", "answer": ["5"]}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[known]))


@case(["4"])
def number_as_answer() -> vf.Environment:
    def same(completion: Any, answer: Any) -> float:
        return float(completion[-1]["content"] == str(answer)) + (type(answer) is int)

    rows = [{"question": "four?", "answer": 4}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[same]))


@case(["anything"])
def rows_without_answers() -> vf.Environment:
    def polite(completion: Any) -> float:
        return float("please" in completion[-1]["content"])

    return vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"question": "How?"}]), rubric=vf.Rubric(funcs=[polite])
    )


@case(["yes"])
def task_as_word() -> vf.Environment:
    rows = [{"question": "How?", "answer": "yes", "task": "politeness"}]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact]))


@case(["0"])
def callable_evaluation_rows() -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=lambda: sums(3), eval_dataset=lambda: sums(1), rubric=vf.Rubric(funcs=[exact])
    )


@case(["0"], evaluate={"num_examples": 9})
def more_examples_than_rows() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(2), rubric=vf.Rubric(funcs=[exact]))


@case(["0"], ["1"], rollouts=2)
def pass_threshold() -> vf.Environment:
    def half(completion: Any, answer: str) -> float:
        return 0.4 if completion[-1]["content"] == answer else 0.2

    return vf.SingleTurnEnv(dataset=sums(), rubric=vf.Rubric(funcs=[half]), pass_threshold=0.3)


@case(["0"], columns=["trajectory"])
def saved_trajectory() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=sums(1), rubric=vf.Rubric(funcs=[exact]))


def rows_seen(env: Any) -> Any:
    return {
        "rows": [dict(row) for row in env.get_dataset()],
        "evaluation": [dict(row) for row in env.get_eval_dataset()],
        "one": len(env.get_dataset(n=1)),
        "columns": sorted(env.get_dataset().column_names),
    }


@case(["0"], opening=1, probe=rows_seen)
def datasets_as_formatted() -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=sums(2, info={"level": 1}),
        system_prompt="Answer.",
        few_shot=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        rubric=vf.Rubric(funcs=[exact]),
    )


@case(["0"])
def attributes_set_later() -> vf.Environment:
    def level(state: Any) -> float:
        return float(env.level)

    env = vf.SingleTurnEnv(dataset=sums(1), rubric=vf.Rubric(funcs=[level]))
    env.set_kwargs(level=3)
    return env


@case(["0"])
def rubric_added_later() -> vf.Environment:
    env = vf.SingleTurnEnv(dataset=sums(1), rubric=vf.Rubric(funcs=[exact]))

    def bonus(completion: Any) -> float:
        return 0.5

    env.add_rubric(vf.Rubric(funcs=[bonus], weights=[0.5]))
    return env

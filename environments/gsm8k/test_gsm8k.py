import datasets
import pytest
from gsm8k import as_number, boxed_number, load_environment
from gsm8k_problems import TEMPLATES, problems

from verifiers.testing import ScriptedClient, run


async def test_the_boxed_answer_scores_in_any_usual_form():
    env = load_environment(num_eval_examples=1)
    answer = env.get_eval_dataset()[0]["answer"]
    replies = [
        f"So it is \\boxed{{{answer}}}.",
        f"<think>\\boxed{{1}}</think>\\boxed{{\\${answer}.00}}",
        f"The answer is {answer}.",
        "",
    ]
    outputs = await run(env, ScriptedClient(replies), rollouts_per_example=4)
    assert [output["reward"] for output in outputs] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,200", "1200"), ("$ 3.50", "3.5"), ("-07", "-7"), ("none", ""), ("x = 4", "4")],
)
def test_numbers_are_read_in_one_form(text, number):
    assert as_number(text) == number
    assert boxed_number(f"\\boxed{{{text}}}") == number


def test_every_template_gives_whole_positive_answers_and_many_problems():
    seen = {}
    for split in ("train", "eval"):
        made = problems(split, 1, 4, seed=0)
        for _ in range(2000):
            row = next(made)
            assert int(row["answer"]) > 0, row
            seen[row["question"]] = row
    assert len(seen) > 1000
    assert len({(row["info"]["steps"], q.split()[-3:][0]) for q, row in seen.items()}) > 10
    assert {template.steps for template in TEMPLATES} == {1, 2, 3, 4}


def test_splits_never_meet_and_steps_are_as_asked():
    env = load_environment(num_train_examples=500, num_eval_examples=200, min_steps=2, max_steps=3)
    train, evaluation = list(env.get_dataset()), list(env.get_eval_dataset())
    assert not {row["question"] for row in train} & {row["question"] for row in evaluation}
    assert {row["info"]["steps"] for row in train + evaluation} == {2, 3}


def test_the_public_data_set_is_loaded_when_asked_for_and_never_otherwise(monkeypatch):
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((*args, kwargs["split"]))
        solution = "She has 1,100 + 100.\n#### 1,200"
        return datasets.Dataset.from_list([{"question": "How many?", "answer": solution}] * 3)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    load_environment(num_eval_examples=2).get_eval_dataset()
    assert asked == []
    found = load_environment(source="openai", num_eval_examples=2).get_eval_dataset()
    assert asked == [("openai/gsm8k", "main", "test")]
    assert [row["answer"] for row in found] == ["1200", "1200"]
    with pytest.raises(ValueError, match="'own' or 'openai'"):
        load_environment(source="own data")

"""What the weights in the package can do, on problems drawn for these tests."""

import random

import pytest

from verifiers.endpoint import Engine, Generation, Sampling, practice
from verifiers.endpoint.chat_template import render_chat
from verifiers.endpoint.model import Model

COUNT = 150


def rewards(model: Model, problems, reward, temperature):
    engine = Engine(Model(model.config, model.weights))
    sequences = engine.run(
        *(
            Generation(
                render_chat(p.messages, p.tools), 96, Sampling(temperature=temperature), seed=index
            )
            for index, p in enumerate(problems)
        )
    )
    return [
        reward(problem, sequence.text)
        for problem, sequence in zip(problems, sequences, strict=True)
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("system_prompt", [True, False])
def test_it_reverses_texts_often_but_not_always(shipped_model, temperature, system_prompt):
    rng = random.Random(f"reverse {temperature}")
    problems = [
        practice.reverse_problem(rng, length=rng.randint(4, 16), system_prompt=system_prompt)
        for _ in range(COUNT)
    ]
    scores = rewards(shipped_model, problems, practice.reverse_reward, temperature)
    assert 0.6 <= sum(scores) / COUNT < 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("system_prompt", [True, False])
def test_it_adds_often_but_not_always(shipped_model, temperature, system_prompt):
    rng = random.Random(f"add {temperature}")
    problems = [
        practice.addition_problem(
            rng, digits=(rng.randint(1, 3), rng.randint(1, 3)), system_prompt=system_prompt
        )
        for _ in range(COUNT)
    ]
    scores = rewards(shipped_model, problems, practice.addition_reward, temperature)
    assert 0.6 <= sum(scores) / COUNT < 1.0


def test_it_calls_a_calculator_often_enough_to_show(shipped_model):
    rng = random.Random("tool")
    problems = [
        practice.tool_problem(rng, digits=(rng.randint(1, 3), rng.randint(1, 3)), answered=False)
        for _ in range(COUNT)
    ]
    scores = rewards(
        shipped_model,
        problems,
        lambda problem, text: float(text == problem.completion),
        temperature=0.0,
    )
    assert sum(scores) / COUNT >= 0.3


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<reversed_text>cba</reversed_text>", 1.0),
        ("<reversed_text> cba </reversed_text>", 1.0),
        ("<reversed_text>cb</reversed_text>", 2 / 3),
        ("<reversed_text>cbxa</reversed_text>", 3 / 4),
        ("cba", 0.0),
        ("<reversed_text></reversed_text>", 0.0),
    ],
)
def test_reversals_are_scored_by_the_longest_common_subsequence(completion, expected):
    assert practice.reverse_reward(
        practice.PracticeProblem([], "", "cba"), completion
    ) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [("\\boxed{12}", 1.0), ("\\boxed{1} \\boxed{12}", 1.0), ("12", 0.0), ("\\boxed{12", 0.0)],
)
def test_sums_are_scored_by_the_last_box(completion, expected):
    assert practice.addition_reward(practice.PracticeProblem([], "", "12"), completion) == expected


@pytest.mark.parametrize(
    ("left", "right", "steps"), [(47, 85, "7+5=12, 4+8+1=13."), (9, 100, "9+0=9, 0+0=0, 0+1=1.")]
)
def test_the_worked_steps_are_right(left, right, steps):
    assert practice.addition_steps(left, right) == steps

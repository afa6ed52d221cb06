"""Rubrics: weights, groups, metrics, asynchronous and group rewards, judges, errors of reward functions."""

from __future__ import annotations

import os
from typing import Any

from datasets import Dataset
from openai import AsyncOpenAI

import verifiers as vf
from differential.cases import case


def rows(count: int = 2) -> Dataset:
    return Dataset.from_list(
        [{"question": f"Say {n}.", "answer": str(n), "info": {"n": n}} for n in range(count)]
    )


def text(completion: Any) -> str:
    return completion[-1]["content"]


def exact(completion: Any, answer: str) -> float:
    return float(text(completion) == answer)


async def length(completion: Any) -> float:
    return float(len(text(completion)))


@case(["0"], ["22"], rollouts=2)
def weights_and_async() -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=rows(), rubric=vf.Rubric(funcs=[exact, length], weights=[1.0, 0.1])
    )


@case(["0"], ["22"], rollouts=2)
def functions_added_later() -> vf.Environment:
    rubric = vf.Rubric()
    rubric.add_reward_func(exact, weight=2.0)
    rubric.add_reward_func(length, weight=0.0)
    rubric.add_metric(lambda completion: 3.0)
    return vf.SingleTurnEnv(dataset=rows(), rubric=rubric)


@case(["0"])
def every_argument() -> vf.Environment:
    def all_of(
        prompt: Any,
        completion: Any,
        answer: Any,
        state: Any,
        info: Any,
        parser: Any,
        task: Any = "none",
        **kwargs: Any,
    ) -> float:
        return float(
            len(prompt) + 10 * len(completion) + 100 * info["n"] + 1000 * (parser is not None)
        )

    def only_keywords(*, completion: Any, state: Any) -> float:
        return float(state["example_id"])

    def names(**kwargs: Any) -> float:
        expected = {"prompt", "completion", "answer", "state", "info", "parser"}
        return float(len(expected & set(kwargs)))

    return vf.SingleTurnEnv(
        dataset=rows(), rubric=vf.Rubric(funcs=[all_of, only_keywords, names], parser=vf.Parser())
    )


@case(["0"])
def class_objects() -> vf.Environment:
    rubric = vf.Rubric(funcs=[exact])
    rubric.add_class_object("bonus", 0.25)

    def with_bonus(completion: Any, bonus: float) -> float:
        return bonus

    rubric.add_reward_func(with_bonus)
    return vf.SingleTurnEnv(dataset=rows(1), rubric=rubric)


@case(["0"], ["00"], ["000"], rollouts=3)
def group_reward() -> vf.Environment:
    def longest(completions: Any) -> list[float]:
        lengths = [len(text(completion)) for completion in completions]
        return [float(one == max(lengths)) for one in lengths]

    async def rank(states: Any, answers: Any, infos: Any) -> list[float]:
        assert len(states) == len(answers) == len(infos)
        return [float(len(state["completion"][-1]["content"])) for state in states]

    return vf.SingleTurnEnv(
        dataset=rows(), rubric=vf.Rubric(funcs=[exact, longest, rank], weights=[1.0, 0.5, 0.0])
    )


@case(["0"], ["00"], rollouts=2, evaluate={"independent_scoring": True})
def scored_one_by_one() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[exact, length]))


@case(["0"], ["22"], rollouts=2)
def rubric_group() -> vf.Environment:
    first = vf.Rubric(funcs=[exact], weights=[2.0])
    second = vf.Rubric(funcs=[exact, length], weights=[0.5, 0.01])
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.RubricGroup([first, second]))


@case(["0"])
def subclass_with_its_own_functions() -> vf.Environment:
    class Own(vf.Rubric):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.add_reward_func(self.bonus, weight=0.5)
            self.add_metric(self.answer_length)

        async def bonus(self, state: Any, answer: str) -> float:
            return float(state["answer"] == answer)

        def answer_length(self, answer: str) -> float:
            return float(len(answer))

    return vf.SingleTurnEnv(dataset=rows(1), rubric=Own(funcs=[exact]))


@case(["0"])
def reward_function_raises() -> vf.Environment:
    def fails(completion: Any) -> float:
        raise RuntimeError("no")

    def misspelt(compeltion: Any = None) -> float:
        return 1.0

    return vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric(funcs=[exact, fails, misspelt]))


@case(["0"])
def numbers_of_other_types() -> vf.Environment:
    def truth(completion: Any) -> bool:
        return True

    def whole(completion: Any) -> int:
        return 2

    return vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric(funcs=[truth, whole]))


@case(["0"], columns=["notes"])
def reward_writes_to_the_state() -> vf.Environment:
    def writes(state: Any) -> float:
        state["notes"] = {"seen": True}
        return 0.5

    def reads(state: Any) -> float:
        return float(state["notes"]["seen"])

    return vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric(funcs=[writes, reads]))


def judge_rubric(**options: Any) -> vf.JudgeRubric:
    client = AsyncOpenAI(base_url=os.environ["SCRIPTED_URL"], api_key="none", max_retries=0)
    model = f"{os.environ['SCRIPTED_MODEL']}:judge"
    return vf.JudgeRubric(judge_client=client, judge_model=model, **options)


@case(["0"], ["22"], rollouts=2, judge={"22": "no", "": "yes"}, columns=["judge_response"])
def judge() -> vf.Environment:
    rubric = judge_rubric(parser=vf.Parser())

    async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
        return float((await judge(prompt, completion, answer, state)).strip().lower() == "yes")

    rubric.add_reward_func(judged)
    return vf.SingleTurnEnv(dataset=rows(), rubric=rubric)


@case(["0"], judge={"": "8"})
def judge_with_its_own_prompt() -> vf.Environment:
    rubric = judge_rubric(
        judge_prompt="Rate: {question} | {answer} | {response}",
        judge_sampling_args={"temperature": 0.0, "max_tokens": 5},
    )

    async def rated(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
        first = await judge(prompt, completion, answer, state)
        again = await judge(prompt, completion, answer, state)
        return (float(first) + float(again)) / 20

    rubric.add_reward_func(rated, weight=1.0)
    rubric.add_reward_func(exact, weight=0.0)
    return vf.SingleTurnEnv(dataset=rows(1), rubric=rubric)


@case(["0"], judge={"": "yes"})
def judge_in_a_group() -> vf.Environment:
    rubric = judge_rubric()

    async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
        return float("yes" in await judge(prompt, completion, answer, state))

    rubric.add_reward_func(judged, weight=0.5)
    return vf.SingleTurnEnv(
        dataset=rows(1), rubric=vf.RubricGroup([vf.Rubric(funcs=[exact]), rubric])
    )


@case([r"It is \boxed{0}."], ["0"], [r"\boxed{0.0}"], [r"\boxed{1}"], rollouts=4)
def math_rubric() -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=rows(1),
        rubric=vf.MathRubric(),
        parser=vf.Parser(extract_fn=vf.extract_boxed_answer),
    )


@case(["0"], ["00"], rollouts=2, columns=["cleaned"])
def cleanup_of_a_rubric() -> vf.Environment:
    class Cleans(vf.Rubric):
        @vf.cleanup
        async def clean(self, state: Any) -> None:
            state["cleaned"] = True

    return vf.SingleTurnEnv(dataset=rows(1), rubric=Cleans(funcs=[exact]))


@case(["0"])
def one_name_twice() -> vf.Environment:
    def score(completion: Any) -> float:
        return 1.0

    first = score

    def score(completion: Any) -> float:
        return 2.0

    return vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric(funcs=[first, score]))


@case(["0"], ["1"], rollouts=2)
def negative_weights() -> vf.Environment:
    def cost(completion: Any) -> float:
        return 0.5

    return vf.SingleTurnEnv(
        dataset=rows(1), rubric=vf.Rubric(funcs=[exact, cost], weights=[1.0, -0.5])
    )


@case(["0"], ["1"], rollouts=2)
def group_reward_in_a_rubric_group() -> vf.Environment:
    def shortest(completions: Any, states: Any) -> list[float]:
        texts = [text(completion) for completion in completions]
        return [float(one == min(texts)) for one in texts]

    return vf.SingleTurnEnv(
        dataset=rows(1),
        rubric=vf.RubricGroup(
            [vf.Rubric(funcs=[exact]), vf.Rubric(funcs=[shortest], weights=[0.5])]
        ),
    )


@case(["0"])
def numbers_of_numpy() -> vf.Environment:
    import numpy

    def single(completion: Any) -> Any:
        return numpy.float32(0.25)

    def whole(completion: Any) -> Any:
        return numpy.int64(2)

    return vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric(funcs=[single, whole]))


@case(["0"])
def no_number_at_all() -> vf.Environment:
    def nothing(completion: Any) -> Any:
        return None

    return vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric(funcs=[exact, nothing]))


@case(["0"], ["1"], rollouts=2)
def own_scoring() -> vf.Environment:
    class Own(vf.Rubric):
        async def score_rollout(self, state: Any, **kwargs: Any) -> None:
            state["reward"] = 0.75
            state["metrics"] = {"own": 3.0}

        async def score_group(self, states: Any, **kwargs: Any) -> None:
            for state in states:
                await self.score_rollout(state)

    return vf.SingleTurnEnv(dataset=rows(1), rubric=Own())


@case(["0"], columns=["cached"])
def functions_share_the_state_in_order() -> vf.Environment:
    async def first(state: Any) -> float:
        state["cached"] = ["first"]
        return 0.0

    async def second(state: Any) -> float:
        state["cached"].append("second")
        return float(len(state["cached"]))

    return vf.SingleTurnEnv(dataset=rows(1), rubric=vf.Rubric(funcs=[first, second]))


@case([r"<think>x</think>\boxed{\frac{1}{2}}"], [r"\boxed{0.5}"], ["1/2"], rollouts=3)
def math_with_a_think_parser() -> vf.Environment:
    parser = vf.MaybeThinkParser(extract_fn=vf.extract_boxed_answer)
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"question": "half?", "answer": "1/2"}]),
        parser=parser,
        rubric=vf.MathRubric(parser=parser),
    )


@case(["0"], judge={"": "yes"}, columns=["judge_response"])
def subclass_of_judge() -> vf.Environment:
    client = AsyncOpenAI(base_url=os.environ["SCRIPTED_URL"], api_key="none", max_retries=0)

    class Own(vf.JudgeRubric):
        def __init__(self) -> None:
            super().__init__(
                judge_client=client,
                judge_model=f"{os.environ['SCRIPTED_MODEL']}:judge",
                judge_prompt="Own: {answer} {response}",
            )
            self.add_reward_func(self.judged)

        async def judged(self, prompt: Any, completion: Any, answer: str, state: Any) -> float:
            verdict = await self.judge(prompt, completion, answer, state)
            return float(verdict == "yes")

    return vf.SingleTurnEnv(dataset=rows(1), rubric=Own())


@case(["0"], judge={"": "3"})
def judge_called_directly() -> vf.Environment:
    """A reward function that calls the client of the judge itself."""
    rubric = judge_rubric()

    async def direct(judge_client: Any, judge_model: str, completion: Any) -> float:
        reply = await judge_client.chat.completions.create(
            model=judge_model, messages=[{"role": "user", "content": "rate"}]
        )
        return float(reply.choices[0].message.content)

    rubric.add_reward_func(direct)
    return vf.SingleTurnEnv(dataset=rows(1), rubric=rubric)

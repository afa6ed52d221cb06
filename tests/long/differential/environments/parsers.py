"""Parsers as arguments of reward functions, format rewards, and their direct use."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

import verifiers as vf
from differential.cases import case


def rows() -> Dataset:
    return Dataset.from_list([{"question": "Four?", "answer": "4"}])


def parsed(parser: Any, completion: Any, answer: str) -> float:
    return float(parser.parse_answer(completion) == answer)


TEXTS = [
    "<think>two and two</think><answer>4</answer>",
    "<think>two</think>\n4",
    "4",
    "<answer> 4 </answer>",
    "<think>a</think><think>b</think><answer>3</answer><answer>4</answer>",
    "<think>never closed <answer>4",
    "text <ANSWER>4</ANSWER>",
    "",
]


def all_texts(parser: Any) -> Any:
    messages = [[{"role": "assistant", "content": text}] for text in TEXTS]
    return {
        "parsed": [shown(parser.parse(text)) for text in TEXTS],
        "answers": [parser.parse_answer(one) for one in messages],
        "of_text": [parser.parse_answer(text) for text in TEXTS],
    }


def shown(value: Any) -> Any:
    return vars(value) if hasattr(value, "__dict__") else value


def scores_of(env: Any) -> Any:
    parser = env.parser
    reward = parser.get_format_reward_func()
    several = [
        {"role": "assistant", "content": TEXTS[0]},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": TEXTS[2]},
    ]
    return {
        **all_texts(parser),
        "format": [reward([{"role": "assistant", "content": text}]) for text in TEXTS],
        "several": [parser.parse_answer(several), reward(several)],
        "assistant": [len(parser.get_assistant_messages(several))],
        "system": [len(parser.get_system_messages(several))],
        "user": [len(parser.get_user_messages(several))],
    }


def with_parser(parser: Any) -> vf.Environment:
    rubric = vf.Rubric(
        funcs=[parsed, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser
    )
    return vf.SingleTurnEnv(dataset=rows(), parser=parser, rubric=rubric)


@case(*[[text or "nothing"] for text in TEXTS], rollouts=8, probe=scores_of)
def xml_parser() -> vf.Environment:
    return with_parser(vf.XMLParser(["think", "answer"]))


def alternatives(env: Any) -> Any:
    messages = [{"role": "assistant", "content": "<code>4</code>"}]
    return {**scores_of(env), "alternative": [env.parser.parse_answer(messages)]}


@case(*[[text or "nothing"] for text in TEXTS], rollouts=8, probe=alternatives)
def xml_parser_with_alternatives() -> vf.Environment:
    return with_parser(
        vf.XMLParser([("think", "reason"), ("answer", "code")], answer_field="answer")
    )


@case(*[[text or "nothing"] for text in TEXTS], rollouts=8, probe=scores_of)
def think_parser() -> vf.Environment:
    return with_parser(vf.ThinkParser())


@case(*[[text or "nothing"] for text in TEXTS], rollouts=8, probe=scores_of)
def maybe_think_parser() -> vf.Environment:
    return with_parser(vf.MaybeThinkParser(extract_fn=vf.extract_boxed_answer))


@case(["<think>x</think>\\boxed{4}"], ["\\boxed{4}"], ["4"], rollouts=3, probe=scores_of)
def think_parser_with_boxed_answer() -> vf.Environment:
    return with_parser(vf.ThinkParser(extract_fn=vf.extract_boxed_answer))


@case(["The answer: 4"], ["nothing"], rollouts=2, probe=scores_of)
def own_parser() -> vf.Environment:
    class Colon(vf.Parser):
        def parse(self, text: str) -> str | None:
            return text.partition(":")[2].strip() or None

        def get_format_reward_func(self) -> Any:
            def has_colon(completion: Any, **kwargs: Any) -> float:
                return float(":" in completion[-1]["content"])

            return has_colon

    return with_parser(Colon())


def formats(env: Any) -> Any:
    parser = env.parser
    return {
        "format": parser.get_format_str(),
        "fields": parser.get_fields(),
        "made": parser.format(think="a", answer="b"),
        "boxed": [
            vf.extract_boxed_answer(text)
            for text in (r"\boxed{4}", r"\boxed{\frac{1}{2}} and \boxed{3}", "4", r"\boxed{4", "")
        ],
        "hash": [
            vf.extract_hash_answer(text) for text in ("#### 4", "a #### 4 ", "none", "a####b####c")
        ],
        "last": parser.parse_answer([{"role": "assistant", "content": TEXTS[4]}]),
    }


@case([TEXTS[0]], probe=formats)
def formats_of_parsers() -> vf.Environment:
    return with_parser(vf.XMLParser(["think", "answer"]))

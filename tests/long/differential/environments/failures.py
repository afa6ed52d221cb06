"""Errors: of the endpoint, of the environment, of rows and of configurations."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

import verifiers as vf
from differential.cases import case


def rows(count: int = 1) -> Dataset:
    return Dataset.from_list([{"question": f"Q{n}", "answer": "x"} for n in range(count)])


def one(completion: Any) -> float:
    return 1.0


def failed(state: Any) -> float:
    return float(state["error"] is not None)


@case([{"status": 500, "error": "broken"}])
def endpoint_breaks() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[failed]))


@case([{"status": 400, "error": "This model's maximum context length is 10 tokens."}])
def prompt_too_long() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[failed]))


@case([{"status": 400, "error": "bad parameter"}])
def request_refused() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[failed]))


@case([{"content": "x", "no_choices": True}])
def response_without_choices() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[failed]))


class TwoTurns(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [{"role": "user", "content": "more"}]


@case(["a", {"status": 400, "error": "maximum context length exceeded"}])
def second_prompt_too_long() -> vf.Environment:
    return TwoTurns(dataset=rows(), rubric=vf.Rubric(funcs=[failed]), max_turns=3)


@case(["a"], columns=["cleaned"])
def environment_raises_its_error() -> vf.Environment:
    class Fails(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            raise vf.ToolError("the tool is gone")

        @vf.cleanup
        async def clean(self, state: Any) -> None:
            state["cleaned"] = True

    return Fails(dataset=rows(), rubric=vf.Rubric(funcs=[failed]), max_turns=3)


@case(["a"])
def sandbox_is_lost() -> vf.Environment:
    class Fails(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            raise vf.SandboxError("gone") from TimeoutError("no answer")

    return Fails(dataset=rows(), rubric=vf.Rubric(funcs=[failed]), max_turns=3)


@case(["a"])
def environment_crashes() -> vf.Environment:
    class Crashes(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return [1 / 0]

    return Crashes(dataset=rows(), rubric=vf.Rubric(funcs=[failed]), max_turns=3)


@case(["a"])
def setup_fails() -> vf.Environment:
    class Fails(vf.SingleTurnEnv):
        async def setup_state(self, state: Any) -> Any:
            raise vf.InfraError("no machine")

    return Fails(dataset=rows(), rubric=vf.Rubric(funcs=[failed]))


@case(rows={"Q0": [[{"status": 500, "error": "broken"}]], "Q1": [["good"]]})
def one_of_two_fails() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(2), rubric=vf.Rubric(funcs=[one]))


@case(
    [{"status": 500, "error": "broken"}, "unused"],
    ["good"],
    evaluate={"max_retries": 1},
)
def rollout_is_tried_again() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[one]))


@case(["x"])
def no_dataset() -> vf.Environment:
    return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[one]))


@case(["x"])
def row_without_question() -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"answer": "x"}]), rubric=vf.Rubric(funcs=[one])
    )


@case(["x"])
def weights_do_not_fit() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[one], weights=[1.0, 2.0]))


@case(["x"])
def names_do_not_fit() -> vf.Environment:
    env = vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[one]))
    return vf.EnvGroup([env], env_names=["a", "b"])

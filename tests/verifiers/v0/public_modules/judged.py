"""A judge with the author's prompt, and a rubric that overrides `judge`."""

from types import SimpleNamespace
from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.rubrics.judge_rubric import JudgeRubric
from verifiers.types import Messages, State
from verifiers.utils.async_utils import maybe_await

REPLIES = ["Ada Lovelace", "nobody"]
REWARDS = [1.0, 0.0]
CALLED: list[str] = []
JUDGE_PROMPT = "Q: {question}\nA: {answer}\nR: {response}\nReply CORRECT or WRONG."


class JudgeClient:
    """The part of an `AsyncOpenAI` that a judge uses."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=self)
        self.base_url = "http://judge.invalid/v1"

    async def create(self, **arguments: Any) -> Any:
        CALLED.append("create")
        text = arguments["messages"][-1]["content"]
        verdict = "CORRECT" if "R: Ada" in text else "WRONG"
        assert (arguments["model"], arguments["temperature"]) == ("judge-1", 0.0)
        message = SimpleNamespace(content=verdict, role="assistant")
        choice = SimpleNamespace(message=message, finish_reason="stop", index=0)
        return SimpleNamespace(choices=[choice], usage=None, id="j", model="judge-1", created=0)


class Verdicts(JudgeRubric):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_reward_func(self.judge_score)
        self.add_reward_func(self.judge_confidence, weight=0.0)

    async def judge(
        self, prompt: Messages, completion: Messages, answer: str, state: State | None = None
    ) -> str:
        CALLED.append("judge")
        return await super().judge(prompt, completion, answer, state)

    async def judge_score(
        self, prompt: Messages, completion: Messages, answer: str, state: State, **kwargs: Any
    ) -> float:
        CALLED.append("judge_score")
        verdict = await maybe_await(self.judge, prompt, completion, answer, state)
        state["judge_confidence"] = len(state["judge_response"])
        return 1.0 if verdict.strip() == "CORRECT" else 0.0

    async def judge_confidence(self, state: State) -> float:
        CALLED.append("judge_confidence")
        self.logger.debug("asked %s", self.judge_model)
        return float(state["judge_confidence"])


def load_environment() -> vf.Environment:
    rows = [{"question": "Who wrote the first program?", "answer": "Ada"}] * 2
    rubric = Verdicts(
        judge_client=JudgeClient(),
        judge_model="judge-1",
        judge_prompt=JUDGE_PROMPT,
        judge_sampling_args={"temperature": 0.0},
        parser=vf.Parser(),
    )
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), rubric=rubric, name="j", description="d"
    )

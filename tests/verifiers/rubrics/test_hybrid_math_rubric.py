"""`HybridMathRubric` and `RemoteHybridMathRubric`, with real comparisons, a scripted judge and real sandboxes."""

from types import SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.agents import ComposableEnv, Harness, SandboxSpec, SandboxTaskSet
from verifiers.rubrics.experimental.hybrid_math_rubric import (
    DEFAULT_JUDGE_PROMPT,
    HybridMathRubric,
    RemoteHybridMathRubric,
)
from verifiers.testing import ScriptedClient, run

ROWS = [{"question": "1/2 + 1/2?", "answer": "1"}]


async def play(rubric: vf.Rubric, reply: str, **options: Any) -> vf.RolloutOutput:
    async with vf.SingleTurnEnv(dataset=ROWS, rubric=rubric) as env:
        [output] = await run(env, ScriptedClient([reply]), **options)
    return output


def scores(output: vf.RolloutOutput) -> tuple[float, float, float]:
    metrics = output["metrics"]
    assert output["reward"] == metrics["correct_answer"]
    return metrics["math_verify_score"], metrics["judge_score"], metrics["correct_answer"]


async def test_a_right_answer_needs_no_judge_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    rubric = HybridMathRubric(use_judge_fallback=True)
    assert rubric._get_reward_weights() == [0, 0, 1]
    assert scores(await play(rubric, "$\\frac{2}{2}$")) == (1.0, 1.0, 1.0)


async def test_without_judge_only_mathematics_counts() -> None:
    rubric = HybridMathRubric()
    assert rubric.judge_model is None
    assert scores(await play(rubric, "one")) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("verdict", "grade", "score"),
    [
        ("Equal. \\boxed{A} - CORRECT", "A", 1.0),
        ("A", "A", 1.0),
        ("First \\boxed{A}, no: \\boxed{B}", "B", 0.0),
        ("\\boxed{C} - REFUSAL", "C", 0.0),
        ("The answer: A", "The answer: A", 0.0),
    ],
)
async def test_judge_decides_on_other_answers(verdict: str, grade: str, score: float) -> None:
    judge = ScriptedClient([verdict])
    rubric = HybridMathRubric(use_judge_fallback=True, judge_client=judge)
    state: dict[str, Any] = {"math_verify_score": 0.0}
    prompt = [{"role": "user", "content": "1/2 + 1/2?"}]
    completion = [{"role": "assistant", "content": "one"}]
    assert await rubric.judge_score(prompt, completion, "1", state) == score
    assert await rubric.correct_answer(state) == score
    assert (state["judge_result"], state["judge_score"]) == (grade, score)
    [request] = judge.requests
    assert request.model == "gpt-5-nano"
    asked = request.prompt[0]["content"]
    assert all(part in asked for part in ("1/2 + 1/2?", "\n1\n", "\none\n", "\\boxed{A}"))


def test_defaults_are_class_attributes() -> None:
    assert HybridMathRubric.DEFAULT_JUDGE_MODEL == "gpt-5-nano"
    assert HybridMathRubric.DEFAULT_JUDGE_PROMPT == DEFAULT_JUDGE_PROMPT
    assert HybridMathRubric.DEFAULT_USE_JUDGE_FALLBACK is False
    filled = DEFAULT_JUDGE_PROMPT.format(question="q", answer="a", response="r")
    assert "\\boxed{A}" in filled


async def test_functions_accept_plain_dicts() -> None:
    rubric = HybridMathRubric()
    state: dict[str, Any] = {}
    completion = [{"role": "assistant", "content": "1"}]
    assert await rubric.math_verify_score(completion, "1", state) == 1.0
    assert await rubric.judge_score([], completion, "1", state) == 1.0
    assert await rubric.correct_answer(state) == 1.0
    assert state == {"math_verify_score": 1.0}
    await rubric.teardown()


# --------------------------------------------------------------------------------------------------------- remote


class Halves(SandboxTaskSet):
    def get_instruction(self, info: dict[str, Any]) -> str:
        return info["say"]

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        return SandboxSpec(cpu_cores=1, memory_gb=0.25, disk_size_gb=0.05)


async def test_the_answer_file_of_an_agent_is_scored_and_its_sandbox_deleted() -> None:
    """The agent copies its instruction into the answer file."""
    rows = [{"info": {"say": say}, "answer": "1/2"} for say in ("0.5", "a half", "1/3")]
    rows.append({"info": {"say": " "}, "answer": "1/2"})
    judge = ScriptedClient(lambda prompt: "\\boxed{A}" if "a half" in prompt[0]["content"] else "B")
    rubric = RemoteHybridMathRubric(use_judge_fallback=True, judge_client=judge)
    command = 'cp /task/instruction.md "$AGENT_WORKDIR/answer.txt"; true'
    env = ComposableEnv(
        Halves(rows), Harness(run_command=command), rubric=rubric, keep_sandbox_for_scoring=True
    )
    async with env:
        results = await env.generate(env.get_dataset(), ScriptedClient([]), "m")
        client = env.sandbox_client
        assert not any(client.has(sandbox_id) for sandbox_id in env.active_sandboxes)
    assert [output["error"] for output in results["outputs"]] == [None] * 4
    assert [scores(output) for output in results["outputs"]] == [
        (1.0, 1.0, 1.0),
        (0.0, 1.0, 1.0),
        (0.0, 0.0, 0.0),
        (0.0, 0.0, 0.0),
    ]
    assert len(judge.requests) == 2, "no question about a missing file"


class Client:
    """A provider's client: a method for commands, and one to delete."""

    def __init__(self, answer: str | Exception) -> None:
        self.answer = answer
        self.deleted: list[str] = []

    async def execute_command(self, sandbox_id: str, command: str, timeout: int) -> Any:
        assert (command, timeout) == ("head -c 65536 '/a b/x.txt'", 3)
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(stdout=self.answer, exit_code=0)

    async def delete(self, sandbox_id: str) -> None:
        self.deleted.append(sandbox_id)


@pytest.mark.parametrize(
    ("answer", "fields", "score"),
    [
        ("1\n", {}, 1.0),
        ("1\n", {"error": RuntimeError("crashed")}, 0.0),
        ("1\n", {"sandbox_id": None}, 0.0),
        (RuntimeError("lost"), {}, 0.0),
        ("", {}, 0.0),
    ],
)
async def test_client_of_the_state_or_of_the_rubric_is_used(
    answer: Any, fields: dict[str, Any], score: float
) -> None:
    rubric = RemoteHybridMathRubric(answer_path="/a b/x.txt", scorer_timeout=3)
    of_state, of_rubric = Client(answer), Client(answer)
    rubric.sandbox_client = of_rubric
    for state in ({"sandbox_client": of_state}, {}):
        state |= {"sandbox_id": "s1", **fields}
        assert await rubric.math_verify_score([], "1", state) == score
        assert await rubric.judge_score([], [], "1", state) == score
        await rubric.cleanup(state)  # type: ignore[arg-type]
    deleted = [] if fields.get("sandbox_id", "") is None else ["s1"]
    assert (of_state.deleted, of_rubric.deleted) == (deleted, deleted)
    await rubric.teardown()

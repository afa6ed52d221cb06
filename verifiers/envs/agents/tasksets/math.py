"""`MathTaskSet`: questions with a true answer. The agent writes its answer to a file."""

from __future__ import annotations

from typing import Any

from verifiers.configs import ClientConfig
from verifiers.envs.agents.task_sets import SandboxSpec, SandboxTaskSet
from verifiers.envs.agents.tasksets.common import between, load_rows, rows_from
from verifiers.rubrics.hybrid_math_rubric import DEFAULT_JUDGE_PROMPT, RemoteHybridMathRubric


class MathTaskSet(SandboxTaskSet):
    """Mathematical questions, scored by `RemoteHybridMathRubric`.

    `dataset_name` is a name on the Hugging Face hub or a folder of this machine; it is loaded on first use.
    `difficulty_key` is a column with the mean reward of a model; rows outside of `min_avg_reward` to `max_avg_reward`
    are left out. The judge decides on answers that are not equal as mathematics. Its key comes from the environment
    variable `judge_api_key_var` when it is first needed; `judge_timeout` limits one call, in seconds.
    """

    default_workdir = "/app"

    def __init__(
        self,
        dataset_name: str = "PrimeIntellect/INTELLECT-3-RL",
        dataset_subset: str | None = "math",
        dataset_split: str = "train",
        filter_fn: str | None = None,
        question_key: str = "question",
        answer_key: str = "answer",
        instruction_prompt: str = "Solve the following problem.\n\n",
        answer_path: str = "/app/answer.txt",
        docker_image: str = "python:3.11-slim",
        difficulty_key: str | None = None,
        min_avg_reward: float = 0.0,
        max_avg_reward: float = 1.0,
        judge_model: str = "openai/gpt-5-nano",
        judge_base_url: str | None = "https://api.pinference.ai/api/v1",
        judge_api_key_var: str | None = "PRIME_API_KEY",
        use_judge_fallback: bool = True,
        judge_prompt: str | None = None,
        judge_timeout: float = 1200.0,
        ds_num_proc: int | None = 8,
        ds_keep_in_memory: bool = True,
    ) -> None:
        self.instruction_prompt = instruction_prompt
        self.answer_path = answer_path
        self.docker_image = docker_image
        self.judge_model = judge_model
        self.judge_base_url = judge_base_url
        self.judge_api_key_var = judge_api_key_var
        self.use_judge_fallback = use_judge_fallback
        self.judge_prompt = judge_prompt
        self.judge_timeout = judge_timeout

        def load() -> list[dict[str, Any]]:
            rows = load_rows(
                dataset_name, dataset_subset, dataset_split, ds_num_proc, ds_keep_in_memory
            )
            rows = between(rows, difficulty_key, min_avg_reward, max_avg_reward)
            return rows_from(
                rows,
                lambda row: {
                    "info": {"question": row[question_key]},
                    "answer": row[answer_key],
                },
                (question_key, answer_key),
            )

        super().__init__(load, name=f"math/{dataset_name}", filter_fn=filter_fn)

    def get_instruction(self, info: dict[str, Any]) -> str:
        """Return the question, and where to write the answer."""
        return (
            f"{self.instruction_prompt}{info['question']}\n\n"
            f"Write your final answer to `{self.answer_path}`."
        )

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        """Return a small sandbox."""
        return SandboxSpec(self.docker_image, cpu_cores=1, memory_gb=2, disk_size_gb=4)

    def get_rubric(self) -> RemoteHybridMathRubric:
        """Return the rubric that compares the answer file."""
        endpoint: dict[str, Any] = {"timeout": self.judge_timeout}
        if self.judge_api_key_var:
            endpoint["api_key_var"] = self.judge_api_key_var
        if self.judge_base_url:
            endpoint["api_base_url"] = self.judge_base_url
        return RemoteHybridMathRubric(
            answer_path=self.answer_path,
            use_judge_fallback=self.use_judge_fallback,
            judge_client=ClientConfig(**endpoint),
            judge_model=self.judge_model,
            judge_prompt=self.judge_prompt or DEFAULT_JUDGE_PROMPT,
        )


__all__ = ["MathTaskSet"]

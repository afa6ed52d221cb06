"""`OpenCodeQAEnv`: OpenCode answers the questions of a public data set.

    env = OpenCodeQAEnv(rubric, "org/questions", "default", "train", instruction_prompt="Answer in /app/answer.txt. ")

The data set is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verifiers.envs.agents.open_code_env import OpenCodeEnv
from verifiers.errors import DatasetError
from verifiers.rubrics.rubric import Rubric

if TYPE_CHECKING:
    from datasets import Dataset


class OpenCodeQAEnv(OpenCodeEnv):
    """Takes questions and answers from a data set of the Hugging Face hub, and runs OpenCode on each question.

    Each question stands between `instruction_prompt` and `instruction_prompt_post`. With `difficulty_key`, the name of
    a column of mean rewards, rows outside `min_avg_reward` to `max_avg_reward` are left out. Further arguments are
    those of `OpenCodeEnv`.
    """

    DEFAULT_QUESTION_KEY = "question"
    DEFAULT_ANSWER_KEY = "answer"
    DEFAULT_INSTRUCTION_PROMPT = ""
    DEFAULT_INSTRUCTION_PROMPT_POST = ""
    DEFAULT_DIFFICULTY_KEY: str | None = None
    DEFAULT_MIN_AVG_REWARD = 0.0
    DEFAULT_MAX_AVG_REWARD = 1.0

    def __init__(
        self,
        rubric: Rubric,
        dataset_name: str,
        dataset_subset: str | None,
        dataset_split: str,
        question_key: str = DEFAULT_QUESTION_KEY,
        answer_key: str = DEFAULT_ANSWER_KEY,
        instruction_prompt: str = DEFAULT_INSTRUCTION_PROMPT,
        instruction_prompt_post: str = DEFAULT_INSTRUCTION_PROMPT_POST,
        difficulty_key: str | None = DEFAULT_DIFFICULTY_KEY,
        min_avg_reward: float = DEFAULT_MIN_AVG_REWARD,
        max_avg_reward: float = DEFAULT_MAX_AVG_REWARD,
        **kwargs: Any,
    ) -> None:
        def build() -> Dataset:
            return self.construct_dataset(
                dataset_name,
                dataset_subset,
                dataset_split,
                question_key,
                answer_key,
                instruction_prompt,
                instruction_prompt_post,
                difficulty_key,
                min_avg_reward,
                max_avg_reward,
            )

        super().__init__(dataset=build, rubric=rubric, **kwargs)

    def construct_dataset(
        self,
        dataset_name: str,
        dataset_subset: str | None,
        dataset_split: str,
        question_key: str,
        answer_key: str,
        instruction_prompt: str,
        instruction_prompt_post: str,
        difficulty_key: str | None = None,
        min_avg_reward: float = 0.0,
        max_avg_reward: float = 1.0,
    ) -> Dataset:
        """Load the data set and return it with the columns `question` and `answer`.

        A `difficulty_key` that is not a column is ignored. Raises DatasetError (a ValueError) if another column is
        missing.
        """
        from datasets import load_dataset

        dataset: Any = load_dataset(dataset_name, dataset_subset, split=dataset_split)
        for key in (question_key, answer_key):
            if key not in dataset.column_names:
                raise DatasetError(
                    f"Column {key!r} not found in dataset {dataset_name}. Its columns: "
                    f"{', '.join(dataset.column_names)}. Set question_key and answer_key."
                )
        if difficulty_key is not None and difficulty_key in dataset.column_names:
            dataset = dataset.filter(
                lambda row: min_avg_reward <= row[difficulty_key] <= max_avg_reward
            )

        def formatted(row: dict[str, Any]) -> dict[str, Any]:
            question = f"{instruction_prompt}{row[question_key]}{instruction_prompt_post}"
            return {"question": question, "answer": row[answer_key]}

        return dataset.map(formatted)


__all__ = ["OpenCodeQAEnv"]

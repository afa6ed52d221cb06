"""`ReasoningGymEnv`: the procedural tasks of the `reasoning-gym` package, scored by the scorers of the package."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.envs.integrations.gym_env import RowsOnDemand
from verifiers.envs.multiturn_env import SingleTurnEnv
from verifiers.errors import ConfigError
from verifiers.parsers.parser import Parser
from verifiers.parsers.xml_parser import XMLParser
from verifiers.rubrics.rubric import Rubric
from verifiers.state import State
from verifiers.tasks import Row
from verifiers.types import Info, Messages

logger = logging.getLogger(__name__)

DEFAULT_SYSTEM_PROMPT = "reasoning-gym's own"
"""Stands for the default system prompt of the package, which asks for `<answer>…</answer>`."""


def _row(entry: Mapping[str, Any], index: int) -> Row:
    row: Row = {
        "question": entry["question"],
        "info": {"source_dataset": entry["metadata"]["source_dataset"], "rg_index": index},
    }
    if entry["answer"] is not None:  # some tasks have many correct answers and store none
        row["answer"] = str(entry["answer"])
    return row


class ReasoningGymEnv(SingleTurnEnv):
    """Asks one question of a generator per rollout.

    `gym` is the name of a generator, or a list of names and of dicts with `name`, `weight` and `config`, which are
    mixed by weight. Problem number i depends on `seed` and i only. The first `num_train_examples` problems are for
    training, the next `num_eval_examples` for evaluation.

    The generator's `score_answer` scores the parsed answer from 0 to 1. If the scorer raises, the answer scores 0.0
    and the metric `unscorable_answer` counts it. The row contains the answer of the problem if the generator stores
    one.
    """

    def __init__(
        self,
        gym: str | Sequence[str | Mapping[str, Any]],
        num_train_examples: int = 1000,
        num_eval_examples: int = 100,
        system_prompt: str | None = DEFAULT_SYSTEM_PROMPT,
        parser: Parser | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        rg = import_reasoning_gym()
        if (
            num_train_examples < 0
            or num_eval_examples < 0
            or not (num_train_examples + num_eval_examples)
        ):
            raise ConfigError(
                "ReasoningGymEnv needs at least one example; got "
                f"num_train_examples={num_train_examples}, num_eval_examples={num_eval_examples}."
            )
        self.gym = gym
        self.num_train_examples = num_train_examples
        self.num_eval_examples = num_eval_examples
        self.seed = seed
        self.rg_dataset = self.build_rg_dataset(
            gym, num_train_examples + num_eval_examples, seed=seed
        )
        if system_prompt == DEFAULT_SYSTEM_PROMPT:
            system_prompt = rg.utils.SYSTEM_PROMPTS["default"]
        dataset, eval_dataset = self.rg_to_hf(self.rg_dataset)
        parser = parser or XMLParser(["answer"])
        rubric = Rubric(parser=parser)
        rubric.add_reward_func(self.check_answer_reward_func)
        rubric.add_metric(parser.get_format_reward_func())
        rubric.add_metric(self.unscorable_answer)
        super().__init__(
            dataset=dataset,
            eval_dataset=eval_dataset,
            system_prompt=system_prompt,
            parser=parser,
            rubric=rubric,
            **kwargs,
        )

    def build_rg_dataset(
        self,
        gym: str | Sequence[str | Mapping[str, Any]],
        total_examples: int = 1000,
        seed: int = 0,
    ) -> Any:
        """Return the generator, or the mix of generators. Raises ConfigError that names the invalid part of `gym`."""
        rg = import_reasoning_gym()
        if isinstance(gym, str):
            _known(gym)
            return rg.create_dataset(gym, size=total_examples, seed=seed)
        specs = [_spec(one) for one in gym]
        names = [spec["name"] for spec in specs]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"gym must name at least one generator, and each only once; got {names}."
            )
        from reasoning_gym.composite import DatasetSpec

        mixed = [DatasetSpec(**spec) for spec in specs]
        try:
            return rg.create_dataset("composite", size=total_examples, seed=seed, datasets=mixed)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"reasoning-gym refuses {specs}: {error}") from error

    def rg_to_hf(self, rg_dataset: Any) -> tuple[Sequence[Row] | None, Sequence[Row] | None]:
        """Return training and evaluation rows, which have no problem number in common."""

        def problem(index: int) -> Row:
            return _row(rg_dataset[index], index)

        train = RowsOnDemand(problem, 0, self.num_train_examples)
        evaluation = RowsOnDemand(problem, self.num_train_examples, self.num_eval_examples)
        return train or None, evaluation or None

    # ------------------------------------------------------------------------------------------------ scoring

    def _scored(self, completion: Messages, info: Info) -> tuple[float, bool]:
        """Return the score, and whether the scorer raised."""
        answer = self.parser.parse_answer(completion)
        answer = answer if answer is None else str(answer).strip()
        if not answer:
            return 0.0, False
        entry = self.rg_dataset[info["rg_index"]]
        try:
            return float(self.rg_dataset.score_answer(answer, entry)), False
        except Exception as error:  # noqa: BLE001 - scorers read the model's text and may stumble over anything
            logger.debug("%s cannot score %r: %r", info["source_dataset"], answer[:200], error)
            return 0.0, True

    def check_answer_reward_func(
        self, completion: Messages, info: Info, state: State, **kwargs: Any
    ) -> float:
        """Return the generator's score of the parsed answer."""
        score, state["rg_unscorable"] = self._scored(completion, info)
        return score

    def unscorable_answer(self, state: State, **kwargs: Any) -> float:
        """Return 1.0 if the generator's scorer raised on the answer, which then scored 0.0."""
        return float(bool(state.get("rg_unscorable")))


def import_reasoning_gym() -> Any:
    """Return the `reasoning_gym` package. Raises ConfigError with the command to install."""
    try:
        with warnings.catch_warnings():
            # A dependency compares text with `is`, which Python reports at each first import.
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym
            import reasoning_gym.utils
    except ImportError as error:
        raise ConfigError(
            "ReasoningGymEnv needs the `reasoning-gym` package: pip install 'reasoning-gym>=0.1.19'."
        ) from error
    return reasoning_gym


def _known(name: Any) -> None:
    from difflib import get_close_matches

    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        near = get_close_matches(str(name), DATASETS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"Dataset {name!r} is not a generator of reasoning-gym, which has {len(DATASETS)}.{hint}"
        )


def _spec(entry: Any) -> dict[str, Any]:
    if isinstance(entry, str):
        entry = {"name": entry}
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ConfigError(
            f"Invalid dataset config: {entry!r}. Write a name, or a dict with name, weight and config."
        )
    if unknown := set(entry) - {"name", "weight", "config"}:
        raise ConfigError(
            f"{entry['name']!r} has unknown settings {sorted(unknown)}; the settings are name, weight and config."
        )
    _known(entry["name"])
    return {
        "name": entry["name"],
        "weight": float(entry.get("weight", 1.0)),
        "config": dict(entry.get("config") or {}),
    }

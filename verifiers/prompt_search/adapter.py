"""An environment and a reflecting model in the form that the synchronous `gepa` package calls (the API of 0.1.14).

`search_prompt` is the search inside an event loop. These classes are for programs that call `gepa.optimize` themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.clients import resolve_client
from verifiers.concurrency import run_sync
from verifiers.configs import ClientConfig
from verifiers.messages import content_text, message_to_printable, normalize_messages
from verifiers.prompt_search.rows import Row, play_candidate
from verifiers.types import RolloutOutput, SamplingArgs, UserMessage

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

logger = logging.getLogger(__name__)

COMPONENT = "system_prompt"
"""The component of a candidate that holds its text."""


@dataclass
class GEPAConfig:
    """The settings of a prompt search."""

    env_id: str
    env_args: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    reflection_model: str | None = None
    client_config: ClientConfig = field(default_factory=lambda: ClientConfig.model_validate({}))
    num_train_examples: int = 100
    num_val_examples: int = 50
    max_metric_calls: int = 500
    reflection_minibatch_size: int = 3
    initial_prompt: str | None = None
    state_columns: list[str] = field(default_factory=list)
    sampling_args: dict[str, Any] = field(default_factory=dict)
    max_concurrent: int = 32
    run_dir: Path | None = None
    seed: int = 0
    verbose: bool = False
    save_results: bool = True


class GEPADisplay:
    """Reports the progress of a search as lines of the log `verifiers`, and in `log_file`."""

    def __init__(
        self,
        env_id: str,
        model: str,
        reflection_model: str,
        max_metric_calls: int = 500,
        num_train: int | None = None,
        num_val: int | None = None,
        valset_size: int = 50,
        valset_example_ids: Sequence[int] | None = None,
        log_file: str | Path | None = None,
        perfect_score: float | None = None,
        screen: bool = False,
    ) -> None:
        self.env_id = env_id
        self.model = model
        self.reflection_model = reflection_model
        self.max_metric_calls = max_metric_calls
        self.num_train = num_train
        self.num_val = num_val
        self.valset_size = valset_size
        self.valset_example_ids = list(valset_example_ids or [])
        self.log_file = None if log_file is None else Path(log_file)
        self.perfect_score = perfect_score
        self.screen = screen
        self.metric_calls = 0

    def start(self) -> None:
        """Report the environment, the models and the limit."""
        self.log(
            f"{self.env_id}: {self.model}, prompts by {self.reflection_model}, "
            f"at most {self.max_metric_calls} rollouts"
        )

    def stop(self) -> None:
        """Report how many rollouts were played."""
        self.log(f"{self.env_id}: {self.metric_calls} rollouts played")

    def log(self, message: str) -> None:
        """Write one line. gepa calls this method as well."""
        logger.info("%s", message)
        if self.log_file is not None:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            with self.log_file.open("a", encoding="utf-8") as file:
                file.write(f"{message}\n")

    def set_valset_info(self, valset_size: int, valset_example_ids: Sequence[int]) -> None:
        """Set the size of the validation set and its example ids."""
        self.valset_size = valset_size
        self.valset_example_ids = list(valset_example_ids)

    def update_eval(
        self,
        candidate_idx: int,
        scores: Sequence[float],
        example_ids: Sequence[int],
        capture_traces: bool = False,
    ) -> None:
        """Report the scores of one batch of rollouts with one prompt."""
        self.metric_calls += len(scores)
        mean = sum(scores) / len(scores) if scores else 0.0
        kind = "minibatch" if capture_traces else "evaluation"
        self.log(
            f"prompt {candidate_idx}: {kind} of {len(example_ids)} examples, mean reward {mean:.3f} "
            f"({self.metric_calls}/{self.max_metric_calls} rollouts)"
        )

    def set_result(self, best_prompt: str | None = None, save_path: str | None = None) -> None:
        """Report the best prompt and the folder of the results."""
        if save_path is not None:
            self.log(f"saved in {save_path}")
        if best_prompt is not None:
            self.log(f"best prompt: {best_prompt}")


@dataclass
class VerifiersGEPAAdapter:
    """An environment as gepa's adapter: `evaluate` plays and scores, `make_reflective_dataset` reports the rollouts."""

    env: Environment
    client: Any
    """A client, or the configuration of one."""
    model: str
    sampling_args: SamplingArgs | None = None
    max_concurrent: int = 32
    state_columns: list[str] = field(default_factory=list)
    display: GEPADisplay | None = None
    propose_new_texts: Callable[..., dict[str, str]] | None = None
    """A function that writes the new prompts; None is gepa's."""
    _seen_prompts: dict[str, int] = field(default_factory=dict)

    def evaluate(
        self, batch: Sequence[Row], candidate: Mapping[str, str], capture_traces: bool = False
    ) -> Any:
        """Play the rows with the candidate's `system_prompt`; return gepa's `EvaluationBatch` in their order."""
        from gepa.core.adapter import EvaluationBatch

        text = candidate.get(COMPONENT, "")
        outputs, scores = run_sync(
            lambda: play_candidate(
                self.env,
                batch,
                text,
                self.client,
                self.model,
                self.sampling_args,
                max_concurrent=self.max_concurrent,
                state_columns=self.state_columns,
            )
        )
        number = self._seen_prompts.setdefault(text, len(self._seen_prompts))
        if self.display is not None:
            self.display.update_eval(
                candidate_idx=number,
                scores=scores,
                example_ids=[output["example_id"] for output in outputs],
                capture_traces=capture_traces,
            )
        return EvaluationBatch(
            outputs=outputs, scores=scores, trajectories=outputs if capture_traces else None
        )

    def make_reflective_dataset(
        self, candidate: Mapping[str, str], eval_batch: Any, components_to_update: Sequence[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return one record per rollout for each component; no records if the rollouts were not kept."""
        outputs = eval_batch.trajectories or []
        records = [
            self._record(output, score)
            for output, score in zip(outputs, eval_batch.scores, strict=False)
        ]
        return {component: list(records) for component in components_to_update}

    def _record(self, output: RolloutOutput, score: float) -> dict[str, Any]:
        completion = output.get("completion") or []
        record: dict[str, Any] = {
            "query": user_query(output.get("prompt") or []),
            "completion": completion
            if isinstance(completion, str)
            else [message_to_printable(message) for message in completion],
            "expected_answer": output.get("answer", ""),
            "reward": output.get("reward", score),
        }
        for name in ("error", "stop_condition"):
            if output.get(name):
                record[name] = output[name]
        record |= {name: output[name] for name in self.state_columns if name in output}
        return record


def user_query(prompt: Any) -> str:
    """Return the text of the first user message of a prompt, or a text prompt."""
    if isinstance(prompt, str):
        return prompt
    asked = (message for message in prompt if message["role"] == "user")
    first = next(asked, None)
    return "" if first is None else content_text(first["content"] or "")


async def reflect(client: Any, model: str, sampling_args: SamplingArgs, prompt: Any) -> str:
    """Return the reply of the reflecting model to a text or to messages."""
    messages = [UserMessage(content=prompt)] if isinstance(prompt, str) else prompt
    asked = normalize_messages(messages, field_name="reflection")
    reply = await client.get_response(asked, model, sampling_args)
    return content_text(reply.message.content) if reply.message.content else ""


def make_reflection_lm(
    client_config: ClientConfig, model: str, **kwargs: Any
) -> Callable[[Any], str]:
    """Return a synchronous function from a prompt (a text or messages) to the model's reply.

    `kwargs` are sampling arguments.
    """
    client = resolve_client(client_config)

    def reflection_lm(prompt: Any) -> str:
        return run_sync(lambda: reflect(client, model, dict(kwargs), prompt))

    return reflection_lm

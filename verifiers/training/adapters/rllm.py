"""Rollouts as rLLM's episodes, and a workflow that plays them on its rollout engine.

    AgentTrainer(workflow_class=VerifiersWorkflow, workflow_args={"env": env}, train_dataset=rows, ...)

`rows`: those of `env.get_dataset()`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from verifiers.dialects import chat_completions
from verifiers.training.adapters import trainer_module
from verifiers.training.adapters.play import play_groups
from verifiers.training.adapters.rllm_engine import RolloutEngineClient
from verifiers.training.samples import SampleError, failure_of, samples_of

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

INSTALL = "pip install git+https://github.com/rllm-org/rllm"


def episode_of(
    output: Mapping[str, Any], uid: str, task: Any = None, said: Sequence[Any] = ()
) -> Any:
    """The `Episode` of a rollout: one trajectory with a step a turn.

    `said`: the `ModelOutput`s that rLLM's engine gave (`RolloutEngineClient(engine, said=…)`). A turn gets its own,
    which may hold more than tokens: the version of the weights, routing. Raises SampleError for a rollout that failed,
    which rLLM counts as an error and does not train on.
    """
    agent = trainer_module("rllm.agents.agent", "Episode", "Step", "Trajectory", install=INSTALL)
    if not samples_of(output):
        raise SampleError(f"The rollout is not trained on: {failure_of(output) or 'no tokens'}.")
    steps = [
        agent.Step(
            prompt_ids=step["tokens"]["prompt_ids"],
            response_ids=step["tokens"]["completion_ids"],
            logprobs=step["tokens"]["completion_logprobs"],
            chat_completions=[
                dict(message)
                for message in chat_completions.native_messages(
                    [*step["prompt"], *step["completion"]]
                )
            ],
            # rLLM's backends train on the ids of the model's output; without one they tokenise the messages anew.
            model_output=_model_output(step, said),
            reward=float(step.get("reward") or 0.0),
        )
        for step in output["trajectory"]
    ]
    steps[-1].done = True
    reward = float(output["reward"])
    trajectory = agent.Trajectory(name="verifiers", task=task, steps=steps, reward=reward)
    metrics = dict(output.get("metrics") or {})
    return agent.Episode(
        id=uid, task=task, is_correct=reward > 0, trajectories=[trajectory], metrics=metrics
    )


def _model_output(step: Mapping[str, Any], said: Sequence[Any]) -> Any:
    tokens = step["tokens"]
    prompt_ids, ids = list(tokens["prompt_ids"]), list(tokens["completion_ids"])
    for output in said:
        if list(output.completion_ids or ()) == ids and list(output.prompt_ids or ()) == prompt_ids:
            return output
    rollout = trainer_module("rllm.engine.rollout", "ModelOutput", install=INSTALL)
    content = chat_completions.native_message(step["completion"][0]).get("content") or ""
    return rollout.ModelOutput(
        text=content,
        content=content,
        prompt_ids=prompt_ids,
        completion_ids=ids,
        logprobs=list(tokens["completion_logprobs"]),
        prompt_length=len(prompt_ids),
        completion_length=len(ids),
        finish_reason="length" if step.get("is_truncated") else "stop",
    )


@cache
def _workflow_class() -> type:
    base = trainer_module("rllm.workflows.workflow", "Workflow", install=INSTALL).Workflow

    class VerifiersWorkflow(base):
        """One rollout of `env` on rLLM's rollout engine."""

        def __init__(self, rollout_engine: Any, env: Environment,
                     sampling_args: Mapping[str, Any] | None = None, **kwargs: Any) -> None:  # fmt: skip
            super().__init__(rollout_engine=rollout_engine, **kwargs)
            self._env = env
            self._sampling_args = dict(sampling_args or {})

        async def run(self, task: dict[str, Any], uid: str, **kwargs: Any) -> Any:
            """Called by rLLM with a row of the dataset."""
            self.reset(task, uid)
            said: list[Any] = []
            client = RolloutEngineClient(self.rollout_engine, said=said)
            model = str(getattr(self.rollout_engine, "model", None) or "rllm")
            [[state]] = await play_groups(self._env, [[task]], client, model, self._sampling_args)
            return episode_of(state, uid, task, said)

    return VerifiersWorkflow


def __getattr__(name: str) -> Any:
    if name == "VerifiersWorkflow":
        return _workflow_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""With doubles of rLLM's `Episode`, `Workflow` and `RolloutEngine`; the engine is the embedded model."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from engines import HFTokenizer, engine
from games import alternating, play, tool_game, two_turns

from verifiers.endpoint import Generation
from verifiers.testing import ScriptedClient
from verifiers.training.adapters import TrainerMissing, rllm
from verifiers.training.adapters.rllm import RolloutEngineClient
from verifiers.training.samples import SampleError, samples_of
from verifiers.training.validation import validate


@dataclass
class ModelOutput:
    text: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_length: int = 0
    completion_length: int = 0
    finish_reason: str | None = None
    weight_version: int | None = None


@dataclass
class Step:
    prompt_ids: list[int] = field(default_factory=list)
    response_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    chat_completions: list[dict[str, str]] = field(default_factory=list)
    model_output: ModelOutput | None = None
    reward: float = 0.0
    done: bool = False
    weight_version: int | None = None

    def __post_init__(self):
        if self.weight_version is None and self.model_output is not None:
            self.weight_version = self.model_output.weight_version
        assert not self.logprobs or len(self.response_ids) == len(self.logprobs)


@dataclass
class Trajectory:
    name: str = ""
    task: Any = None
    steps: list[Step] = field(default_factory=list)
    reward: float | None = None

    def is_cumulative(self):
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return all(
            b.chat_completions[: len(a.chat_completions)] == a.chat_completions for a, b in pairs
        )


@dataclass
class Episode:
    id: str = ""
    task: Any = None
    is_correct: bool = False
    trajectories: list[Trajectory] = field(default_factory=list)
    metrics: dict = field(default_factory=dict)


class Workflow:
    def __init__(self, rollout_engine, executor=None, timeout=1e6):
        self.rollout_engine = rollout_engine

    def reset(self, task=None, uid=None):
        self.task, self.uid = task, uid


class RolloutEngine:
    model = "embedded"

    def __init__(self, said=None):
        self.said = said
        self.calls = []

    async def get_model_response(self, messages, **kwargs):
        self.calls.append(kwargs)
        ids = HFTokenizer().apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        [sequence] = engine().run(Generation(ids, max_tokens=kwargs["max_tokens"]))
        output = {
            "text": sequence.text, "content": sequence.text, "reasoning": None, "tool_calls": None,
            "prompt_ids": ids, "completion_ids": sequence.token_ids,
            "logprobs": sequence.token_logprobs, "finish_reason": sequence.finish_reason,
            "weight_version": 7,
        }  # fmt: skip
        return ModelOutput(**output | (self.said(len(self.calls)) if self.said else {}))


def trained_by_a_backend(episode):
    """What rLLM's backends for verl and SkyRL take of an episode: ids of steps with a `ModelOutput`, no others."""
    steps = [step for trajectory in episode.trajectories for step in trajectory.steps]
    assert all(isinstance(step.model_output, ModelOutput) for step in steps)
    return [
        (s.model_output.prompt_ids, s.model_output.completion_ids, s.model_output.logprobs)
        for s in steps
    ]


@pytest.fixture
def installed(package):
    package("rllm.engine.rollout", ModelOutput=ModelOutput)
    package("rllm.agents.agent", Step=Step, Trajectory=Trajectory, Episode=Episode)
    package("rllm.workflows.workflow", Workflow=Workflow)
    rllm._workflow_class.cache_clear()
    yield
    rllm._workflow_class.cache_clear()


async def test_a_workflow_plays_a_row_on_rllm_s_engine(installed):
    env = two_turns()
    engine = RolloutEngine()
    flow = rllm.VerifiersWorkflow(
        rollout_engine=engine, env=env, sampling_args={"max_completion_tokens": 40}, timeout=5
    )
    task = env.get_dataset()[2]
    episode = await flow.run(task, "7:0")
    assert (episode.id, episode.task, episode.is_correct) == ("7:0", task, False)
    [trajectory] = episode.trajectories
    assert trajectory.is_cumulative()
    assert [step.done for step in trajectory.steps] == [False, True]
    assert trajectory.steps[1].chat_completions[-2] == {"role": "user", "content": "go on"}
    assert {call["max_tokens"] for call in engine.calls} == {40}
    assert len({call["application_id"] for call in engine.calls}) == 1
    # What the engine said goes along as it is, the version of its weights included.
    assert [step.weight_version for step in trajectory.steps] == [7, 7]
    assert trained_by_a_backend(episode) == [
        (step.prompt_ids, step.response_ids, step.logprobs) for step in trajectory.steps
    ]


async def test_tool_calls_of_the_engine_reach_the_tools(installed):
    call = SimpleNamespace(name="add", arguments={"a": 2, "b": 3})

    def said(number):
        return {"tool_calls": [call], "content": ""} if number == 1 else {}

    engine = RolloutEngine(said)
    env = tool_game(sampling_args={"max_tokens": 30})
    [state] = await play(env, RolloutEngineClient(engine), size=1)
    assert state["error"] is None
    assert state["completion"][1]["content"] == "5"
    assert engine.calls[0]["tools"][0]["function"]["name"] == "add"
    assert validate(samples_of(state), state).is_ok


async def test_steps_have_the_tokens_of_the_turns(installed):
    for state in await play(two_turns(), alternating()):
        episode = rllm.episode_of(state, "0:0")
        [trajectory] = episode.trajectories
        assert trained_by_a_backend(episode) == [
            (list(own["prompt_ids"]), list(own["completion_ids"]), list(own["completion_logprobs"]))
            for own in (step["tokens"] for step in state["trajectory"])
        ]
        for step, own in zip(trajectory.steps, state["trajectory"], strict=True):
            assert step.prompt_ids == own["tokens"]["prompt_ids"]
            assert step.response_ids == own["tokens"]["completion_ids"]
        assert trajectory.reward == state["reward"]


async def test_a_failed_rollout_is_an_error_for_rllm(installed):
    broken = ScriptedClient(then=RuntimeError("no"), token_ids=True)
    [state] = await play(two_turns(), broken, size=1)
    with pytest.raises(SampleError, match="not trained on: the rollout failed"):
        rllm.episode_of(state, "0:0")


def test_without_rllm_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rllm", None)
    rllm._workflow_class.cache_clear()
    with pytest.raises(TrainerMissing, match=r"pip install git.*rllm-org/rllm"):
        rllm.VerifiersWorkflow  # noqa: B018

"""With doubles of `tinker` and of tinker-cookbook's types; the sampling client samples from the embedded model."""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from engines import HFTokenizer, engine
from games import EditedTurns, alternating, play, two_turns

from verifiers.endpoint import Generation, Sampling
from verifiers.testing import ScriptedClient
from verifiers.training.adapters import TrainerMissing
from verifiers.training.adapters.tinker import tinker_client, trajectory_group
from verifiers.training.samples import SampleError


@dataclass(frozen=True)
class ModelInput:
    ids: tuple[int, ...]

    @classmethod
    def from_ints(cls, ids):
        return cls(tuple(ids))

    @classmethod
    def empty(cls):
        return cls(())


@dataclass
class SamplingParams:
    temperature: float
    max_tokens: int
    top_p: float
    top_k: int
    stop: list


@dataclass
class TokensWithLogprobs:
    tokens: list[int]
    maybe_logprobs: list[float] | None


@dataclass
class Transition:
    ob: ModelInput
    ac: TokensWithLogprobs
    reward: float
    episode_done: bool
    metrics: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    transitions: list[Transition]
    final_ob: ModelInput


@dataclass
class TrajectoryGroup:
    trajectories_G: list[Trajectory]
    final_rewards_G: list[float]
    metrics_G: list[dict]


class SamplingClient:
    async def sample_async(self, prompt, num_samples, sampling_params):
        assert num_samples == 1
        self.params = sampling_params
        [sequence] = engine().run(
            Generation(
                list(prompt.ids),
                max_tokens=sampling_params.max_tokens,
                sampling=Sampling(temperature=sampling_params.temperature),
                stop_token_ids=tuple(sampling_params.stop),
            )
        )
        said = SimpleNamespace(tokens=sequence.token_ids, logprobs=sequence.token_logprobs)
        return SimpleNamespace(sequences=[said])


@pytest.fixture
def cookbook(package):
    package("tinker", ModelInput=ModelInput, SamplingParams=SamplingParams)
    package("tinker_cookbook.completers", TokensWithLogprobs=TokensWithLogprobs)
    package(
        "tinker_cookbook.rl.types",
        Transition=Transition,
        Trajectory=Trajectory,
        TrajectoryGroup=TrajectoryGroup,
    )


async def test_every_turn_is_a_transition_with_what_the_model_saw_and_said(cookbook):
    states = await play(two_turns(), alternating())
    group = trajectory_group(states)
    assert group.final_rewards_G == [state["reward"] for state in states]
    assert group.metrics_G == [state["metrics"] for state in states]
    for state, trajectory in zip(states, group.trajectories_G, strict=True):
        assert [t.episode_done for t in trajectory.transitions] == [False, True]
        for step, transition in zip(state["trajectory"], trajectory.transitions, strict=True):
            assert list(transition.ob.ids) == step["tokens"]["prompt_ids"]
            assert transition.ac.tokens == step["tokens"]["completion_ids"]
            assert transition.ac.maybe_logprobs == step["tokens"]["completion_logprobs"]


async def test_branching_rollouts_are_welcome(cookbook):
    group = trajectory_group(await play(two_turns(EditedTurns), alternating()))
    assert [len(t.transitions) for t in group.trajectories_G] == [2, 2]


async def test_failed_rollouts_are_left_out(cookbook):
    replies = ["yes", RuntimeError("broken"), "yes", "no"]
    states = await play(two_turns(), ScriptedClient(replies, token_ids=True))
    assert len(trajectory_group(states).trajectories_G) == 1
    failed = [state for state in states if state["error"] is not None]
    with pytest.raises(SampleError, match="None of 1 rollouts can be trained on"):
        trajectory_group(failed)


async def test_the_sampling_client_plays(cookbook):
    sampler = SamplingClient()
    client = tinker_client(sampler, HFTokenizer())
    states = await play(two_turns(sampling_args={"max_tokens": 80, "temperature": 0.5}), client)
    assert [state["error"] for state in states] == [None, None]
    assert sampler.params == SamplingParams(0.5, 80, 1.0, -1, [HFTokenizer.eos_token_id])
    for trajectory in trajectory_group(states).trajectories_G:
        first, second = trajectory.transitions
        seen = [*first.ob.ids, *first.ac.tokens]
        assert list(second.ob.ids[: len(seen)]) == seen


async def test_the_recipe_of_the_cookbook_gets_states(cookbook):
    """Semaphores by name, a list of states back."""
    env = two_turns()
    rows = [env.get_dataset(n=1)[0]] * 2
    states = await env.run_group(
        group_inputs=rows, client=alternating(), model="tinker", gen_sampling_args={},
        gen_sem=nullcontext(), score_sem=asyncio.Semaphore(1),
    )  # fmt: skip
    assert trajectory_group(states).final_rewards_G == [state["reward"] for state in states]


async def test_without_the_packages_the_error_says_how_to_install_them(monkeypatch):
    import sys

    for name in ("tinker", "tinker_cookbook"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TrainerMissing, match="pip install tinker tinker-cookbook"):
        tinker_client(SamplingClient(), HFTokenizer())
    with pytest.raises(TrainerMissing, match="pip install tinker tinker-cookbook"):
        trajectory_group([])

"""With doubles of ART's pydantic classes; `Choice` is OpenAI's own, as in ART."""

import sys

import pydantic
import pytest
from games import EditedTurns, alternating, play, tool_game, two_turns
from openai.types.chat.chat_completion import Choice

from verifiers.testing import ScriptedClient, call
from verifiers.training.adapters import TrainerMissing
from verifiers.training.adapters.art import trajectory_group, trajectory_of
from verifiers.training.samples import SampleError


class Trajectory(pydantic.BaseModel):
    messages_and_choices: list[Choice | dict]
    tools: list[dict] | None = None
    reward: float
    metrics: dict[str, float | int | bool] = {}
    metadata: dict[str, float | int | str | bool | None] = {}


class TrajectoryGroup:
    def __init__(self, trajectories, *, metadata=None, exceptions=()):
        self.trajectories = [one for one in trajectories if isinstance(one, Trajectory)]
        self.exceptions = list(exceptions)


@pytest.fixture(autouse=True)
def installed(package):
    package("art", Trajectory=Trajectory, TrajectoryGroup=TrajectoryGroup)


def sampled(choice):
    """Token ids and log-probabilities as ART reads them."""
    content = choice.logprobs.content
    return [int(t.token.split(":")[1]) for t in content], [t.logprob for t in content]


async def test_what_the_policy_said_are_choices_with_its_tokens():
    states = await play(two_turns(), alternating())
    group = trajectory_group(states)
    assert [t.reward for t in group.trajectories] == [state["reward"] for state in states]
    for state, trajectory in zip(states, group.trajectories, strict=True):
        kinds = [isinstance(one, Choice) for one in trajectory.messages_and_choices]
        assert kinds == [False, True, False, True]
        choices = [one for one in trajectory.messages_and_choices if isinstance(one, Choice)]
        for choice, step in zip(choices, state["trajectory"], strict=True):
            tokens = step["tokens"]
            assert sampled(choice) == (tokens["completion_ids"], tokens["completion_logprobs"])
        assert trajectory.metadata == {"example_id": "0"}


async def test_tools_and_their_calls_go_along():
    client = ScriptedClient([[call("add", a=2, b=3)], "yes, 5"], token_ids=True)
    [state] = await play(tool_game(), client, size=1)
    trajectory = trajectory_of(state)
    assert trajectory.tools[0]["function"]["name"] == "add"
    _, called, result, answer = trajectory.messages_and_choices
    assert called.finish_reason == "tool_calls"
    assert called.message.tool_calls[0].function.name == "add"
    assert (result["role"], result["content"]) == ("tool", "5")
    assert answer.message.content == "yes, 5"


async def test_a_branching_rollout_is_refused_or_reduced_to_its_last_turn():
    [state] = await play(two_turns(EditedTurns), alternating(), size=1)
    with pytest.raises(SampleError, match="does not continue the tokens"):
        trajectory_of(state)
    kinds = [
        isinstance(one, Choice)
        for one in trajectory_of(state, on_drift="last").messages_and_choices
    ]
    assert kinds == [False, False, False, True]


async def test_failed_rollouts_are_exceptions_of_the_group():
    replies = ["yes", RuntimeError("broken"), "yes", "no"]
    states = await play(two_turns(), ScriptedClient(replies, token_ids=True))
    group = trajectory_group(states)
    assert len(group.trajectories) == len(group.exceptions) == 1
    assert "the rollout failed" in str(group.exceptions[0])


async def test_without_art_the_error_says_how_to_install_it(monkeypatch):
    [state] = await play(two_turns(), alternating(), size=1)
    monkeypatch.setitem(sys.modules, "art", None)
    with pytest.raises(TrainerMissing, match="pip install openpipe-art"):
        trajectory_of(state)

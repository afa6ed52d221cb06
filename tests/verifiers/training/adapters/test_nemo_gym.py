"""Against what NeMo Gym's `verifiers_agent` makes of rollouts, and what NeMo RL asserts of the result."""

import json

import pytest
from games import EditedTurns, alternating, play, tool_game, two_turns

import verifiers as vf
from verifiers.testing import ScriptedClient, call
from verifiers.training.adapters.nemo_gym import dataset_rows, response_items
from verifiers.training.samples import SampleError


def trained_turns(items):
    """NeMo RL's pass over the items: each turn's prompt must begin with all that was seen before."""
    seen, turns = [], []
    for item in items:
        if "generation_token_ids" in item:
            assert seen == item["prompt_token_ids"][: len(seen)]
            assert len(item["generation_token_ids"]) == len(item["generation_log_probs"])
            seen = item["prompt_token_ids"] + item["generation_token_ids"]
            turns.append(item["generation_token_ids"])
    return turns


async def test_items_are_the_conversation_with_tokens_on_the_answers():
    for state in await play(two_turns(), alternating()):
        items = response_items(state)
        assert [item["role"] for item in items] == ["assistant", "user", "assistant"]
        own = [step["tokens"]["completion_ids"] for step in state["trajectory"]]
        assert trained_turns(items) == own
        assert json.loads(json.dumps(items)) == items


async def test_tokens_are_on_the_last_item_of_an_answer_with_calls():
    client = ScriptedClient(
        [[call("add", a=2, b=3), call("add", a=1, b=1)], "yes, 5"], token_ids=True
    )
    [state] = await play(tool_game(), client, size=1)
    items = response_items(state)
    assert [item["type"] for item in items] == [
        "function_call", "function_call", "function_call_output", "function_call_output", "message"
    ]  # fmt: skip
    assert ["generation_token_ids" in item for item in items] == [False, True, False, False, True]
    assert (items[0]["name"], json.loads(items[0]["arguments"])) == ("add", {"a": 2, "b": 3})
    assert items[2]["call_id"] == items[0]["call_id"]
    assert len(trained_turns(items)) == 2


async def test_what_nemo_rl_would_stop_at_is_refused_before():
    [state] = await play(two_turns(EditedTurns), alternating(), size=1)
    with pytest.raises(SampleError, match="does not continue the tokens"):
        response_items(state)
    broken = ScriptedClient(then=RuntimeError("no"), token_ids=True)
    [state] = await play(two_turns(), broken, size=1)
    with pytest.raises(SampleError, match="not trained on: the rollout failed"):
        response_items(state)


async def test_a_row_of_the_file_is_played_by_nemo_gym_s_own_agent():
    """The calls of `VerifiersAgent.responses`, with what it reads of the result."""
    env = two_turns()
    body = json.loads(json.dumps(dataset_rows(env)[1]))
    assert body["task_idx"] == 1
    outputs = await env.run_group(
        group_inputs=[
            vf.RolloutInput(
                prompt=body["responses_create_params"]["input"],
                answer=body["answer"],
                info=body["info"],
                example_id=body["example_id"],
            )
        ],
        client=alternating(), model="m",
        sampling_args={"max_tokens": 8192, "temperature": 1.0, "top_p": 1.0},
        state_columns=["trajectory"],
    )  # fmt: skip
    [output] = outputs
    assert output.get("reward", 0.0) == 0.0
    assert isinstance(output.get("metrics"), dict)
    steps = output.get("trajectory")
    assert all(isinstance(step, dict) for step in steps)
    assert [step["tokens"].get("completion_ids", []) for step in steps] == trained_turns(
        response_items(output)
    )

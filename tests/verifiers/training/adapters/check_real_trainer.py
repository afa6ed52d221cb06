"""`python check_real_trainer.py NAME`: an adapter with the trainer's own classes, in a Python that has the trainer.

Run by test_real_trainers.py. What is checked is what the trainer makes of it: its classes take what the adapter makes,
and its own code for training data gives the tokens, masks and log-probabilities that were sampled.
"""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parent))

from games import EditedTurns, alternating, play, tool_game, two_turns

from verifiers.testing import ScriptedClient, call
from verifiers.training.samples import samples_of


class ByteTokenizer:
    """A tokenizer with a chat template, as far as `EngineClient` asks for one: ids are bytes, 0 ends a turn."""

    eos_token_id = 0

    def apply_chat_template(self, messages, tools=None, tokenize=True, add_generation_prompt=False):
        text = "".join(f"<{m['role']}>{m['content']}\0" for m in messages)
        return list((text + "<assistant>" * add_generation_prompt).encode())

    def decode(self, ids, skip_special_tokens=True):
        return bytes(one for one in ids if one or not skip_special_tokens).decode()


def scripted_ids(turn: int) -> list[int]:
    return list(f"{'yes' if turn % 2 else 'no'}\0".encode())


# ------------------------------------------------------------------------------------------------ Tinker


async def tinker() -> None:
    import numpy as np
    import tinker
    from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages
    from tinker_cookbook.rl.types import TrajectoryGroup

    from verifiers.training.adapters.tinker import tinker_client, trajectory_group

    asked = []

    class Sampler:
        async def sample_async(self, prompt, num_samples, sampling_params):
            assert isinstance(prompt, tinker.ModelInput)
            assert isinstance(sampling_params, tinker.SamplingParams)
            asked.append(prompt.to_ints())
            ids = scripted_ids(len(asked))
            said = tinker.SampledSequence(
                stop_reason="stop",
                sequence_id="0",
                tokens_np=np.array(ids),
                logprobs_np=np.full(len(ids), -0.5, np.float32),
            )
            return tinker.SampleResponse(sequences=[said])

    states = await play(two_turns(), tinker_client(Sampler(), ByteTokenizer()))
    group = trajectory_group(states)
    assert isinstance(group, TrajectoryGroup)
    assert len(asked) == 2 * len(states)
    advantages = compute_advantages([group])
    data, _ = assemble_training_data([group], advantages)
    assert len(data) == len(states)  # turns that continue each other are one datum
    for datum, state, advantage in zip(data, states, advantages[0].tolist(), strict=True):
        [sample] = samples_of(state)
        # Theirs is shifted: input t predicts target t.
        ids = sample.token_ids.tolist()
        assert datum.model_input.to_ints() == ids[:-1]
        inputs = {name: value.to_torch().tolist() for name, value in datum.loss_fn_inputs.items()}
        assert inputs["target_tokens"] == ids[1:]
        mask = sample.mask[1:].tolist()
        assert [bool(one) for one in inputs["mask"]] == mask
        assert inputs["logprobs"] == sample.logprobs[1:].tolist()
        assert inputs["advantages"] == [advantage * own for own in mask]
    edited = trajectory_group(await play(two_turns(EditedTurns), alternating()))
    assert len(assemble_training_data([edited], compute_advantages([edited]))[0]) == 4


# ------------------------------------------------------------------------------------------------ ART


async def art() -> None:
    import art
    from openai.types.chat.chat_completion import Choice

    from verifiers.training.adapters.art import trajectory_group, trajectory_of

    replies = ["yes", RuntimeError("broken"), "yes", "no"]
    states = await play(two_turns(), ScriptedClient(replies, token_ids=True))
    group = trajectory_group(states)
    assert isinstance(group, art.TrajectoryGroup)
    healthy = [state for state in states if state["error"] is None]
    assert len(group.trajectories) == len(healthy) == 1
    assert len(group.exceptions) == 1
    [trajectory], [state] = group.trajectories, healthy
    assert isinstance(trajectory, art.Trajectory)
    assert trajectory.reward == state["reward"]
    spoken = [one for one in trajectory.messages_and_choices if isinstance(one, Choice)]
    for choice, step in zip(spoken, state["trajectory"], strict=True):
        ids = [int(one.token.removeprefix("token_id:")) for one in choice.logprobs.content]
        assert ids == step["tokens"]["completion_ids"]
        assert [one.logprob for one in choice.logprobs.content] == step["tokens"][
            "completion_logprobs"
        ]
    roles = [message["role"] for message in trajectory.messages()]
    assert roles == ["user", "assistant", "user", "assistant"]
    assert json.loads(trajectory.model_dump_json())["reward"] == state["reward"]
    replies = [call("add", a=2, b=3), "yes"]
    [with_tools] = await play(tool_game(), ScriptedClient(replies, token_ids=True), 1)
    found = trajectory_of(with_tools)
    assert found.tools[0]["function"]["name"] == "add"
    assert [m["role"] for m in found.messages()] == ["user", "assistant", "tool", "assistant"]


# ------------------------------------------------------------------------------------------------ verl


async def verl() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

    from verifiers.training.adapters.verl import VerifiersAgentLoop, dataset_rows, run_rollout

    assert issubclass(VerifiersAgentLoop, AgentLoopBase)
    asked = []

    class Servers:
        async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
            asked.append(prompt_ids)
            ids = scripted_ids(len(asked))
            return SimpleNamespace(token_ids=ids, log_probs=[-0.5] * len(ids))

    env = two_turns()
    row = json.loads(dataset_rows(env)[0]["extra_info"]["verifiers"])
    fields = await run_rollout(
        env, row, Servers(), ByteTokenizer(), {"temperature": 1.0},
        prompt_length=100, response_length=100,
    )  # fmt: skip
    output = AgentLoopOutput(**fields)
    assert output.prompt_ids == asked[0]
    sampled = [i for i, own in zip(output.response_ids, output.response_mask, strict=True) if own]
    assert sampled == scripted_ids(1) + scripted_ids(2)
    assert output.prompt_ids + output.response_ids == asked[1] + scripted_ids(2)
    assert len(output.response_logprobs) == len(output.response_ids)
    assert (output.reward_score, output.num_turns) == (0.0, 4)


# ------------------------------------------------------------------------------------------------ NeMo Gym


async def nemo_gym() -> None:
    from nemo_gym.openai_utils import NeMoGymResponse

    from verifiers.training.adapters.nemo_gym import response_items

    states = await play(two_turns(), alternating())
    for state in states:
        items = response_items(state)
        response = NeMoGymResponse.model_validate(
            {
                "id": "r", "created_at": 0, "model": "m", "object": "response", "output": items,
                "parallel_tool_calls": False, "tool_choice": "auto", "tools": [],
            }
        )  # fmt: skip
        said = [item for item in response.output if getattr(item, "generation_token_ids", None)]
        assert [item.generation_token_ids for item in said] == [
            step["tokens"]["completion_ids"] for step in state["trajectory"]
        ]
        assert [item.prompt_token_ids for item in said] == [
            step["tokens"]["prompt_ids"] for step in state["trajectory"]
        ]
        assert [item.generation_log_probs for item in said] == [
            step["tokens"]["completion_logprobs"] for step in state["trajectory"]
        ]


CHECKS = {"tinker": tinker, "art": art, "verl": verl, "nemo_gym": nemo_gym}

if __name__ == "__main__":
    asyncio.run(CHECKS[sys.argv[1]]())
    sys.stdout.write("ok\n")

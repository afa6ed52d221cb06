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

from games import EditedTurns, alternating, play, question_env, tool_game, two_turns

from verifiers.testing import Reply, ScriptedClient, call
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
    ends = [t.ac.stop_reason for own in group.trajectories_G for t in own.transitions]
    assert ends == ["stop"] * len(asked)
    cut = ScriptedClient(then=Reply("yes", finish_reason="length"), token_ids=True)
    [trajectory] = trajectory_group(await play(question_env(), cut, size=1)).trajectories_G
    assert trajectory.transitions[-1].ac.stop_reason == "length"
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
    await verl_makes_the_loop(Servers())


async def verl_makes_the_loop(servers) -> None:
    """As its worker does it: an entry of agent_loops.yaml, instantiated by hydra for each rollout."""
    import sys
    from types import ModuleType

    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from verifiers.training.adapters.verl import dataset_rows

    made = []
    module = ModuleType("listed_game")
    module.load_environment = lambda **options: made.append(options) or two_turns()
    sys.modules["listed_game"] = module
    entry = OmegaConf.create(
        {
            "name": "verifiers",
            "_target_": "verifiers.training.adapters.verl.VerifiersAgentLoop",
            "env_id": "listed-game",
            "env_args": {"levels": [1, 2], "names": {"a": "b"}},
        }
    )
    lengths = {"prompt_length": 100, "response_length": 100}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": lengths}, "data": {}})
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = "{{ messages }}"
    loop = hydra.utils.instantiate(
        config=entry,
        trainer_config=DictConfigWrap(config=config),
        server_manager=servers,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config=config.data),
    )
    assert made == [{"levels": [1, 2], "names": {"a": "b"}}]
    [row, *_] = dataset_rows(two_turns())
    output = await loop.run({"temperature": 1.0}, **row)
    assert isinstance(output, AgentLoopOutput)
    assert output.num_turns == 4
    assert output.as_dict()["responses"].tolist() == output.response_ids


# ------------------------------------------------------------------------------------------------ SkyRL


async def skyrl() -> None:
    from datasets import Dataset
    from skyrl.backends.skyrl_train.inference_servers.engine_utils import (
        get_sampling_params_for_backend,
    )
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.dataset import PromptDataset
    from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
    from skyrl.train.evaluate import evaluate
    from skyrl.train.generators.base import GeneratorInterface
    from skyrl.train.generators.utils import (
        concatenate_generator_outputs,
        prepare_generator_input,
    )
    from skyrl.train.trainer import RayPPOTrainer
    from skyrl.train.utils.trainer_utils import validate_generator_output

    from verifiers.training.adapters.skyrl import SkyRLGenerator, dataset_rows

    class Tokenizer(ByteTokenizer):
        pad_token_id = 0

        def apply_chat_template(self, *args, return_dict=False, **options):
            return super().apply_chat_template(*args, **options)

    env = two_turns(env_id="game")
    Dataset.from_list(dataset_rows(env)).to_parquet("train.parquet")
    dataset = PromptDataset("train.parquet", Tokenizer(), max_prompt_length=100, num_workers=1)
    assert len(dataset) == 4
    prompts = dataset.collate_fn([dataset[0], dataset[2]])
    sampling = get_sampling_params_for_backend("vllm", SkyRLTrainConfig().generator.sampling_params)
    given, uids = prepare_generator_input(prompts, 2, sampling, "verifiers", "train", 1)
    generator = SkyRLGenerator(env, alternating(), "m")
    output = await generator.generate(given)
    validate_generator_output(len(given["prompts"]), output)
    assert set(GeneratorInterface.__abstractmethods__) == {"generate"}
    both = concatenate_generator_outputs([output, await generator.generate(given)])
    assert both["rollout_metrics"]["generate/failed_rollouts"] == 0.0
    # What its trainer makes of it: rewards at the last token, then tensors.
    trainer = SimpleNamespace(
        cfg=SimpleNamespace(
            generator=SimpleNamespace(
                n_samples_per_prompt=2, step_wise_trajectories=False, merge_stepwise_output=False
            ),
            trainer=SimpleNamespace(algorithm=SimpleNamespace(zero_variance_filter=False)),
        ),
        all_metrics={},
    )
    rewards = list(output["rewards"])
    found, _ = RayPPOTrainer.postprocess_generator_output(trainer, output, uids)
    assert [one[-1] for one in found["rewards"]] == rewards
    assert [sum(one) for one in found["rewards"]] == rewards
    tensors = convert_prompts_responses_to_batch_tensors(
        0, found["prompt_token_ids"], found["response_ids"], found["rewards"], found["loss_masks"],
        found["rollout_logprobs"],
    )  # fmt: skip
    ids, attention, responses, _, mask, logprobs = tensors[:6]
    for place, response in enumerate(found["response_ids"]):
        kept = ids[place][attention[place].bool()].tolist()
        assert kept == found["prompt_token_ids"][place] + response
        own = mask[place][responses[place].bool()]
        assert own.tolist() == found["loss_masks"][place]
        told = logprobs[place][responses[place].bool()]
        assert told.tolist() == found["rollout_logprobs"][place]
    # Its evaluation, with its own settings; a data loader gives lists of prompts.
    config = SkyRLTrainConfig()
    config.generator.eval_n_samples_per_prompt = 2
    config.trainer.export_path = "exports"
    metrics = await evaluate([prompts], generator, config, 1, Tokenizer())
    assert metrics["eval/all/avg_score"] == 0.5
    assert metrics["eval/all/pass_at_2"] == 1.0
    assert metrics["eval/game/avg_score"] == 0.5


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


CHECKS = {"tinker": tinker, "art": art, "verl": verl, "skyrl": skyrl, "nemo_gym": nemo_gym}

if __name__ == "__main__":
    asyncio.run(CHECKS[sys.argv[1]]())
    sys.stdout.write("ok\n")

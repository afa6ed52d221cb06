"""Called as SkyRL's trainer calls a generator, and as SkyRL's own recipe calls the library."""

from dataclasses import dataclass

import pytest
from games import EditedTurns, alternating, question_env, text_of, two_turns

from verifiers.endpoint import EmbeddedEndpoint
from verifiers.testing import ScriptedClient
from verifiers.training.adapters.skyrl import SkyRLGenerator, dataset_rows, sampling_args_of
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.samples import SampleError

FROM_SKYRL = {
    "max_tokens": 32, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "logprobs": 1, "min_tokens": 1,
    "skip_special_tokens": True, "include_stop_str_in_output": True, "stop": None,
}  # fmt: skip


@dataclass
class TrajectoryID:
    instance_id: str
    repetition_id: int


def batch(env, size=2, count=2, ids=True):
    rows = dataset_rows(env)[:count]
    return {
        "prompts": [row["prompt"] for row in rows for _ in range(size)],
        "env_classes": ["verifiers"] * size * count,
        "env_extras": [{"verifiers": row["verifiers"]} for row in rows for _ in range(size)],
        "sampling_params": FROM_SKYRL,
        "trajectory_ids": [TrajectoryID(str(n), k) for n in range(count) for k in range(size)]
        if ids
        else None,
        "batch_metadata": None,
    }


@pytest.mark.parametrize("ids", [True, False])
async def test_every_prompt_gets_one_entry_in_order(ids):
    env = two_turns()
    given = batch(env, ids=ids)
    output = await SkyRLGenerator(env, alternating(), "m").generate(given)
    lists = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons")
    assert {len(output[name]) for name in (*lists, "rollout_logprobs")} == {4}
    assert ["q0" in text_of(ids) for ids in output["prompt_token_ids"]] == [
        True,
        True,
        False,
        False,
    ]
    for response, mask, logprobs in zip(
        output["response_ids"], output["loss_masks"], output["rollout_logprobs"], strict=True
    ):
        assert len(response) == len(mask) == len(logprobs)
        assert 0 < sum(mask) < len(mask)
    assert output["trajectory_ids"] == given["trajectory_ids"]
    assert output["rollout_metrics"] == {"generate/failed_rollouts": 0.0}


async def test_long_responses_are_cut():
    env = two_turns()
    output = await SkyRLGenerator(env, alternating(), "m", max_response_length=5).generate(
        batch(env)
    )
    assert [len(ids) for ids in output["response_ids"]] == [5] * 4
    assert output["stop_reasons"] == ["length"] * 4


async def test_branching_rollouts_and_batches_of_failures_are_errors():
    env = two_turns(EditedTurns)
    with pytest.raises(SampleError, match="does not continue the tokens"):
        await SkyRLGenerator(env, alternating(), "m").generate(batch(env))
    env = question_env()
    broken = ScriptedClient(then=RuntimeError("no"), token_ids=True)
    with pytest.raises(SampleError, match="None of 4 rollouts can be trained on"):
        await SkyRLGenerator(env, broken, "m").generate(batch(env))


async def test_skyrl_s_sampling_parameters_are_taken_by_an_endpoint():
    async with EmbeddedEndpoint() as endpoint:
        client = PolicyEndpoint.at(endpoint.url).client
        generator = SkyRLGenerator(two_turns(), client, "embedded")
        parameters = {k: v for k, v in FROM_SKYRL.items() if k != "include_stop_str_in_output"}
        output = await generator.generate(
            batch(generator.env) | {"sampling_params": parameters | {"max_tokens": 8}}
        )
    assert output["rollout_metrics"] == {"generate/failed_rollouts": 0.0}
    sampled = sampling_args_of(FROM_SKYRL)
    assert sampled["logprobs"] is True
    assert sampled["extra_body"]["top_k"] == -1
    assert "stop" not in sampled


async def test_the_recipe_of_skyrl_works_unchanged():
    """`VerifiersGenerator.generate` of its examples: attributes of the results, then `process_env_results_vllm`."""
    env = two_turns()
    rows = [row | {"task": "default"} for row in env.source("train").inputs()]
    results = await env.generate(
        inputs=rows, client=alternating(), model="m",
        sampling_args={"logprobs": True, "top_logprobs": 1}, state_columns=["trajectory"],
    )  # fmt: skip
    processed = env.process_env_results_vllm(
        prompts=results.prompt, completions=results.completion, states=results.state,
        rewards=results.reward, processing_class=None, max_seq_len=4096, mask_env_responses=True,
    )  # fmt: skip
    own = await SkyRLGenerator(env, alternating(), "m").generate(batch(env, size=1, count=4))
    assert processed.prompt_ids == own["prompt_token_ids"]
    assert processed.completion_mask == own["loss_masks"]

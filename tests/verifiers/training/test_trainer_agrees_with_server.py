"""From sampling through tokens, samples and batches to a torch model and the loss: nothing is shifted on the way."""

import numpy as np
import pytest

import verifiers as vf
from verifiers.endpoint import EmbeddedEndpoint
from verifiers.endpoint.model import SHIPPED_WEIGHTS, load_model
from verifiers.endpoint.weights import read_safetensors
from verifiers.training.losses import masked_importance_sampling
from verifiers.training.packing import pad, tensors_of, token_logprobs
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.samples import samples_of
from verifiers.training.validation import validate

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": "and again"}]


def trainer():
    from verifiers.endpoint.torch_llama import TorchLlama

    config = load_model().config
    model = TorchLlama(config)
    tensors = read_safetensors(SHIPPED_WEIGHTS / "model.safetensors")
    named = {name: torch.from_numpy(t.astype(np.float32)) for name, t in tensors.items()}
    model.load_state_dict(named, strict=False)
    return model


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_the_first_step_is_on_policy_to_the_last_digits(temperature):
    env = Talk(dataset=[{"question": "abcde", "answer": ""}], max_turns=3, rubric=vf.Rubric())
    samples = []
    async with EmbeddedEndpoint() as server:
        endpoint = PolicyEndpoint.at(server.url)
        for _ in range(4):
            state = await env.rollout(
                env.get_dataset()[0],
                endpoint.client,
                "embedded",
                {"temperature": temperature, "max_tokens": 40},
            )
            assert state["error"] is None
            state["reward"] = 1.0
            found = samples_of(state)
            validate(found, state, vocabulary_size=264).raise_for_problems()
            samples += [sample.with_advantage(0.5) for sample in found]
        await endpoint.client.aclose()
    batch = tensors_of(pad(samples))
    logprobs = token_logprobs(
        trainer()(batch["input_ids"]), batch["input_ids"], batch["temperatures"]
    )
    output = masked_importance_sampling(
        logprobs, batch["inference_logprobs"], batch["advantages"], batch["mask"]
    )
    assert float(output.metrics["mismatch_kl"]) < 1e-6
    assert float(output.metrics["masked_fraction"]) == 0.0
    assert float(output.metrics["ratio_max"]) == pytest.approx(1.0, abs=2e-3)
    assert float(output.loss.detach()) == pytest.approx(-0.5, abs=1e-3)
    shifted = torch.roll(logprobs, 1, -1)
    wrong = masked_importance_sampling(
        shifted, batch["inference_logprobs"], batch["advantages"], batch["mask"]
    )
    assert float(wrong.metrics["mismatch_kl"]) > 0.01  # the test would notice

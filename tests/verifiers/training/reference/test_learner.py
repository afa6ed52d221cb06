"""The steps of the trainer, without environments and servers."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")

from verifiers.endpoint.model import Segment, load_model  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.training.losses import LOSSES  # noqa: E402
from verifiers.training.packing import micro_batches, pad  # noqa: E402
from verifiers.training.reference.learner import Learner  # noqa: E402

MUON = {"kind": "muon", "learning_rate": 0.01, "warmup_steps": 3}
WARM = {"steps": 3, "noisy_steps": 3, "batch_size": 4, "noise": 0.5, "optimizer": MUON}


def weights(learner):
    return torch.cat([weight.detach().flatten() for weight in learner.model.parameters()])


def test_a_learner_goes_on_from_its_state_to_the_last_bit(config_with, make_samples, tmp_path):
    config = config_with(warm_start=WARM, optimizer=MUON)
    demonstrations = make_samples(10), make_samples(10, seed=1)
    batches = [micro_batches(make_samples(6, seed=seed), 64) for seed in range(4)]

    def saved(learner):
        torch.save(learner.state_dict(), tmp_path / "state.pt")
        other = Learner(config)
        other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        return other

    whole, interrupted = Learner(config), Learner(config)
    whole.set_demonstrations(*demonstrations)
    whole.warm_start(6)
    for part in (4, 2):
        interrupted.set_demonstrations(*demonstrations)
        interrupted.warm_start(part)
        interrupted = saved(interrupted)
    assert torch.equal(weights(whole), weights(interrupted))
    whole.begin_reinforcement()
    interrupted.begin_reinforcement()
    for batch in batches:
        metrics = whole.step(batch), interrupted.step(batch)
        interrupted = saved(interrupted)
        assert metrics[0] == metrics[1]
    assert torch.equal(weights(whole), weights(interrupted))
    assert (whole.phase, interrupted.step_count) == ("reinforcement", 4)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_is_the_same_in_one_micro_batch_and_in_many(loss, config_with, make_samples):
    config = config_with(loss=loss)
    samples = make_samples(9)
    learners = []
    for max_tokens in (10_000, 30):
        learner = Learner(config)
        learner.begin_reinforcement()
        batches = micro_batches(samples, max_tokens)
        learners.append((len(batches), learner.step(batches), weights(learner)))
    (one, whole, after), (many, pieces, after_too) = learners
    assert (one, many > 3) == (1, True)
    assert pieces == pytest.approx(whole, rel=1e-4, abs=1e-6)
    assert torch.allclose(after, after_too, atol=1e-5)


def test_the_learning_rate_rises_over_the_warm_up_and_falls_over_the_noisy_steps(
    config_with, make_samples
):
    optimizer = {"learning_rate": 1.0, "warmup_steps": 4}
    learner = Learner(
        config_with(warm_start={"steps": 6, "noisy_steps": 4, "optimizer": optimizer})
    )
    learner.set_demonstrations(make_samples(3), make_samples(3))
    rates = []
    while not learner.warm_start_is_over:
        learner.warm_start(1)
        rates.append(learner.optimizers[0].param_groups[0]["lr"])
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.375, 0.25, 0.125])


def test_the_clean_steps_end_when_the_loss_is_low(config_with, make_samples):
    def clean_steps(until_loss):
        section = {"steps": 14, "until_loss": until_loss, "noisy_steps": 2}
        learner = Learner(config_with(warm_start=section))
        learner.set_demonstrations(make_samples(3), make_samples(3))
        learner.warm_start(100)
        assert learner.step_count == learner.clean_count + 2
        return learner.clean_count

    assert (clean_steps(0.0), clean_steps(100.0)) == (14, 10)


def test_a_saved_model_gives_the_server_the_same_probabilities(config_with, make_samples, tmp_path):
    learner = Learner(config_with())
    learner.save_model(tmp_path)
    [sample] = make_samples(1)
    ours = learner.logprobs(pad([sample]))[0]
    server = load_model(tmp_path)
    logits = server.prefill(
        [Segment(0, 0, sample.token_ids.tolist())], server.new_cache(1), all_positions=True
    ).astype(np.float64)
    theirs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = theirs[np.arange(len(sample) - 1), sample.token_ids[1:]]
    np.testing.assert_allclose(ours[1:], expected, atol=1e-4)
    again = Learner(config_with(model={"folder": tmp_path}))
    assert torch.equal(weights(again), weights(learner))


def test_a_model_of_bfloat16_keeps_its_weights_in_float32(config_with, make_samples):
    learner = Learner(config_with(compute={"dtype": "bfloat16"}))
    learner.begin_reinforcement()
    metrics = learner.step(micro_batches(make_samples(4), 1000))
    assert np.isfinite(metrics["loss"])
    assert {weight.dtype for weight in learner.model.parameters()} == {torch.float32}


def test_a_gradient_that_is_not_finite_ends_the_run(config_with, make_samples):
    learner = Learner(config_with())
    learner.begin_reinforcement()
    before = weights(learner).clone()
    with torch.no_grad():
        learner.model.model.norm.weight[0] = float("nan")
    with pytest.raises(FloatingPointError, match="gradient of step 1 is not finite"):
        learner.step(micro_batches(make_samples(2), 1000))
    assert torch.isfinite(before).all()


def test_a_demonstration_longer_than_the_context_is_refused(config_with, make_samples):
    small = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 16}
    learner = Learner(config_with(model=small))
    [sample] = make_samples(1)
    learner.set_demonstrations([sample], [sample])
    long = replace(
        sample,
        token_ids=np.resize(sample.token_ids, 17),
        mask=np.resize(sample.mask, 17),
        logprobs=np.resize(sample.logprobs, 17),
    )
    with pytest.raises(ConfigError, match="has 17 tokens, but the model's context is 16"):
        learner.set_demonstrations([sample], [long])


def test_an_unknown_device_is_named(config_with):
    with pytest.raises(ConfigError, match=r"compute\.device='warp:7'"):
        Learner(config_with(compute={"device": "warp:7"}))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_step_on_the_gpu_is_that_on_the_cpu(config_with, make_samples):
    batches = micro_batches(make_samples(8), 1000)
    steps = []
    for device in ("cpu", "cuda"):
        learner = Learner(config_with(compute={"device": device}, optimizer=MUON))
        learner.begin_reinforcement()
        metrics = learner.step(batches)
        again = Learner(learner.config)
        again.load_state_dict(learner.state_dict())
        assert torch.equal(weights(again), weights(learner))
        steps.append(metrics)
    assert steps[1] == pytest.approx(steps[0], rel=1e-2, abs=1e-5)

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
torch.set_num_threads(1)

from verifiers.training.packing import micro_batches  # noqa: E402
from verifiers.training.reference.learner import Learner  # noqa: E402


def reference_steps(weight, gradients, *, rate, momentum):
    """Muon as its authors define it, in double precision, with an exact orthogonal factor of the update."""
    average = torch.zeros_like(weight)
    for gradient in gradients:
        average = average.lerp(gradient, 1 - momentum)
        left, _, right = torch.linalg.svd(gradient.lerp(average, momentum), full_matrices=False)
        rows, columns = weight.shape
        weight = weight - rate * max(1.0, rows / columns) ** 0.5 * (left @ right)
    return weight


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (8, 8)])
def test_the_optimizer_of_torch_is_the_muon_of_the_publication(shape):
    torch.manual_seed(0)
    start = torch.randn(shape, dtype=torch.float64)
    gradients = [torch.randn(shape, dtype=torch.float64) for _ in range(5)]
    weight = torch.nn.Parameter(start.float())
    optimizer = torch.optim.Muon([weight], lr=0.02, momentum=0.9, weight_decay=0.0)
    for gradient in gradients:
        weight.grad = gradient.float()
        optimizer.step()
    expected = reference_steps(start, gradients, rate=0.02, momentum=0.9)
    # Newton-Schulz steps bring the singular values of an update between about 0.7 and 1.2, not to 1.
    assert (weight.detach() - expected).norm() < 0.3 * (expected - start).norm()


def test_an_older_checkpoint_continues_with_its_momentum(config_with, make_samples):
    """An earlier implementation of Muon stored `momentum` instead of `momentum_buffer`."""
    config = config_with(optimizer={"kind": "muon", "learning_rate": 0.01})
    first, second = Learner(config), Learner(config)
    first.begin_reinforcement()
    batch = micro_batches(make_samples(6), 64)
    first.step(batch)
    state = deepcopy(first.state_dict())
    muon = state["optimizers"][0]
    [group] = muon["param_groups"]
    state["optimizers"][0] = {
        "state": {n: {"momentum": one["momentum_buffer"]} for n, one in muon["state"].items()},
        "param_groups": [
            {name: group[name] for name in ("lr", "momentum", "weight_decay", "params")}
        ],
    }
    second.load_state_dict(state)
    assert first.step(batch) == second.step(batch)
    for mine, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, other)

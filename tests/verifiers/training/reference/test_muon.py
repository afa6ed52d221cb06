import pytest

from verifiers.errors import ConfigError

torch = pytest.importorskip("torch", reason="the reference trainer needs torch")
torch.set_num_threads(1)


def train(make, steps=5, shape=(12, 5)):
    """A matrix after a few steps on the same made-up gradients."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape))
    optimizer = make([weight])
    for _ in range(steps):
        weight.grad = torch.randn(shape)
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (8, 8)])
def test_it_does_what_the_optimizer_of_torch_does(shape):
    from verifiers.training.reference.muon import Muon

    ours = train(lambda p: Muon(p, 0.02, momentum=0.9, weight_decay=0.1), shape=shape)
    theirs = train(
        lambda p: torch.optim.Muon(p, lr=0.02, momentum=0.9, weight_decay=0.1), shape=shape
    )
    moved = ours - train(lambda p: Muon(p, 0.0), shape=shape)
    # Both compute in bfloat16, but not in the same order.
    assert (ours - theirs).abs().max() < 0.03 * moved.abs().max()


def test_an_update_has_singular_values_near_one():
    from verifiers.training.reference.muon import orthogonal

    torch.manual_seed(1)
    matrix = torch.randn(20, 6) @ torch.diag(torch.logspace(0, -2, 6)) @ torch.randn(6, 6)
    values = torch.linalg.svdvals(orthogonal(matrix).float())
    assert values.max() < 1.3
    assert values.min() > 0.3


def test_vectors_are_refused():
    from verifiers.training.reference.muon import Muon

    with pytest.raises(ConfigError, match=r"takes matrices; got a parameter of shape \(3,\)"):
        Muon([torch.nn.Parameter(torch.zeros(3))])


def test_a_closure_gives_its_loss_and_parameters_without_gradient_stay():
    from verifiers.training.reference.muon import Muon

    still, moving = (torch.nn.Parameter(torch.ones(3, 2)) for _ in range(2))
    optimizer = Muon([still, moving], 0.1)

    def closure():
        loss = (moving**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 6.0
    assert torch.equal(still, torch.ones(3, 2))
    assert not torch.equal(moving, torch.ones(3, 2))

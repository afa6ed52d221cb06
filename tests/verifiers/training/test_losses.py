"""Losses against formulas written out one token at a time, and against gradients taken by differences."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.training.losses import LOSSES, cross_entropy, mismatch_kl

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

# ------------------------------------------------------------------------------- one sequence, one token at a time
# Each takes a sequence as tuples (log π_train, log π_inference, A) and gives the sum of its objective.


def reference_masked(tokens, low=0.5, high=5.0, drop=1e-5):
    ratios = [math.exp(t - i) for t, i, _ in tokens]
    if any(r < drop for r in ratios):
        return 0.0
    return sum(r * a for r, (_, _, a) in zip(ratios, tokens, strict=True) if low <= r <= high)


def reference_two_sided(tokens, epsilon=0.2, delta=4.0):
    total = 0.0
    for t, i, a in tokens:
        r = math.exp(t - i)
        total += min(min(r, delta) * a, max(1 - epsilon, min(r, 1 + epsilon)) * a)
    return total


def reference_clip_higher(tokens, low=0.2, high=0.28):
    total = 0.0
    for t, i, a in tokens:
        r = math.exp(t - i)
        total += min(r * a, max(1 - low, min(r, 1 + high)) * a)
    return total


def reference_cispo(tokens, high=5.0):
    return sum(min(math.exp(t - i), high) * a * t for t, i, a in tokens)


def reference_gspo(tokens, low=3e-4, high=4e-4):
    s = math.exp(sum(t - i for t, i, _ in tokens) / len(tokens))
    a = sum(a for _, _, a in tokens) / len(tokens)
    return min(s * a, max(1 - low, min(s, 1 + high)) * a)


def reference_divergence(tokens, threshold=0.2, tau=1e-3):
    total = 0.0
    for t, i, a in tokens:
        moved = math.exp(t) - math.exp(i)
        too_far = (a > 0 and moved > threshold) or (a < 0 and moved < -threshold)
        total += (0.0 if too_far else math.exp(t - i) * a) - tau * (t - i) ** 2
    return total


REFERENCES = {
    "masked_importance_sampling": reference_masked,
    "two_sided_clip": reference_two_sided,
    "clip_higher": reference_clip_higher,
    "cispo": reference_cispo,
    "gspo": reference_gspo,
    "divergence_tv": reference_divergence,
}


def reference(name, batch):
    """The loss of sequences of trained tokens."""
    trained = [tokens for tokens in batch if tokens]
    total = sum(REFERENCES[name](tokens) for tokens in trained)
    count = len(trained) if name == "gspo" else sum(map(len, trained))
    return -total / max(count, 1)


# ------------------------------------------------------------------------------------------------ vectors by hand

LN2 = math.log(2.0)


@pytest.mark.parametrize(
    ("name", "train", "inference", "advantages", "expected"),
    [
        # ratios 2, 8, 1/4: only 2 is in [0.5, 5]; -(2·1)/3
        ("masked_importance_sampling", [-1, -1, -3], [-1 - LN2, -1 - 3 * LN2, -3 + 2 * LN2], [1, 1, 1], -2 / 3),
        # ratio 8 with A = 1: clipped to 1.2; ratio 8 with A = -1: min(-4, -1.2) = -4
        ("two_sided_clip", [-1, -1], [-1 - 3 * LN2] * 2, [1, -1], -(1.2 - 4) / 2),
        # ratio 2: A = 1 gives 1.28, A = -1 gives -2; ratio 1/2: A = -1 gives -0.8
        ("clip_higher", [-1, -1, -2], [-1 - LN2, -1 - LN2, -2 + LN2], [1, -1, -1], -(1.28 - 2 - 0.8) / 3),
        # ratios 2 and 8, clipped at 5: 2·1·(-1) + 5·(-1)·(-3) = 13
        ("cispo", [-1, -3], [-1 - LN2, -3 - 3 * LN2], [1, -1], -13 / 2),
        # one sequence, mean log-ratio ln 2: s = 2, clipped to 1.0004 for A = 1
        ("gspo", [-1, -2], [-1 - 2 * LN2, -2], [1, 1], -1.0004),
        # probabilities 0.5 from 0.25: moved 0.25 > 0.2, no gain; penalty 1e-3·(ln 2)²
        ("divergence_tv", [-LN2], [-2 * LN2], [1], 1e-3 * LN2**2),
        # the same against the advantage's direction keeps it: ratio 2 times -1
        ("divergence_tv", [-LN2], [-2 * LN2], [-1], 2 + 1e-3 * LN2**2),
    ],
)  # fmt: skip
def test_losses_are_what_one_computes_by_hand(name, train, inference, advantages, expected):
    for make, kind in ((np.array, np.float64), (torch.tensor, torch.float64)):
        arrays = [make(values, dtype=kind) for values in (train, inference, advantages)]
        mask = make([True] * len(train))
        assert float(LOSSES[name](*arrays, mask).loss) == pytest.approx(expected, rel=1e-9)


def test_one_collapsed_ratio_drops_its_whole_sequence_and_no_other():
    train = np.array([[-1.0, -14.0], [-1.0, -1.0]])
    inference = np.array([[-1.0, -1.0], [-1.0, -1.0]])
    found = LOSSES["masked_importance_sampling"](train, inference, np.ones((2, 2)), train < 0)
    assert found.loss == pytest.approx(-2 / 4)
    assert found.metrics["dropped_sequences"] == 0.5
    assert found.metrics["masked_fraction"] == 0.5


def test_padding_and_context_do_not_thin_out_the_share_of_dropped_sequences():
    train, inference = np.array([-14.0, -1.0, 0.0, 0.0]), np.array([-1.0, -1.0, 0.0, 0.0])
    mask, ids = np.array([True, True, False, False]), np.array([0, 1, 2, 3])
    found = LOSSES["masked_importance_sampling"](
        train, inference, np.ones(4), mask, sequence_ids=ids
    )
    assert found.metrics["dropped_sequences"] == 0.5


def test_the_mismatch_is_zero_on_policy_and_positive_otherwise():
    logprobs, mask = np.array([[-1.0, -2.0, -9.0]]), np.array([[True, True, False]])
    assert mismatch_kl(logprobs, logprobs, mask) == 0.0
    other = logprobs + np.array([[LN2, -LN2, 5.0]])
    # ratios 1/2 and 2: (0.5 + ln 2 - 1 + 2 - ln 2 - 1) / 2
    assert mismatch_kl(logprobs, other, mask) == pytest.approx(0.25)


def test_cross_entropy_is_the_mean_of_what_is_trained():
    found = cross_entropy(np.array([[-1.0, -3.0, -9.0]]), np.array([[1, 1, 0]]))
    assert found.loss == 2.0
    assert cross_entropy(np.array([-1.0, -3.0]), np.array([1, 1]), token_count=8).loss == 0.5


# ------------------------------------------------------------------------------------------------ any batch

LOGPROB = st.floats(-6, -0.01)


@st.composite
def batches(draw, max_sequences=4, max_tokens=5):
    """Sequences of (log π_train, log π_inference, A, trained)."""
    sequences = []
    for _ in range(draw(st.integers(1, max_sequences))):
        advantage = draw(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.5]))
        tokens = []
        for _ in range(draw(st.integers(1, max_tokens))):
            train = draw(LOGPROB)
            inference = draw(st.one_of(st.just(train), LOGPROB))
            tokens.append((train, inference, advantage, draw(st.booleans())))
        sequences.append(tokens)
    return sequences


def padded(batch):
    width = max(map(len, batch)) + 1
    shape = (len(batch), width)
    arrays = [
        np.full(shape, np.nan),
        np.full(shape, np.nan),
        np.zeros(shape),
        np.zeros(shape, bool),
    ]
    for row, tokens in enumerate(batch):
        for place, values in enumerate(tokens):
            for array, value in zip(arrays, values, strict=True):
                array[row, place] = value
    return arrays


def packed(batch):
    flat = [(*values, row) for row, tokens in enumerate(batch) for values in tokens]
    columns = [np.array(column) for column in zip(*flat, strict=True)]
    return columns[:4], columns[4].astype(np.int64)


@settings(max_examples=60)
@given(batches(), st.sampled_from(sorted(LOSSES)))
def test_every_layout_and_both_libraries_give_the_reference(batch, name):
    loss = LOSSES[name]
    trained = [[(t, i, a) for t, i, a, m in tokens if m] for tokens in batch]
    expected = reference(name, trained)
    rows = padded(batch)
    flat, ids = packed(batch)
    found = loss(*rows)
    assert float(found.loss) == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert float(loss(*flat, sequence_ids=ids).loss) == pytest.approx(expected, rel=1e-7, abs=1e-9)
    tensors = [torch.tensor(array) for array in rows]
    other = loss(*tensors)
    assert other.loss.item() == pytest.approx(expected, rel=1e-7, abs=1e-9)
    other_flat = loss(*map(torch.tensor, flat), sequence_ids=torch.tensor(ids))
    for key, value in found.metrics.items():
        assert float(other.metrics[key]) == pytest.approx(float(value), rel=1e-7, abs=1e-9), key
        assert float(other_flat.metrics[key]) == pytest.approx(float(value), rel=1e-7, abs=1e-9), (
            key
        )


@settings(max_examples=40)
@given(batches(max_sequences=2, max_tokens=3), st.sampled_from(sorted(LOSSES)))
def test_gradients_are_those_of_the_loss_with_its_weights_held_still(batch, name):
    """By differences. What a loss holds constant (masks, CISPO's weight) is taken from a formula of its own."""
    rows = padded(batch)
    logprobs = torch.tensor(rows[0], requires_grad=True)
    rest = [torch.tensor(array) for array in rows[1:]]
    LOSSES[name](logprobs, *rest).loss.backward()
    gradient = logprobs.grad.numpy()
    assert np.isfinite(gradient).all()
    assert not gradient[~rows[3]].any()
    step = 1e-6
    for row, place in np.argwhere(rows[3]).tolist():
        if name == "cispo":
            count = max(rows[3].sum(), 1)
            t, i, a = (array[row, place] for array in rows[:3])
            expected = -min(math.exp(t - i), 5.0) * a / count
        else:
            sides = []
            for sign in (1, -1):
                moved = [array.copy() for array in rows]
                moved[0][row, place] += sign * step
                sides.append(float(LOSSES[name](*moved).loss))
            expected = (sides[0] - sides[1]) / (2 * step)
            if abs(expected) > 1e3:
                continue  # the step crossed the edge of a mask
        assert gradient[row, place] == pytest.approx(expected, rel=1e-3, abs=1e-5)


@given(batches())
def test_the_fraction_masked_is_that_of_tokens_without_a_gradient(batch):
    rows = padded(batch)
    wanted = rows[3] & (rows[2] != 0)
    for name in ("masked_importance_sampling", "two_sided_clip", "clip_higher"):
        logprobs = torch.tensor(rows[0], requires_grad=True)
        found = LOSSES[name](logprobs, *[torch.tensor(array) for array in rows[1:]])
        found.loss.backward()
        without = wanted & (logprobs.grad.numpy() == 0)
        if wanted.sum() == rows[3].sum() and wanted.any():
            assert float(found.metrics["masked_fraction"]) == pytest.approx(
                without.sum() / wanted.sum()
            )


def test_losses_add_up_over_micro_batches_when_they_share_the_token_count():
    rng = np.random.default_rng(0)
    train, inference = -rng.random((6, 4)), -rng.random((6, 4))
    advantages, mask = rng.normal(size=6), rng.random((6, 4)) < 0.7
    for name, loss in LOSSES.items():
        count = 6 if name == "gspo" else mask.sum()
        whole = loss(train, inference, advantages, mask, token_count=count).loss
        parts = sum(
            loss(train[s], inference[s], advantages[s], mask[s], token_count=count).loss
            for s in (slice(0, 2), slice(2, 6))
        )
        assert parts == pytest.approx(whole), name


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_batch_without_trained_tokens_costs_nothing_and_extreme_ratios_stay_finite(name):
    nothing = LOSSES[name](*[torch.zeros(2, 3)] * 3, torch.zeros(2, 3, dtype=torch.bool))
    assert float(nothing.loss) == 0.0
    train = torch.tensor([[-1000.0, -0.1]], requires_grad=True)
    found = LOSSES[name](train, torch.tensor([[-0.1, -1000.0]]), torch.ones(1), torch.ones(1, 2))
    found.loss.backward()
    assert torch.isfinite(found.loss)
    assert torch.isfinite(train.grad).all()


def test_wrong_shapes_are_named():
    loss, ok = LOSSES["cispo"], np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"mask has shape \(2, 2\)"):
        loss(ok, ok, ok, np.ones((2, 2), bool))
    with pytest.raises(ValueError, match=r"advantages has shape \(3,\)"):
        loss(ok, ok, np.zeros(3), ok > 0)
    with pytest.raises(ValueError, match="packed streams"):
        loss(ok, ok, ok, ok > 0, sequence_ids=np.zeros(3, int))
    with pytest.raises(TypeError, match="got list"):
        loss([1.0], ok, ok, ok)


@pytest.mark.parametrize("scale", [0.0, 1e-8, 3e-7, 1e-6, 1e-4])
def test_a_mismatch_of_rounding_size_is_not_negative_in_single_precision(scale):
    noise = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32) * np.float32(scale)
    logprobs = np.full((8, 64), -1.5, np.float32)
    mask = np.ones((8, 64), bool)
    found = mismatch_kl(logprobs + noise, logprobs, mask)
    assert found >= 0.0
    assert not np.signbit(found)
    real = (logprobs + noise).astype(np.float64) - logprobs
    assert found == pytest.approx(np.mean(real**2) / 2, rel=1e-3, abs=1e-12)
    of_a_loss = LOSSES["gspo"](logprobs + noise, logprobs, np.ones(8, np.float32), mask)
    assert of_a_loss.metrics["mismatch_kl"] == found

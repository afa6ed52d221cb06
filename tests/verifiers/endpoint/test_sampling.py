import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from verifiers.endpoint.sampling import (
    Sampling,
    adjust,
    draw_tokens,
    finite,
    stream_key,
    top_tokens,
    uniforms,
)

logit_rows = hnp.arrays(np.float32, 8, elements=st.floats(-8, 8, width=32))


def draw(logits, *settings, uniform=0.5):
    temperatures = np.array([s.temperature for s in settings], np.float32)
    return draw_tokens(
        np.atleast_2d(np.array(logits, np.float32)),
        settings,
        temperatures,
        np.full(len(settings), uniform),
    )


@given(logit_rows, st.floats(0.05, 4.0), st.floats(1e-9, 1 - 1e-9))
def test_log_probabilities_are_the_log_softmax_after_temperature(logits, temperature, uniform):
    result = draw(logits, Sampling(temperature=temperature), uniform=uniform)
    scaled = logits.astype(np.float64) / np.float32(temperature)
    expected = scaled - scaled.max() - np.log(np.exp(scaled - scaled.max()).sum())
    np.testing.assert_allclose(result.logprobs[0], expected, atol=2e-4, rtol=1e-5)


@given(
    hnp.arrays(np.float32, 8, elements=st.integers(-6, 6).map(float), unique=True),
    st.integers(0, 9),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_filters_keep_what_their_definitions_keep(logits, top_k, top_p, min_p):
    result = draw(logits, Sampling(top_k=top_k, top_p=top_p, min_p=min_p))
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    ranked = sorted(range(8), key=lambda token: -probabilities[token])
    left = [token for token in ranked if probabilities[token] >= min_p - 1e-9] or ranked[:1]
    left = left[: top_k or None]
    total, kept, reached = sum(probabilities[t] for t in left), [], 0.0
    for token in left:
        if kept and reached >= top_p * total - 1e-9:
            break
        kept.append(token)
        reached += probabilities[token]
    allowed = set(np.flatnonzero(np.isfinite(result.logprobs[0])).tolist())
    assert allowed == set(kept)
    assert int(result.token_ids[0]) in allowed
    assert math.isclose(np.exp(result.logprobs[0].astype(np.float64)).sum(), 1.0, rel_tol=1e-5)


@given(logit_rows)
def test_temperature_zero_takes_the_most_likely_and_reports_temperature_one(logits):
    greedy, warm = Sampling(temperature=0.0), Sampling(temperature=1.0)
    result = draw(np.stack([logits, logits]), greedy, warm)
    assert logits[result.token_ids[0]] == logits.max()
    np.testing.assert_array_equal(result.logprobs[0], result.logprobs[1])


@pytest.mark.parametrize("uniform", [2.0**-33, 1 - 2.0**-33])
def test_extreme_draws_never_pick_an_impossible_token(uniform):
    result = draw([-50.0, 1.0, 2.0, -50.0], Sampling(top_k=2), uniform=uniform)
    assert int(result.token_ids[0]) in (1, 2)


def test_tokens_come_as_often_as_their_probabilities_say():
    logits = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    count = 20_000
    keys = np.full(count, stream_key(7, 0), np.uint64)
    result = draw_tokens(
        np.tile(logits, (count, 1)),
        [Sampling()] * count,
        np.ones(count, np.float32),
        uniforms(keys, np.arange(count)),
    )
    expected = np.exp(logits) / np.exp(logits).sum() * count
    seen = np.bincount(result.token_ids, minlength=4)
    # Chi-square with 3 degrees of freedom is above 16.3 once in a thousand; the seed is fixed.
    assert ((seen - expected) ** 2 / expected).sum() < 16.3


def test_streams_of_different_seeds_and_choices_are_unrelated():
    places = np.arange(4000)
    streams = [
        uniforms(np.full(4000, stream_key(seed, choice), np.uint64), places)
        for seed, choice in ((0, 0), (1, 0), (0, 1), (-1, 0), (2**64 - 2, 3))
    ]
    for stream in streams:
        assert 0 < stream.min() < stream.max() < 1
        assert abs(stream.mean() - 0.5) < 0.02
        assert abs(np.corrcoef(stream[:-1], stream[1:])[0, 1]) < 0.06
    correlations = np.corrcoef(streams)
    assert abs(correlations - np.eye(len(streams))).max() < 0.06


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 127))
def test_stream_keys_fit_64_bits(seed, choice):
    assert 0 <= stream_key(seed, choice) < 2**64


def test_penalties_and_biases_change_the_logits_as_documented():
    logits = np.array([1.0, -1.0, 2.0, 0.5], np.float32)
    settings = Sampling(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0, logit_bias={3: -100.0}
    )
    adjust(logits, settings, prompt=[1], written=[2, 2])
    np.testing.assert_allclose(logits, [1.0, -2.0, 2.0 / 2 - 0.5 - 2 * 0.25, -99.5])


def test_top_tokens_are_the_best_in_order_and_finite():
    assert top_tokens(np.array([-3.0, -0.1, -np.inf], np.float32), 3) == [
        (1, pytest.approx(-0.1)),
        (0, -3.0),
        (2, -9999.0),
    ]
    assert finite(-1.5) == -1.5

"""When to try again: properties of the waits."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.clients.endpoints import LONGEST_WAIT_S, backoff_s, retry_after_s, wait_s


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded_and_its_ceiling_never_falls(attempt, draw):
    assert 0 <= backoff_s(attempt, draw) <= LONGEST_WAIT_S
    assert backoff_s(attempt, draw) <= backoff_s(attempt + 1, draw)


@given(st.floats(0, 300), st.floats(0, 1, exclude_max=True))
def test_what_the_endpoint_asks_is_respected_and_spread_a_little(asked_s, draw):
    assert asked_s <= wait_s(3, asked_s, draw) <= asked_s + 1


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"Retry-After": "12"}, 12),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "12"}, 0.25),
        ({"retry-after-ms": "soon", "Retry-After": "12"}, 12),
        ({"Retry-After": formatdate(1_000_030, usegmt=True)}, 30),
        ({"Retry-After": formatdate(999_000, usegmt=True)}, 0),
        ({"Retry-After": "-5"}, 0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": ""}, None),
        ({}, None),
    ],
)
def test_every_form_of_retry_after_is_read(headers, expected_s):
    assert retry_after_s(headers, now_s=1_000_000.0) == expected_s


@given(st.text(max_size=40))
def test_nonsense_in_retry_after_is_ignored(text):
    wait = retry_after_s({"Retry-After": text}, now_s=0.0)
    assert wait is None or wait >= 0

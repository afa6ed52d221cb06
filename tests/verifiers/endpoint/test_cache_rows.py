"""The cache holds, for each position, the token that was there: so any mix-up of rows shows."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from verifiers.endpoint.cache_rows import WORTH_WAITING_TOKENS, CacheRows
from verifiers.endpoint.model import Cache
from verifiers.endpoint.weights import ModelConfig

SMALL = ModelConfig(264, 8, 8, 2, 1, 1, 4, 64)


class RowsMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.cache = Cache(SMALL, rows=4, length=64)
        self.rows = CacheRows(self.cache)
        self.sequences: list[list[int]] = []  # what each running row must hold
        self.scope = 0
        self.known: list[list[int]] = []  # everything ever written in this scope

    def write(self, row, begin, tokens):
        for array in (self.cache.keys, self.cache.values):
            array[:, row, :, begin : begin + len(tokens)] = np.array(tokens)[None, None, :, None]

    @precondition(lambda self: len(self.sequences) < 4)
    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=30),
        from_known=st.randoms(use_true_random=False),
        extend=st.booleans(),
    )
    def admit(self, prompt, from_known, extend):
        if extend and self.known:
            prompt = (from_known.choice(self.known) + prompt)[:40]
        match = self.rows.find(np.array(prompt, np.int32), self.scope)
        assert not match.pending
        assert match.length < len(prompt)
        row = self.rows.admit(np.array(prompt, np.int32), self.scope, match)
        assert row == len(self.sequences)
        assert (self.cache.keys[:, row, 0, : match.length, 0] == prompt[: match.length]).all()
        self.write(row, match.length, prompt[match.length :])
        self.rows.settle()
        self.sequences.append(list(prompt))
        self.known.append(list(prompt))

    @precondition(lambda self: self.sequences)
    @rule(token=st.integers(0, 2))
    def append(self, token):
        if max(map(len, self.sequences)) >= 60:
            return
        count = len(self.sequences)
        for row, sequence in enumerate(self.sequences):
            self.write(row, len(sequence), [token])
            sequence.append(token)
        self.rows.append(count, np.full(count, token))

    @precondition(lambda self: self.sequences)
    @rule(number=st.integers(0, 3))
    def release(self, number):
        row = number % len(self.sequences)
        moved = self.rows.release(row)
        last = self.sequences.pop()
        if moved is None:
            assert row == len(self.sequences)
        else:
            assert moved == len(self.sequences)
            self.sequences[row] = last

    @rule()
    def change_weights(self):
        self.rows.forget_all()
        self.scope += 1
        self.known.clear()

    @invariant()
    def running_rows_hold_their_sequences(self):
        assert self.rows.running == len(self.sequences)
        assert self.rows.filled(len(self.sequences)).tolist() == list(map(len, self.sequences))
        for row, sequence in enumerate(self.sequences):
            assert self.rows.tokens(row) == sequence
            for array in (self.cache.keys, self.cache.values):
                assert (array[:, row, 0, : len(sequence), 0] == sequence).all()

    @invariant()
    def a_match_is_always_a_true_prefix(self):
        for prompt in self.known[-2:]:
            match = self.rows.find(np.array([*prompt, 1], np.int32), self.scope)
            held = self.cache.keys[0, match.row, 0, : match.length, 0]
            assert (held == np.array([*prompt, 1])[: match.length]).all()


TestRows = RowsMachine.TestCase
TestRows.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.fixture
def rows() -> CacheRows:
    return CacheRows(Cache(SMALL, rows=3, length=64))


def admit(rows: CacheRows, prompt: list[int], scope: int = 0):
    tokens = np.array(prompt, np.int32)
    match = rows.find(tokens, scope)
    return match, rows.admit(tokens, scope, match)


def test_the_last_token_is_never_taken_from_the_cache(rows):
    admit(rows, [1, 2, 3])
    rows.settle()
    assert rows.find(np.array([1, 2, 3], np.int32), 0).length == 2


def test_another_scope_finds_nothing(rows):
    admit(rows, [1, 2, 3], scope=0)
    rows.settle()
    assert rows.find(np.array([1, 2, 3], np.int32), 1).length == 0


def test_a_prompt_waits_for_a_long_beginning_that_is_being_computed(rows):
    long = list(range(WORTH_WAITING_TOKENS + 5))
    admit(rows, long)
    assert rows.find(np.array([*long, 7], np.int32), 0).pending
    assert not rows.find(np.array([0, 1, 9], np.int32), 0).pending
    rows.settle()
    match = rows.find(np.array([*long, 7], np.int32), 0)
    assert (match.pending, match.length) == (False, len(long))


def test_finished_conversations_stay_while_others_come_and_go(rows):
    first, second = [1] * 20, [2] * 20
    admit(rows, first)
    rows.settle()
    rows.release(0)
    for _ in range(3):
        admit(rows, second)
        rows.settle()
        rows.release(0)
    assert rows.find(np.array([*first, 5], np.int32), 0).length == 20

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from verifiers.errors import ConfigError
from verifiers.training.difficulty import Difficulty, DifficultyConfig, ExampleSampler

EASY, NORMAL, HARD = Difficulty.EASY, Difficulty.NORMAL, Difficulty.HARD


@given(st.integers(1, 30), st.integers(0, 5), st.lists(st.floats(0, 1), max_size=60))
def test_without_a_mixture_every_epoch_has_every_example_once(count, seed, rewards):
    sampler = ExampleSampler([""] * count, seed=seed)
    for _ in range(3):
        epoch = []
        for _ in range(count):
            example = sampler.draw()
            epoch.append(example)
            if rewards:
                sampler.observe(example, rewards.pop())
        assert sorted(epoch) == list(range(count))


def test_the_order_depends_on_the_seed_alone():
    def order(seed):
        sampler = ExampleSampler([""] * 20, seed=seed)
        return [sampler.draw() for _ in range(40)]

    assert order(1) == order(1) != order(2)


def test_an_example_moves_between_pools_with_its_mean_reward():
    sampler = ExampleSampler(["", ""], difficulty=DifficultyConfig(newest_weight=0.5))
    assert sampler.difficulty_of(0) is NORMAL
    sampler.observe(0, 1.0)
    assert sampler.difficulty_of(0) is EASY
    sampler.observe(0, 0.0)
    assert sampler.difficulty_of(0) is NORMAL  # mean 0.5
    sampler.observe(0, 0.0)
    sampler.observe(0, 0.0)
    assert sampler.difficulty_of(0) is HARD  # mean 0.125
    assert sampler.pool_sizes() == {EASY: 0, NORMAL: 1, HARD: 1}


def test_pools_are_drawn_in_the_proportion_asked_for():
    mixture = {EASY: 0.2, NORMAL: 0.6, HARD: 0.2}
    sampler = ExampleSampler([""] * 90, difficulty=DifficultyConfig(mixture=mixture))
    for example in range(30):
        sampler.observe(example, 1.0)
        sampler.observe(30 + example, 0.0)
    drawn = Counter(sampler.difficulty_of(sampler.draw()) for _ in range(3000))
    for pool, weight in mixture.items():
        assert drawn[pool] / 3000 == pytest.approx(weight, abs=0.03)


def test_a_pool_of_weight_zero_is_drawn_only_when_the_others_are_empty():
    config = DifficultyConfig(mixture={NORMAL: 1.0})
    sampler = ExampleSampler([""] * 3, difficulty=config)
    sampler.observe(0, 1.0)
    assert {sampler.draw() for _ in range(50)} == {1, 2}
    for example in (1, 2):
        sampler.observe(example, 1.0)
    assert {sampler.draw() for _ in range(50)} == {0, 1, 2}


def test_environments_are_drawn_in_the_proportion_asked_for():
    sampler = ExampleSampler(["math"] * 100 + ["code"] * 5, env_weights={"math": 1.0, "code": 3.0})
    drawn = Counter("math" if sampler.draw() < 100 else "code" for _ in range(2000))
    assert drawn["code"] / 2000 == pytest.approx(0.75, abs=0.04)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=40), st.booleans())
def test_a_resumed_sampler_draws_what_the_other_would_have(steps, mixed):
    config = DifficultyConfig(mixture={EASY: 1, NORMAL: 2, HARD: 1} if mixed else {})
    options = {"seed": 4, "difficulty": config, "env_weights": {"a": 1, "b": 2} if mixed else {}}
    names = ["a"] * 4 + ["b"] * 3
    sampler = ExampleSampler(names, **options)
    for observed, reward in steps:
        example = sampler.draw()
        if observed:
            sampler.observe(example, reward)
    other = ExampleSampler(names, **options)
    other.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert other.pool_sizes() == sampler.pool_sizes()
    assert sorted(e for line in other._lines.values() for e in line) == list(range(7))
    if not mixed:
        assert [other.draw() for _ in range(20)] == [sampler.draw() for _ in range(20)]


def test_wrong_settings_say_what_is_wrong():
    with pytest.raises(ConfigError, match="no examples"):
        ExampleSampler([])
    with pytest.raises(ConfigError, match=r"names \['chess'\]; .* \['math'\]"):
        ExampleSampler(["math"], env_weights={"chess": 1})
    with pytest.raises(ValidationError, match="must lie below easy_from"):
        DifficultyConfig(hard_up_to=0.9)
    with pytest.raises(ValidationError, match="at least 0"):
        DifficultyConfig(mixture={EASY: -1.0})
    with pytest.raises(ConfigError, match="has 2 examples, but the environment has 3"):
        ExampleSampler([""] * 3).load_state_dict(ExampleSampler([""] * 2).state_dict())

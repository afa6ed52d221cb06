"""The simulation of docs/train.md says what the page says."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import simulate_source

    yield simulate_source
    del sys.modules["simulate_source"]


def test_in_flight_updates_more_than_halve_the_step_time(simulation):
    found = {name: simulate(6, 0) for name, simulate in simulation.MODES.items()}
    steps_s = {name: mode.step_s for name, mode in found.items()}
    assert steps_s["synchronous"] > steps_s["asynchronous"] > 2 * steps_s["in-flight"]
    assert found["in-flight"].used > 0.8
    assert found["in-flight"].staleness <= 8


def test_groups_that_wait_for_a_long_rollout_do_not_starve_the_servers(simulation):
    """Counted whole, two batches of begun groups leave every second place empty."""
    by_groups = simulation.in_flight(10, 0, max_groups_ahead=2 * simulation.GROUPS)
    by_rollouts = simulation.in_flight(10, 0)
    assert by_groups.used < 0.5
    assert by_rollouts.used > 0.9
    assert by_rollouts.step_s < 0.75 * by_groups.step_s
    assert by_rollouts.dropped < 0.05 * 10 * simulation.GROUPS


def test_without_a_long_tail_there_is_little_to_gain(simulation, monkeypatch):
    """The simulation does not favour one way: with equal lengths and instant training all take the same time."""
    monkeypatch.setattr(simulation, "SPREAD", 0.0)
    monkeypatch.setattr(simulation, "TRAIN_S", 0.0)
    monkeypatch.setattr(simulation, "LOAD_S", 0.0)
    steps_s = [simulate(5, 0).step_s for simulate in simulation.MODES.values()]
    assert max(steps_s) == pytest.approx(min(steps_s), rel=0.01)

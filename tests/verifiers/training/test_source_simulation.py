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


def test_without_a_long_tail_there_is_little_to_gain(simulation, monkeypatch):
    """The simulation does not favour one way: with equal lengths and instant training all take the same time."""
    monkeypatch.setattr(simulation, "SPREAD", 0.0)
    monkeypatch.setattr(simulation, "TRAIN_S", 0.0)
    monkeypatch.setattr(simulation, "LOAD_S", 0.0)
    steps_s = [simulate(5, 0).step_s for simulate in simulation.MODES.values()]
    assert max(steps_s) == pytest.approx(min(steps_s), rel=0.01)

"""The simulation, its plot and the table of docs/train.md have the same figures."""

import re
import struct
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "tests" / "benchmarks"


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


def drawn() -> dict[str, tuple[int, int, float]]:
    """Seconds per step, percent of the places, and staleness of each way, as the plot's file notes them."""
    content = (ROOT / "docs" / "images" / "source_simulation.png").read_bytes()
    position, found = 8, {}
    while position < len(content):
        length, kind = struct.unpack(">I4s", content[position : position + 8])
        if kind == b"tEXt" and content[position + 8 :].startswith(b"Description"):
            text = content[position + 20 : position + 8 + length].decode()
            for line in text.splitlines():
                seconds, percent, staleness = re.findall(r"[\d.]+", line.replace(",", ""))[:3]
                found[line.split()[0]] = (int(seconds), int(percent), float(staleness))
        position += 12 + length
    return found


def test_the_plot_has_the_figures_of_the_table():
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\S+): .* \| (\d+) \| (\d+) % \| ([\d.]+) \|$", page, re.M)
    assert len(rows) == 3
    assert drawn() == {
        name: (int(seconds), int(percent), float(staleness))
        for name, seconds, percent, staleness in rows
    }


@pytest.mark.long
def test_the_script_has_the_figures_of_the_plot_and_reports_the_selection_by_length(
    simulation, capsys
):
    assert simulation.main([]) == 0
    out = capsys.readouterr().out
    for name, (seconds, percent, _) in drawn().items():
        assert re.search(rf"^{name} +{seconds} s per step +{percent}% of the places", out, re.M), (
            out
        )
    assert "batches hold 5% fewer rollouts of 50,000 tokens or more" in out

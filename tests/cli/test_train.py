"""`vf-train` as a user runs it: a real trainer and server, a real environment, real interruptions."""

import json
import os
import re
import select
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        find_spec("torch") is None,
        reason="the reference trainer needs torch: pip install 'verifiers[train]'",
    ),
    # Importing torch alone takes seconds of CPU in each run, and machines may be busy.
    pytest.mark.timeout(300),
]

CONFIG = """
steps = {steps}
output = "run"
evaluation_examples = 4

[environment]
id = "reverse-text"
args = {{ num_train_examples = 20, min_length = 2, max_length = 4 }}

[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2

[warm_start]
steps = {warm_steps}
demonstrations = 20
noise = 0.5
noisy_steps = {noisy_steps}
batch_size = 8
optimizer = {{ kind = "muon" }}

[source]
groups_per_batch = 2
rollouts_per_group = 4
max_in_flight = 16
keep_without_signal = true

[sampling]
max_tokens = 12

[checkpoints]
every_steps = 2
"""

SEVERAL_TURNS = """
steps = 3
output = "run"
evaluation_examples = 4

[environment]
id = "higher-lower"
args = { num_train_examples = 40, size = 15, smallest = 10, largest = 30 }

[model]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2

[warm_start]
steps = 40
demonstrations = 40
batch_size = 8
optimizer = { kind = "muon", learning_rate = 5e-3 }

[source]
groups_per_batch = 2
rollouts_per_group = 4
max_in_flight = 16
keep_without_signal = true

[sampling]
max_tokens = 24
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(*, steps: int, warm_steps: int = 0) -> str:
        Path("my.toml").write_text(
            CONFIG.format(steps=steps, warm_steps=warm_steps, noisy_steps=2 if warm_steps else 0)
        )
        return "my.toml"

    return write


def metrics(phase: str = "step") -> list[dict]:
    file = Path("run/metrics.jsonl")
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [line for text in lines if (line := json.loads(text))["phase"] == phase]


def wait_until(condition, process, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "the condition never held"
        select.select([], [], [], 0.02)


def pids_of(process) -> dict[str, int]:
    """From the line that says that all processes are up."""
    line = process.stderr.readline()
    found = re.search(r"processes: trainer (\d+), server (\d+)", line)
    assert found, line + process.stderr.read()
    return {"trainer": int(found[1]), "server": int(found[2])}


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has as well."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_three_steps_are_on_policy_at_first_and_a_run_goes_on_where_it_ended(config, run):
    done = run("train", config(steps=3, warm_steps=12), "--json")
    assert done.code == 0, done.err
    summary = done.json
    lines = metrics()
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert [line["step"] for line in metrics("warm_start")] == [10, 14]
    assert summary["steps"] == 3
    assert summary["evaluation_after"] is not None
    # The trainer's torch and the server's numpy agree on every token of the first batch.
    assert lines[0]["staleness/max"] == 0
    assert lines[0]["tokens/trained"] > 20
    assert 0.0 <= lines[0]["trainer/mismatch_kl"] < 1e-6
    assert lines[0]["trainer/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert lines[0]["trainer/ratio_min"] == pytest.approx(1.0, abs=1e-3)
    folder = Path("run")
    checkpoints = folder / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step_000002", "step_000003"]
    assert (folder / "curve.svg").read_text().startswith("<svg")
    assert summary["model"] == str(checkpoints / "step_000003" / "model")
    before = json.loads((checkpoints / "step_000003" / "source.json").read_text())["dispatch"]

    code, out, err = run("train", "--resume", "run", "--steps", 5)
    assert code == 0, err
    assert "from reinforcement 3" in err
    assert "demonstrations" not in err
    assert [line["step"] for line in metrics()] == [1, 2, 3, 4, 5]
    assert "(5 steps)" in out
    assert f"held out   {summary['evaluation_before']:.3f} before, " in out
    elapsed_s = [line["elapsed_s"] for line in metrics()]
    assert elapsed_s == sorted(elapsed_s)
    assert elapsed_s[0] > 0
    after = json.loads((checkpoints / "step_000005" / "source.json").read_text())["dispatch"]
    assert (before["version"], after["version"]) == (3, 5)
    assert after["tally"]["batches"] == 5
    assert after["tally"]["entries"] == 5 * 2


def test_a_rollout_of_several_turns_is_one_sequence_that_is_on_policy_at_first(
    tmp_path, monkeypatch, run
):
    monkeypatch.chdir(tmp_path)
    Path("turns.toml").write_text(SEVERAL_TURNS)
    done = run("train", "turns.toml", "--json")
    assert done.code == 0, done.err
    lines = metrics()
    assert [line["step"] for line in lines] == [1, 2, 3]
    # A lucky group finds its number at once; not in every step.
    assert max(line["metric/num_turns"] for line in lines) > 1.5
    for line in lines:
        # All turns of a rollout and what was answered in between are one row; only what was sampled is trained on. An
        # answer that was cut off has no end token: it is sent as text, which need not become the same tokens again.
        cut_off = line["tokens/truncated"] * 2 * 4
        assert 2 * 4 <= line["tokens/sequences"] <= 2 * 4 + 3 * cut_off
        assert line["tokens/trained"] < line["tokens/total"] / 2
    assert 0.0 <= lines[0]["trainer/mismatch_kl"] < 1e-6
    assert lines[0]["trainer/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert lines[0]["trainer/ratio_min"] == pytest.approx(1.0, abs=1e-3)


def test_an_interrupt_leaves_a_checkpoint_and_no_process(config, start_process):
    process = start_process("train", config(steps=100_000))
    pids = pids_of(process)
    wait_until(lambda: len(metrics()) >= 3, process)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "next       vf-train --resume run" in out
    steps = [line["step"] for line in metrics()]
    newest = sorted(path.name for path in Path("run/checkpoints").iterdir())[-1]
    assert newest == f"step_{steps[-1]:06}"
    assert all(is_gone(pid) for pid in pids.values())


def test_an_interrupt_in_the_warm_start_leaves_a_checkpoint_to_go_on_from(config, start_process):
    process = start_process("train", config(steps=1, warm_steps=100_000))
    wait_until(lambda: len(metrics("warm_start")) >= 2, process)

    process.send_signal(signal.SIGINT)
    _, err = process.communicate()

    assert process.returncode == 130, err
    done = metrics("warm_start")[-1]["step"]
    [checkpoint] = Path("run/checkpoints").iterdir()
    assert checkpoint.name == f"warm_start_{done:06}"


@pytest.mark.parametrize("victim", ["trainer", "server"])
def test_a_process_that_is_killed_ends_the_run_with_a_reason(victim, config, start_process):
    process = start_process("train", config(steps=100_000))
    pids = pids_of(process)
    wait_until(lambda: len(metrics()) >= 3, process)

    os.kill(pids[victim], signal.SIGKILL)
    _, err = process.communicate()

    assert process.returncode == 1, err
    reasons = {
        "trainer": f"error: The trainer process {pids['trainer']} was ended by SIGKILL.",
        "server": f"error: The inference server's process {pids['server']} ended by itself.",
    }
    assert reasons[victim] in err
    assert "To continue from the last checkpoint: vf-train --resume run" in err
    assert "Traceback" not in err
    assert all(is_gone(pid) for pid in pids.values())


def test_nothing_is_left_when_the_command_itself_is_killed(config, start_process):
    process = start_process("train", config(steps=100_000))
    pids = pids_of(process)
    wait_until(lambda: len(metrics()) >= 1, process)
    process.kill()
    process.communicate()
    end = time.monotonic() + 60
    while not all(is_gone(pid) for pid in pids.values()):
        assert time.monotonic() < end, "a process has outlived the command"
        select.select([], [], [], 0.02)


def test_mistakes_are_named_before_anything_starts(config, run):
    Path(config(steps=1)).write_text("stepz = 1")
    done = run("train", "my.toml")
    assert (done.code, "Did you mean 'steps'?" in done.err) == (2, True)
    done = run("train", "nowhere.toml")
    assert done.code == 2
    assert "The package contains these examples: " in done.err
    assert "reverse_text" in done.err
    done = run("train")
    assert (done.code, "give one of: a CONFIG_OR_ENV, --demo, --resume FOLDER" in done.err) == (
        2,
        True,
    )
    done = run("train", "--resume", ".")
    assert (done.code, "not the folder of a run" in done.err) == (2, True)
    assert not Path("run").exists()


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("chosen", ["--demo", "higher_lower"])
def test_the_configurations_of_the_package_learn(
    chosen, seed, tmp_path, monkeypatch, start_process
):
    monkeypatch.chdir(tmp_path)
    process = start_process("train", chosen, "--seed", seed, "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["reward_last"] >= 0.85
    assert summary["reward_last"] - summary["reward_first"] >= 0.25


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["last_letter", "double"])
def test_an_environment_of_ones_own_learns_with_the_default_settings(
    name, tmp_path, monkeypatch, start_process
):
    monkeypatch.chdir(tmp_path)
    file = Path(__file__).with_name("own_environments") / f"{name}.py"
    process = start_process("train", str(file), "--json")
    out, err = process.communicate()
    assert process.returncode == 0, err
    summary = json.loads(out)
    # One run each: 0.580 -> 0.980 and 0.450 -> 0.833.
    assert summary["evaluation_after"] > summary["evaluation_before"] + 0.15


def test_settings_that_cannot_work_end_a_run_before_its_warm_start_and_advise_no_resume(
    config, run
):
    file = Path(__file__).with_name("own_environments") / "double.py"
    text = Path(config(steps=1, warm_steps=10)).read_text()
    text = re.sub(r'id = "reverse-text"\nargs = .*', f'id = "{file}"', text)
    text = text.replace("noise = 0.5", "noise = 0.9\nmin_reward = 0.3")
    Path("my.toml").write_text(text)
    done = run("train", "my.toml")
    assert done.code == 2, done.err
    message = " ".join(done.err.split())
    assert "less than warm_start.min_reward=0.3" in message
    assert 'or noise="auto"' in message
    assert "--resume" not in message
    assert metrics("warm_start") == []

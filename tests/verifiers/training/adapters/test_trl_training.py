"""TRL itself: real training on the CPU against the embedded model, and the protocols that the doubles stand for."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_trl_async import RolloutSample

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
STEPS = 25
PACKAGES = ["trl==1.16.0", "transformers", "accelerate", "safetensors"]
BESIDE = Path(sys.prefix) / "trl"
"""Where `make test` puts TRL, apart from the packages that the library is tested with."""


class WithTRL:
    """Runs programs in a Python that has TRL and this library."""

    def __init__(self, python: str, *folders: Path) -> None:
        self.python = python
        self.path = os.pathsep.join(map(str, [*folders, ROOT / "environments" / "reverse_text"]))

    def last_line(self, *arguments: str, cwd: Path) -> dict:
        """The JSON that a program prints last."""
        done = subprocess.run(
            [self.python, *arguments],
            env={
                **os.environ,
                "PYTHONPATH": self.path,
                "OMP_NUM_THREADS": "1",  # small matrices lose time when threads share them
                "HF_HUB_OFFLINE": "1",
            },
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    def train(self, steps: int, rollouts_per_step: int, folder: Path) -> dict:
        """What train_with_trl.py tells of a training."""
        program = str(HERE / "train_with_trl.py")
        return self.last_line(program, str(steps), str(rollouts_per_step), str(folder), cwd=folder)


def trl_at_hand() -> WithTRL | None:
    """`VF_TRL_PYTHON` names a Python that has TRL and this library already."""
    if given := os.environ.get("VF_TRL_PYTHON"):
        return WithTRL(given)
    has_torch = importlib.util.find_spec("torch") is not None
    return WithTRL(sys.executable, BESIDE) if BESIDE.is_dir() and has_torch else None


@pytest.fixture(scope="module")
def with_trl(tmp_path_factory):
    if (found := trl_at_hand()) is not None:
        return found
    folder = tmp_path_factory.mktemp("venv") / "trl"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "torch==2.13.0", *PACKAGES, "--editable", str(ROOT)], check=True)
    return WithTRL(python)


def test_three_steps_of_grpo_train_on_what_the_endpoint_sampled(tmp_path):
    trl = trl_at_hand()
    if trl is None:
        pytest.skip(f"There is no torch, or no TRL in {BESIDE}; `make test` puts both there.")
    result = trl.train(3, 32, tmp_path)
    assert len(result["rewards"]) == 3
    assert all(0 < reward < 1 for reward in result["rewards"])
    # The trainer's own log-probabilities are those of sampling: its weights are the endpoint's at every step.
    assert max(result["gaps"]) < 5e-3
    assert result["moved"] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_grpo_on_an_environment_raises_its_reward(with_trl, tmp_path):
    result = with_trl.train(STEPS, 128, tmp_path)
    rewards = result["rewards"]
    assert len(rewards) == STEPS
    # One run: 0.583 → 0.648. Nothing is gained by noise: each mean is over 384 rollouts or more.
    assert sum(rewards[-5:]) / 5 > sum(rewards[:3]) / 3 + 0.03
    assert max(result["gaps"]) < 5e-3


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_doubles_of_trl_are_like_trl(with_trl, tmp_path):
    """Fields of the sample that the worker makes, and methods of the two protocols it stands for."""
    asked = """
import dataclasses, inspect, json
from trl.experimental.async_grpo import async_grpo_trainer as trainer
from verifiers.training.adapters.trl import AsyncGRPOWorker
from verifiers.training.adapters.trl import FolderWeightTransfer

def missing(protocol, kind):
    for name, method in vars(protocol).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            own = getattr(kind, name, None)
            if own is None or list(inspect.signature(own).parameters) != list(inspect.signature(method).parameters):
                yield name

print(json.dumps({
    "fields": [field.name for field in dataclasses.fields(trainer.RolloutSample)],
    "missing": [*missing(trainer.RolloutWorkerProtocol, AsyncGRPOWorker),
                *missing(trainer.WeightTransferProtocol, FolderWeightTransfer)],
}))
"""
    told = with_trl.last_line("-c", asked, cwd=tmp_path)
    assert told["missing"] == []
    assert told["fields"] == [field.name for field in dataclasses.fields(RolloutSample)]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_example_of_the_page_gets_rewards_and_changes_weights_in_trl(with_trl, tmp_path):
    page = (ROOT / "docs" / "trainers" / "trl.md").read_text(encoding="utf-8")
    environment, example, *_ = re.findall(r"```python(?: no-run)?\n(.*?)```", page, re.S)
    assert "max_steps=20" in example
    program = (
        environment
        + example.replace("max_steps=20", "max_steps=3")
        + "\nimport json\nprint()\nprint(json.dumps([one for one in trainer.state.log_history if 'reward' in one]))\n"
    )
    (tmp_path / "example.py").write_text(program)
    steps = with_trl.last_line("example.py", cwd=tmp_path)
    assert len(steps) == 3
    # In half precision the third step had the reward 0.
    assert all(step["reward"] > 0.1 for step in steps)
    assert any(abs(step["loss"]) > 0 for step in steps)
    assert all(step["grad_norm"] > 0 for step in steps)

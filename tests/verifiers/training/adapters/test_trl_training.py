"""TRL itself, in a virtual environment of its own: real training on the CPU against the embedded model."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_trl_async import RolloutSample

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
STEPS = 25
PACKAGES = ["trl==1.16.0", "transformers", "accelerate", "safetensors"]


@pytest.fixture
def trl_python(tmp_path):
    """A Python with TRL; `VF_TRL_PYTHON` names one that has it and this library already."""
    if given := os.environ.get("VF_TRL_PYTHON"):
        return given
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "trl")], check=True)
    python = str(tmp_path / "trl" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "torch==2.13.0", *PACKAGES, "--editable", str(ROOT)], check=True)
    return python


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_grpo_on_an_environment_raises_its_reward(trl_python, tmp_path):
    done = subprocess.run(
        [trl_python, str(HERE / "train_with_trl.py"), str(STEPS), str(tmp_path)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "environments" / "reverse_text"),
            "OMP_NUM_THREADS": "1",  # small matrices lose time when threads share them
            "HF_HUB_OFFLINE": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    rewards = result["rewards"]
    assert len(rewards) == STEPS
    # One run: 0.583 → 0.648. Nothing is gained by noise: each mean is over 384 rollouts or more.
    assert sum(rewards[-5:]) / 5 > sum(rewards[:3]) / 3 + 0.03
    # The trainer's own log-probabilities are those of sampling: its weights are the endpoint's at every step.
    assert max(result["gaps"]) < 5e-3


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_doubles_of_trl_are_like_trl(trl_python):
    """Fields of the sample that the worker makes, and methods of the two protocols it stands for."""
    asked = """
import dataclasses, inspect, json
from trl.experimental.async_grpo import async_grpo_trainer as trainer
from verifiers.training.adapters.trl_async import AsyncGRPOWorker
from verifiers.training.adapters.weight_transfer import FolderWeightTransfer

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
    done = subprocess.run([trl_python, "-c", asked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["missing"] == []
    assert told["fields"] == [field.name for field in dataclasses.fields(RolloutSample)]

"""Driven as `AsyncGRPOTrainer` (TRL 1.16) drives its worker and its weight transfer, from a thread without a loop."""

import queue
import sys
import types
from dataclasses import dataclass

import numpy as np
import pytest
from games import alternating, question_env

import verifiers as vf
from verifiers.endpoint import endpoint_process
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.errors import AuthenticationError
from verifiers.testing import ScriptedClient
from verifiers.training.adapters import TrainerMissing
from verifiers.training.adapters.trl import AsyncGRPOWorker, FolderWeightTransfer, WorkerFailed
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.source_config import SourceConfig


@dataclass
class RolloutSample:
    """The fields of TRL's class."""

    prompt: list
    completion: list
    input_ids: np.ndarray
    completion_mask: np.ndarray
    old_log_probs: np.ndarray
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]
    enqueued_at: float | None = None


@pytest.fixture
def trl(monkeypatch):
    name = "trl.experimental.async_grpo.async_rollout_worker"
    module = types.ModuleType(name)
    module.RolloutSample = RolloutSample
    for part in ("trl", "trl.experimental", "trl.experimental.async_grpo"):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setitem(sys.modules, name, module)


def worker(endpoints=None, **changed):
    config = {"groups_per_batch": 2, "rollouts_per_group": 2, "max_in_flight": 8} | changed
    buffered = config.pop("max_buffered", 8)
    return AsyncGRPOWorker(
        question_env(), endpoints or [PolicyEndpoint(alternating())], SourceConfig(**config),
        model="m", max_buffered=buffered,
    )  # fmt: skip


def test_the_trainer_gets_samples_with_everything_it_reads(trl):
    rollouts = worker()
    rollouts.update_model_version(1)  # the first sync comes before `start`
    rollouts.start()
    try:
        samples = [rollouts.rollout_buffer.get(timeout=10) for _ in range(8)]
        rollouts.check_health(60.0)
    finally:
        rollouts.stop()
    for sample in samples:
        assert sample.input_ids.dtype == sample.completion_mask.dtype == np.int64
        assert sample.old_log_probs.dtype == np.float32
        assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
        assert sample.completion_mask.sum() > 0
        # A client that does not say which policy sampled a token: the version the group was begun with, or older.
        assert sample.model_version in (0, 1)
        assert sample.advantage == pytest.approx(sample.metrics["reward"] - 0.5)
    assert len({sample.group_id for sample in samples}) == 4
    assert rollouts.metrics_queue.get_nowait()["reward/mean"] == 0.5


def test_a_worker_whose_groups_never_differ_warns_and_says_so_when_it_is_asked_for_samples(
    trl, caplog
):
    client = ScriptedClient(then="yes", token_ids=True)
    rollouts = worker([PolicyEndpoint(client)], give_up_after=40)
    rollouts.start()
    try:
        rollouts._thread.wait(60.0)
        assert "all rollouts have the same reward" in caplog.text
        with pytest.raises(WorkerFailed, match="every reward is"):
            rollouts.check_health(60.0)
    finally:
        rollouts.stop()


def test_new_versions_reach_the_rollouts_and_a_full_buffer_holds_them_up(trl):
    rollouts = worker(max_buffered=4, max_off_policy_steps=0)
    rollouts.start()
    try:
        for _ in range(4):
            assert rollouts.rollout_buffer.get(timeout=10).model_version == 0
        rollouts.update_model_version(7)
        seen = [rollouts.rollout_buffer.get(timeout=10).model_version for _ in range(12)]
        assert seen[-4:] == [7, 7, 7, 7]
        assert rollouts.rollout_buffer.qsize() <= 8
    finally:
        rollouts.stop()
    with pytest.raises(WorkerFailed, match="The rollouts have stopped: None"):
        rollouts.check_health(60.0)


def test_what_stops_the_rollouts_is_raised_in_the_trainer(trl):
    broken = ScriptedClient(then=AuthenticationError("wrong key"), token_ids=True)
    rollouts = worker([PolicyEndpoint(broken)])
    rollouts.start()
    rollouts._thread.wait(10)
    with pytest.raises(WorkerFailed, match="wrong key"):
        rollouts.check_health(60.0)
    rollouts.stop()


def test_silence_is_noticed(trl):
    import asyncio

    from verifiers.testing import Reply

    never = ScriptedClient(lambda _: Reply("yes", after=asyncio.Event()), token_ids=True)
    rollouts = worker([PolicyEndpoint(never)])
    rollouts.start()
    try:
        rollouts.check_health(60.0)
        with pytest.raises(WorkerFailed, match="rollouts are in flight"):
            rollouts.check_health(0.0)
        with pytest.raises(queue.Empty):
            rollouts.rollout_buffer.get_nowait()
    finally:
        rollouts.stop()
    assert never.in_flight == 0


def test_without_trl_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(TrainerMissing, match=r"pip install 'trl>=1.16'"):
        worker().start()


def test_weights_are_in_use_while_rollouts_go_on(trl, tmp_path):
    torch_files = pytest.importorskip("safetensors.torch")
    tensors = torch_files.load_file(SHIPPED_WEIGHTS / "model.safetensors")
    with endpoint_process() as endpoint:
        policy = PolicyEndpoint.at(endpoint.url)
        config = SourceConfig(
            groups_per_batch=1, rollouts_per_group=2, max_in_flight=4, keep_without_signal=True
        )
        env = vf.SingleTurnEnv(
            dataset=[{"question": "What is 1 + 2?", "answer": "3"}],
            rubric=vf.Rubric(funcs=[lambda completion: float(len(completion[-1]["content"]) % 2)]),
        )
        rollouts = AsyncGRPOWorker(
            env, [policy], config, model=endpoint.model, max_buffered=4,
            sampling_args={"max_tokens": 16},
        )  # fmt: skip
        transfer = FolderWeightTransfer(
            rollouts, endpoint.url, tmp_path / "weights", model_folder=SHIPPED_WEIGHTS
        )

        def sync():
            transfer.pause()
            transfer.send_weights(iter(tensors.items()))
            transfer.resume()
            rollouts.update_model_version(rollouts.version + 1)

        transfer.init_weight_transfer()
        sync()
        rollouts.start()
        try:
            assert rollouts.rollout_buffer.get(timeout=30).model_version == 1
            sync()
            while rollouts.rollout_buffer.get(timeout=30).model_version < 2:
                pass
        finally:
            rollouts.stop()
        transfer.destroy()
    assert not (tmp_path / "weights").exists()


def test_a_folder_that_is_no_checkpoint_is_refused_at_once(tmp_path):
    transfer = FolderWeightTransfer(
        worker(), "http://127.0.0.1:9", tmp_path / "w", model_folder=tmp_path
    )
    with pytest.raises(FileNotFoundError, match=r"it has no config\.json"):
        transfer.init_weight_transfer()

"""With doubles of verl's `AgentLoopBase`, `AgentLoopOutput` and server manager, as `AgentLoopWorker` uses them."""

import asyncio
import importlib
import json
import sys
import types
from collections import UserDict, UserList
from types import SimpleNamespace
from typing import Any

import pytest
from engines import HFTokenizer, ServerManager
from games import EditedTurns, TwoTurns, question_env, said_yes
from pydantic import BaseModel

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.training.adapters import TrainerMissing, verl
from verifiers.training.samples import SampleError

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "logprobs": False}


class AgentLoopMetrics(BaseModel):
    generate_sequences: float = 0.0
    tool_calls: float = 0.0


class AgentLoopOutput(BaseModel):
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}


class AgentLoopBase:
    def __init__(
        self,
        trainer_config,
        server_manager,
        tokenizer,
        processor,
        dataset_cls,
        data_config,
        **kwargs,
    ):
        assert not kwargs
        self.config = trainer_config.config
        self.server_manager = server_manager
        self.tokenizer = tokenizer
        self.processor = processor
        self.loop = asyncio.get_running_loop()


@pytest.fixture
def package(monkeypatch):
    name = "verl.experimental.agent_loop.agent_loop"
    module = types.ModuleType(name)
    module.AgentLoopBase, module.AgentLoopOutput = AgentLoopBase, AgentLoopOutput
    for part in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setitem(sys.modules, name, module)
    verl._agent_loop_class.cache_clear()
    yield
    verl._agent_loop_class.cache_clear()


def game(kind=TwoTurns, **options):
    rows = [{"question": f"What is {n} + 5?", "answer": str(n + 5)} for n in range(3)]
    return kind(dataset=rows, rubric=vf.Rubric(funcs=[said_yes]), max_turns=2, **options)


def config(prompt_length=512, response_length=512):
    rollout = SimpleNamespace(prompt_length=prompt_length, response_length=response_length)
    return SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout))


async def run(monkeypatch, env, manager=None, **lengths):
    """What `AgentLoopWorker._run_agent_loop` does, hydra's look-up by name included."""
    asked = []
    monkeypatch.setattr(verl, "_loaded", lambda *given: asked.append(given) or env)
    target = "verifiers.training.adapters.verl.VerifiersAgentLoop"
    module, _, name = target.rpartition(".")
    loop = getattr(importlib.import_module(module), name)(
        trainer_config=SimpleNamespace(config=config(**lengths)),
        server_manager=manager or ServerManager(),
        tokenizer=HFTokenizer(),
        processor=None,
        dataset_cls=object,
        data_config=SimpleNamespace(config={}),
        env_id="game",
        # As from YAML: containers that are like dicts and lists, and are none.
        env_args=UserDict({"levels": UserList([1, 2]), "more": UserDict({"a": 1})}),
    )
    assert asked == [("game", '{"levels": [1, 2], "more": {"a": 1}}')]
    row = verl.dataset_rows(env)[1]
    row.pop("agent_name")
    return await loop.run(dict(SAMPLING), raw_prompt=row.pop("prompt"), index=1, **row)


async def test_a_rollout_is_one_sequence_with_verl_s_fields(monkeypatch, package):
    manager = ServerManager()
    output = await run(monkeypatch, game(), manager)
    [(first, second)] = manager.prompts.values()
    assert output.prompt_ids == first
    assert (output.prompt_ids + output.response_ids)[: len(second)] == second
    lengths = {len(output.response_ids), len(output.response_mask), len(output.response_logprobs)}
    assert len(lengths) == 1
    assert 0 < sum(output.response_mask) < len(output.response_mask)
    assert all(
        (logprob < 0) or not own
        for own, logprob in zip(output.response_mask, output.response_logprobs, strict=True)
    )
    assert (output.reward_score, output.num_turns) == (0.0, 4)
    assert output.metrics.generate_sequences > 0
    assert manager.sampling_params["logprobs"] is True
    assert output.extra_fields == {"turn_scores": [], "tool_rewards": [], "failure": ""}


async def test_what_does_not_fit_is_cut_and_a_cut_prompt_is_not_trained_on(monkeypatch, package):
    output = await run(monkeypatch, game(), response_length=9)
    assert len(output.response_ids) == len(output.response_mask) == 9
    output = await run(monkeypatch, game(), prompt_length=4)
    assert len(output.prompt_ids) == 4
    assert not any(output.response_mask)
    assert "prompt has" in output.extra_fields["failure"]


async def test_a_failed_rollout_is_not_trained_on(monkeypatch, package):
    class Down(ServerManager):
        async def generate(self, *args, **kwargs):
            raise RuntimeError("no servers")

    output = await run(monkeypatch, game(), Down())
    assert (sum(output.response_mask), output.reward_score) == (0, 0.0)
    assert "the rollout failed" in output.extra_fields["failure"]


async def test_branching_rollouts_and_group_rewards_are_refused(monkeypatch, package):
    with pytest.raises(SampleError, match="does not continue the tokens"):
        await run(monkeypatch, game(EditedTurns))

    def best(completions) -> list[float]:
        return [1.0 for _ in completions]

    grouped = question_env()
    grouped.add_rubric(vf.Rubric(funcs=[best]))
    with pytest.raises(ConfigError, match="verl plays each rollout alone"):
        await run(monkeypatch, grouped)


def test_rows_survive_the_way_through_a_parquet_file(tmp_path):
    from datasets import Dataset

    env = vf.SingleTurnEnv(
        dataset=[{"question": "q", "answer": "a", "info": {"depth": {"n": 1}}}],
        rubric=vf.Rubric(funcs=[said_yes]),
    )
    path = str(tmp_path / "rows.parquet")
    Dataset.from_list(verl.dataset_rows(env)).to_parquet(path)
    [row] = Dataset.from_parquet(path, cache_dir=str(tmp_path))
    back = json.loads(row["extra_info"]["verifiers"])
    assert (back["answer"], back["info"]) == ("a", {"depth": {"n": 1}})
    assert row["agent_name"] == "verifiers"


def test_without_verl_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", None)
    verl._agent_loop_class.cache_clear()
    with pytest.raises(TrainerMissing, match="pip install verl"):
        verl.VerifiersAgentLoop  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        verl.Other  # noqa: B018

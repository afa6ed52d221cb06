"""The token graph inside the rollout loop, against the real embedded server and its token routes."""

from collections.abc import AsyncIterator

import pytest

import verifiers as vf
from verifiers.clients import resolve_client
from verifiers.endpoint import EmbeddedEndpoint
from verifiers.tokens import StepTokens


class Conversation(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"Turn {len(state['trajectory'])}"}]


@pytest.fixture
async def client() -> AsyncIterator[vf.Client]:
    async with EmbeddedEndpoint() as endpoint:
        config = vf.ClientConfig(
            client_type="openai_chat_completions_token",
            api_base_url=endpoint.base_url,
            api_key_var="UNUSED_KEY",
        )
        yield resolve_client(config)


async def test_turns_share_one_chain_and_the_response_holds_no_second_copy(client, monkeypatch):
    monkeypatch.setenv("UNUSED_KEY", "none")
    env = Conversation(
        dataset=[{"question": "abc", "answer": "cba"}], max_turns=4, rubric=vf.Rubric()
    )
    state = await env.rollout(
        env.get_dataset()[0], client, "embedded", {"max_tokens": 200, "temperature": 0.0}
    )
    assert state["error"] is None
    steps = state["trajectory"]
    assert len(steps) == 4
    tokens = [step["tokens"] for step in steps]
    assert all(type(one) is StepTokens for one in tokens)
    assert all(step["response"].message.tokens is step["tokens"] for step in steps)
    graph = tokens[0].graph
    assert all(one.graph is graph for one in tokens)
    assert len(graph.chains) == 1
    assert graph.token_count == tokens[-1].length
    seen: list[int] = []
    for one in tokens:
        assert one["prompt_ids"][: len(seen)] == seen
        seen = one["prompt_ids"] + one["completion_ids"]
        assert len(one["completion_logprobs"]) == len(one["completion_ids"])
    assert all(
        step["response"].usage.prompt_tokens == step["tokens"].prompt_length for step in steps
    )


async def test_a_sequence_longer_than_the_trainer_takes_is_cut_and_the_response_keeps_all_of_it(
    client, monkeypatch
):
    monkeypatch.setenv("UNUSED_KEY", "none")
    env = Conversation(
        dataset=[{"question": "abc", "answer": "cba"}],
        max_turns=1,
        rubric=vf.Rubric(),
        max_seq_len=40,
    )
    state = await env.rollout(env.get_dataset()[0], client, "embedded", {"max_tokens": 60})
    [step] = state["trajectory"]
    assert step["tokens"]["is_truncated"]
    assert state["is_truncated"]
    assert step["tokens"].length == 40
    whole = step["response"].message.tokens
    assert len(whole["prompt_ids"]) + len(whole["completion_ids"]) > 40


async def test_tokens_that_contradict_each_other_fail_the_rollout_instead_of_training_it():
    from verifiers.testing import Reply, ScriptedClient
    from verifiers.types import ResponseTokens

    broken = ResponseTokens(
        prompt_ids=[1],
        prompt_mask=[0],
        completion_ids=[2, 3],
        completion_mask=[1, 1],
        completion_logprobs=[-1.0],
    )
    env = vf.SingleTurnEnv(dataset=[{"question": "a", "answer": "b"}], rubric=vf.Rubric())
    state = await env.rollout(
        env.get_dataset()[0], ScriptedClient([Reply("x", tokens=broken)]), "m", {}
    )
    assert type(state["error"]).__name__ == "TokensInvalid"
    assert state["trajectory"] == []

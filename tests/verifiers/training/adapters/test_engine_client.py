import pytest
from engines import HFTokenizer, ServerManager
from games import TwoTurns, said_yes

import verifiers as vf
from verifiers.endpoint import tokenizer
from verifiers.training.adapters.engine_client import EngineClient, Sampled, hermes_tool_calls
from verifiers.training.samples import samples_of
from verifiers.training.validation import validate


def scripted(*texts, ended=True, logprobs=None):
    """A client whose engine says these texts, and the prompts it was given."""
    said, prompts = iter(texts), []

    async def generate(ids, sampling_args, rollout_id):
        prompts.append((ids, sampling_args, rollout_id))
        sampled = tokenizer.encode(next(said)) + [tokenizer.END] * ended
        return Sampled(sampled, [-0.5] * len(sampled) if logprobs is None else logprobs)

    return EngineClient(generate, HFTokenizer()), prompts


async def test_a_later_turn_begins_with_the_ids_that_were_sampled():
    async def generate(ids, sampling_args, rollout_id):
        output = await manager.generate(
            rollout_id,
            prompt_ids=ids,
            sampling_params={"temperature": 1.0, "logprobs": True, "max_tokens": 80},
        )
        return Sampled(output.token_ids, output.log_probs)

    manager = ServerManager()
    env = TwoTurns(
        dataset=[{"question": "What is 47 + 85?", "answer": "132"}],
        rubric=vf.Rubric(funcs=[said_yes]),
        max_turns=2,
    )
    row = env.source("train").inputs()[0]
    state = await env.rollout(row, EngineClient(generate, HFTokenizer()), "m")
    assert state.error is None
    state["reward"] = 0.0
    first, second = (step["tokens"] for step in state["trajectory"])
    seen = first["prompt_ids"] + first["completion_ids"]
    assert second["prompt_ids"][: len(seen)] == seen
    [prompts] = manager.prompts.values()
    assert prompts == [first["prompt_ids"], second["prompt_ids"]]
    [sample] = samples_of(state)
    assert validate([sample], state).is_ok


async def test_tool_calls_are_read_and_their_answers_continue_the_tokens():
    call = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    client, prompts = scripted(call, "It is 5.")

    def add(a: int, b: int) -> int:
        """Add.

        Args:
            a: one
            b: other
        """
        return a + b

    env = vf.ToolEnv(
        dataset=[{"question": "2 + 3?", "answer": "5"}],
        tools=[add],
        rubric=vf.Rubric(funcs=[said_yes]),
    )
    row = env.source("train").inputs()[0]
    state = await env.rollout(row, client, "m", {"temperature": None})
    assert state.error is None
    assert [m["role"] for m in state["completion"]] == ["assistant", "tool", "assistant"]
    assert state["completion"][1]["content"] == "5"
    (one, sampling_args, _), (two, _, _) = prompts
    assert "temperature" not in sampling_args
    sampled = [*tokenizer.encode(call), tokenizer.END]
    assert two[: len(one) + len(sampled)] == [*one, *sampled]


async def test_an_answer_that_does_not_end_is_truncated():
    client, _ = scripted("never", ended=False)
    response = await client.get_response([{"role": "user", "content": "q"}], "m", {})
    assert response.message.is_truncated
    assert response.message.finish_reason == "length"


async def test_an_engine_without_log_probabilities_is_named():
    client, _ = scripted("yes", logprobs=[])
    with pytest.raises(vf.Error, match="returned 4 tokens and 0 log-probabilities"):
        await client.get_response([{"role": "user", "content": "q"}], "m", {})


@pytest.mark.parametrize(
    ("text", "content", "names"),
    [
        ("plain", "plain", []),
        ('so <tool_call>{"name": "a"}</tool_call>', "so", ["a"]),
        (
            '<tool_call>\n{"name": "a", "arguments": {"x": {"y": 1}}}\n</tool_call>'
            '<tool_call>{"name": "b", "arguments": {}}</tool_call>',
            "",
            ["a", "b"],
        ),
        ("<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", []),
        (
            '<tool_call>{"arguments": {}}</tool_call>',
            '<tool_call>{"arguments": {}}</tool_call>',
            [],
        ),
    ],
)
def test_calls_are_read_from_text(text, content, names):
    said, calls = hermes_tool_calls(text)
    assert (said, [call["function"]["name"] for call in calls]) == (content, names)

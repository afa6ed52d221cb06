"""Rollouts as flat sequences, read as the trainers of the 0.1.7 era read them."""

from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import ScriptedClient, call


class Bytes:
    """A tokenizer: one token a byte, a chat template with a line for each message."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.forgets = forgets

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def apply_chat_template(
        self, messages: Any, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        assert tokenize
        lines = [
            f"{m['role']}:{'' if self.forgets and m is not messages[-1] else m['content']}\n"
            for m in messages
        ]
        return {
            "input_ids": self.encode(
                "".join(lines) + ("assistant:" if add_generation_prompt else "")
            )
        }


class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
        return "more"


ENV = Talk(dataset=[{"question": "q"}], max_turns=2)


async def played(client: ScriptedClient, **kwargs: Any) -> dict[str, Any]:
    results = await ENV.generate(ENV.get_dataset().to_list(), client, "m", **kwargs)
    return {
        "prompts": results.prompt,
        "completions": results.completion,
        "states": results.state,
        "rewards": results.reward,
    }


def text(ids: list[int]) -> str:
    return bytes(ids).decode()


async def test_token_ids_of_the_endpoint_are_used_as_they_are() -> None:
    given = await played(ScriptedClient(["a", "b"], token_ids=True), state_columns=["trajectory"])
    out = ENV.process_env_results_vllm(**given, processing_class=None, mask_env_responses=True)
    assert text(out.prompt_ids[0]) == "<user>q</><assistant>"
    assert text(out.completion_ids[0]) == "a</><user>more</><assistant>b</>"
    own = [i for i, trained in enumerate(out.completion_mask[0]) if trained]
    assert text([out.completion_ids[0][i] for i in own]) == "a</>b</>"
    logprobs = out.completion_logprobs
    assert logprobs is not None
    assert [logprobs[0][i] for i in own] == [-0.25] * len(own)
    assert len(logprobs[0]) == len(out.completion_ids[0]) == len(out.completion_mask[0])
    assert (out.rewards, out.prompt_mask[0]) == ([0.0], [0] * len(out.prompt_ids[0]))


@pytest.mark.parametrize("mask", [True, False])
async def test_without_token_ids_the_chat_template_is_used_turn_by_turn(mask: bool) -> None:
    given = await played(ScriptedClient(["a", "b"]))
    out = ENV.process_env_results_vllm(**given, processing_class=Bytes(), mask_env_responses=mask)
    assert text(out.prompt_ids[0]) == "user:q\nassistant:"
    assert text(out.completion_ids[0]) == "a\nuser:more\nassistant:b\n"
    trained = text(
        [i for i, own in zip(out.completion_ids[0], out.completion_mask[0], strict=True) if own]
    )
    assert trained == ("a\nb\n" if mask else "a\nuser:more\nassistant:b\n")
    assert out.completion_logprobs is None  # not known, and so not zero


async def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    given = await played(ScriptedClient(["a", "b"]))
    with pytest.raises(vf.ConfigError, match="rewrites earlier turns"):
        ENV.process_env_results_vllm(**given, processing_class=Bytes(forgets=True))


async def test_long_rollouts_are_cut_masked_and_zeroed_when_asked_for() -> None:
    given = await played(ScriptedClient(["a", "b"], token_ids=True), state_columns=["trajectory"])
    given["rewards"] = [1.0]
    out = ENV.process_env_results_vllm(**given, processing_class=None, max_seq_len=25)
    assert (len(out.prompt_ids[0]) + len(out.completion_ids[0]), out.rewards) == (25, [1.0])
    assert all(out.completion_mask[0])
    out = ENV.process_env_results_vllm(
        **given,
        processing_class=None,
        max_seq_len=25,
        mask_truncated_completions=True,
        zero_truncated_completions=True,
    )
    assert (any(out.completion_mask[0]), out.rewards) == (False, [0.0])
    out = ENV.process_env_results_vllm(**given, processing_class=None, max_seq_len=5)
    assert (len(out.prompt_ids[0]), out.completion_ids[0]) == (5, [])


async def test_turns_that_were_tokenised_anew_train_only_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = await played(ScriptedClient(["a", "b"], token_ids=True), state_columns=["trajectory"])
    step = given["states"][0]["trajectory"][1]
    prompt_ids = list(step["tokens"]["prompt_ids"])
    prompt_ids[21] = 0  # what was "a"
    step["tokens"] = {**step["tokens"], "prompt_ids": prompt_ids}
    out = ENV.process_env_results_vllm(**given, processing_class=None, mask_env_responses=True)
    trained = text(
        [i for i, own in zip(out.completion_ids[0], out.completion_mask[0], strict=True) if own]
    )
    assert trained == "b</>"
    assert "does not continue the tokens" in caplog.text


async def test_text_completions_and_tool_calls() -> None:
    env = vf.SingleTurnEnv(dataset=[{"prompt": "2+2="}], message_type="completion")
    state = await env.rollout(env.get_dataset()[0], ScriptedClient(["4"]), "m", {})
    out = env.process_env_results_vllm(
        ["2+2="], [state["completion"]], [state], [1.0], processing_class=Bytes()
    )
    assert (text(out.prompt_ids[0]), text(out.completion_ids[0])) == ("2+2=", "4")
    one = call("f")
    messages = [
        vf.AssistantMessage(content="", tool_calls=[one]),
        vf.ToolMessage(tool_call_id=one.id, content="r"),
    ]
    out = env.process_env_results_vllm(
        [[vf.UserMessage(content="q")]],
        [messages],
        [{}],
        [1.0],
        processing_class=Bytes(),
        mask_env_responses=True,
    )
    assert text(out.completion_ids[0]) == "\ntool:r\n"
    assert out.completion_mask[0] == [1] + [0] * 7

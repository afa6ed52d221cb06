import re
from types import SimpleNamespace

import numpy as np
import pytest

import verifiers as vf
from verifiers.endpoint import EmbeddedEndpoint, tokenizer
from verifiers.errors import ConfigError
from verifiers.loading import load
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.reference.demonstrations import demonstrate, play_demonstrations
from verifiers.training.samples import samples_of


def written(sample):
    return tokenizer.decode(sample.token_ids[sample.mask], skip_special=False)


async def test_right_replies_score_full_and_look_like_what_a_model_would_sample():
    loaded = load("reverse-text", {"num_train_examples": 6})
    played = await play_demonstrations(loaded, count=8, noise=0.0, seed=0)
    assert (played.mean_reward, len(played.samples)) == (1.0, 8)
    row = loaded.environment.get_dataset()[0]
    assert (
        written(played.samples[0]) == f"<reversed_text>\n{row['answer']}\n</reversed_text><|end|>"
    )
    np.testing.assert_array_equal(played.samples[0].token_ids, played.samples[6].token_ids)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("reverse-text", {}),
        ("tool-calculator", {"num_operations": 1}),
        ("higher-lower", {"size": 15, "largest": 40}),
    ],
)
async def test_a_prompt_has_the_tokens_that_the_server_makes_of_it(name, args):
    loaded = load(name, {"num_train_examples": 1, **args})
    [played, *_] = (await play_demonstrations(loaded, count=1, noise=0.0, seed=0)).samples
    env = loaded.environment
    async with EmbeddedEndpoint() as server:
        endpoint = PolicyEndpoint.at(server.url)
        row = env.source("train").inputs(1)[0]
        state = await env.rollout(row, endpoint.client, "embedded", {"max_tokens": 100})
        await endpoint.client.aclose()
    state["reward"] = 0.0
    sampled = samples_of(state)[0]
    assert sampled.prompt_len == played.prompt_len
    prompt = slice(0, played.prompt_len)
    np.testing.assert_array_equal(sampled.token_ids[prompt], played.token_ids[prompt])


async def test_several_turns_are_one_sample_with_what_the_environment_said_in_between():
    loaded = load("tool-calculator", {"num_train_examples": 5, "num_operations": 1})
    played = await play_demonstrations(loaded, count=5, noise=0.0, seed=0)
    assert (played.mean_reward, len(played.samples)) == (1.0, 5)
    for sample in played.samples:
        assert re.fullmatch(
            r'<tool_call>{"name": "calculate", "arguments": {"expression": "[^"]+"}}</tool_call><\|end\|>'
            r"\\boxed{-?\d+}<\|end\|>",
            written(sample),
        )


def test_noise_changes_letters_and_digits_of_what_differs_between_rows_and_nothing_else():
    loaded = load("reverse-text", {"num_train_examples": 200})
    clean = [turns[0][0] for turns in demonstrate(loaded, count=200, noise=0.0, seed=0)]
    noisy = [turns[0][0] for turns in demonstrate(loaded, count=200, noise=0.5, seed=0)]
    again = [turns[0][0] for turns in demonstrate(loaded, count=200, noise=0.5, seed=0)]
    assert noisy == again
    changed = total = 0
    for before, after in zip(clean, noisy, strict=True):
        assert after.startswith("<reversed_text>\n")
        assert after.endswith("\n</reversed_text>")
        assert [c == " " for c in before] == [c == " " for c in after]
        inner = slice(len("<reversed_text>\n"), -len("\n</reversed_text>"))
        letters = [(a, b) for a, b in zip(before[inner], after[inner], strict=True) if a != " "]
        changed += sum(a != b for a, b in letters)
        total += len(letters)
    assert changed / total == pytest.approx(0.5 * 25 / 26, abs=0.05)


async def test_after_a_noisy_reply_the_next_one_fits_what_was_answered_to_it():
    args = {"num_train_examples": 100, "size": 15, "smallest": 10, "largest": 40}
    loaded = load("higher-lower", args)
    clean = await play_demonstrations(loaded, count=100, noise=0.0, seed=0)
    noisy = await play_demonstrations(loaded, count=100, noise=0.4, seed=0)
    again = await play_demonstrations(loaded, count=100, noise=0.4, seed=0)
    assert clean.mean_reward == 1.0
    assert 0.2 < noisy.mean_reward == again.mean_reward < 0.8
    middle = total = 0
    for sample in noisy.samples:
        text = tokenizer.decode(sample.token_ids, skip_special=False)
        ranges = re.findall(r"It is from (\d+) to (\d+)", text)
        guesses = re.findall(r"<try>(\d+)</try>", text)
        for (low, high), guess in zip(ranges, guesses, strict=True):
            middle += int(guess) == (int(low) + int(high)) // 2
            total += 1
    # Two digits a guess, each of which stays with 0.6 + 0.4 / 10; after a wrong guess the next one halves what is left.
    assert middle / total == pytest.approx(0.64**2, abs=0.08)


async def test_a_script_that_noise_makes_too_short_is_named_with_what_to_define():
    loaded = load("higher-lower", {"num_train_examples": 40, "size": 15, "largest": 40})
    module = SimpleNamespace(gold_completion=loaded.module.gold_completion)
    with pytest.raises(ConfigError, match=r"also define gold_reply\(state\)"):
        await play_demonstrations(loaded._replace(module=module), count=40, noise=0.5, seed=0)


async def test_an_environment_that_does_not_say_what_is_right_is_named():
    class Talk(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return []

    loaded = load("reverse-text", {"num_train_examples": 1})
    env = Talk(dataset=[{"question": "?", "answer": "!"}], rubric=vf.Rubric(), env_id="talk")
    with pytest.raises(ConfigError, match=r"talk does not define correct replies: define gold_"):
        await play_demonstrations(loaded._replace(environment=env), count=1, noise=0.0, seed=0)

"""Training data of a warm start: correct replies, played through the environment, as samples.

A correct reply is the environment's `gold_completion(row)`, or the answer column in the format of its parser. The
environment itself plays the replies, so tools and users respond as in a rollout. The endpoint's own chat template
renders them, so that samples begin with the tokens of a real request.

`noise` replaces letters and digits by others of their kind, in those parts of a reply that differ between rows. A
policy that learned noisy replies is correct sometimes and has the right format: reinforcement learning can begin there.
After a wrong reply, another reply can be correct. Environments whose conversations depend on earlier replies define
`gold_reply(state)`, which is called before every turn.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from verifiers.dialects.chat_completions import native_message, native_messages, native_tool
from verifiers.endpoint import tokenizer
from verifiers.endpoint.chat_template import message_text, render_chat
from verifiers.errors import ConfigError
from verifiers.messages import from_raw_message
from verifiers.packages.gold import Gold, environment_of, is_single_turn, wrapped_answers
from verifiers.testing import Reply, ScriptedClient
from verifiers.training.samples import TokenSample, failure_of, samples_of
from verifiers.types import Response, ResponseTokens, ToolCall

if TYPE_CHECKING:
    from verifiers.loading import Loaded

KINDS = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
"""Noise replaces a character by one of the same kind. Other characters stay, so that replies keep their format."""

Turn = tuple[str, tuple[ToolCall, ...]]
"""One reply: its text and its tool calls."""
Replier = Callable[[Mapping[str, Any]], Turn]
"""Returns the next reply of a conversation from its state."""


class Demonstrations(NamedTuple):
    """Replies that were played through the environment."""

    samples: list[TokenSample]
    mean_reward: float
    """Mean reward of the replies. With noise, the warm start can reach about this reward."""


def demonstrate(loaded: Loaded, *, count: int, noise: float, seed: int) -> list[list[Turn]]:
    """Return the replies of the first `count` training rows, in order. Rows repeat if there are fewer.

    Raise ConfigError if the environment does not define correct replies.
    """
    rows = loaded.environment.source("train").inputs(count)
    clean = [_turns(loaded, row) for row in rows]
    affixes = _affixes(clean)
    rng = random.Random(f"demonstrations {seed}")
    return [_noisy(clean[index % len(rows)], affixes, noise, rng) for index in range(count)]


def longest_reply(samples: Sequence[TokenSample]) -> int:
    """Number of tokens of the longest reply of one turn."""
    longest = 0
    for sample in samples:
        edges = np.diff(np.concatenate([[0], sample.mask.astype(np.int8), [0]]))
        lengths = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
        longest = max(longest, int(lengths.max(initial=0)))
    return longest


NOISES = (0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03)
"""Shares that `fitting_noise` tries."""
TRIED_DEMONSTRATIONS = 200


async def fitting_noise(loaded: Loaded, *, seed: int, at_least: float) -> float:
    """Return the largest of NOISES with which demonstrations score `at_least` on average; 0.0 if there is none."""
    for noise in NOISES:
        tried = await play_demonstrations(
            loaded, count=TRIED_DEMONSTRATIONS, noise=noise, seed=seed
        )
        if tried.mean_reward >= at_least:
            return noise
    return 0.0


async def play_demonstrations(
    loaded: Loaded, *, count: int, noise: float, seed: int
) -> Demonstrations:
    """Play and score `count` demonstrations. Raise ConfigError if one of them fails."""
    env = loaded.environment
    rows = env.source("train").inputs(count)
    repliers = _repliers(loaded, count=count, noise=noise, seed=seed)
    samples: list[TokenSample] = []
    rewards: list[float] = []
    for index, replier in enumerate(repliers):
        row = rows[index % len(rows)]
        [state] = await env.play_and_score([row], _Demonstrator(replier), "demonstration", {})
        if (failure := failure_of(state)) is not None:
            cause = state.get("error")
            reason = f" {cause}" if cause else ""
            raise ConfigError(
                f"The demonstration of row {row['example_id']} failed: {failure}.{reason}"
            ) from (cause if isinstance(cause, BaseException) else None)
        rewards.append(float(state["reward"] or 0.0))
        samples += samples_of(state)
    return Demonstrations(samples, sum(rewards) / len(rewards))


def _repliers(loaded: Loaded, *, count: int, noise: float, seed: int) -> list[Replier]:
    """Return a replier for each demonstration, in order."""
    hook = _hook(loaded, "gold_reply")
    if hook is None:
        return [_reader(t) for t in demonstrate(loaded, count=count, noise=noise, seed=seed)]
    rows = loaded.environment.source("train").inputs(count)
    # Turns of different rows do not correspond to each other, so all replies are compared with each other.
    affixes = _affixes([[turn] for row in rows for turn in _turns(loaded, row)])
    rng = random.Random(f"demonstrations {seed}")

    def speak(state: Mapping[str, Any]) -> Turn:
        return _noisy([_turn(hook(state))], affixes, noise, rng)[0]

    return [speak] * count


def _reader(turns: Sequence[Turn]) -> Replier:
    """Return a replier with fixed turns, independent of the environment's responses."""

    def speak(state: Mapping[str, Any]) -> Turn:
        played = len(state["trajectory"])
        if played >= len(turns):
            raise ConfigError(
                f"gold_completion has {len(turns)} replies, but the environment requests one more. If noise changes "
                "the course of a conversation, also define gold_reply(state): the correct reply at any point."
            )
        return turns[played]

    return speak


class _Demonstrator(ScriptedClient):
    """A client that returns the replies of one demonstration, with the token ids of the endpoint's tokenizer."""

    def __init__(self, replier: Replier) -> None:
        super().__init__()
        self._replier = replier

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Response:
        """Return the reply of this turn."""
        text, calls = self._replier(kwargs["state"])
        response = await ScriptedClient([Reply(text, calls)]).get_native_response(
            prompt, model, sampling_args, tools, **kwargs
        )
        prompt_ids = render_chat(
            native_messages(prompt), [native_tool(tool) for tool in tools or []]
        )
        written = message_text(native_message({"role": "assistant", **_message_fields(response)}))
        completion_ids = [*tokenizer.encode(written), tokenizer.END]
        response["message"]["tokens"] = ResponseTokens(
            prompt_ids=prompt_ids,
            prompt_mask=[0] * len(prompt_ids),
            completion_ids=completion_ids,
            completion_mask=[1] * len(completion_ids),
            completion_logprobs=[0.0] * len(completion_ids),
        )
        return response


def _message_fields(response: Response) -> dict[str, Any]:
    message = response["message"]
    return {"content": message.get("content"), "tool_calls": message.get("tool_calls") or None}


# ------------------------------------------------------------------------------------------------ correct replies


def _hook(loaded: Loaded, name: str) -> Any:
    """Return a function of the environment or of its module; None if neither has it."""
    return getattr(loaded.environment, name, None) or getattr(loaded.module, name, None)


def _turns(loaded: Loaded, row: Mapping[str, Any]) -> list[Turn]:
    hook = _hook(loaded, "gold_completion")
    if hook is not None:
        given = hook(row)
        replies = [given] if isinstance(given, str | Mapping) else list(given)
        return [_turn(reply) for reply in replies]
    environment = environment_of(loaded.environment, dict(row))
    answer = row.get("answer")
    if not is_single_turn(environment) or answer in (None, ""):
        raise ConfigError(
            f"{environment.env_id} does not define correct replies: define gold_completion(row) beside "
            "load_environment, or set warm_start.steps = 0 and start from a model that solves the task sometimes."
        )
    return [(wrapped_answers(str(answer), environment.parser)[0], ())]


def _turn(reply: Gold) -> Turn:
    if isinstance(reply, str):
        return reply, ()
    if isinstance(reply, ToolCall):
        return "", (reply,)
    if isinstance(reply, Mapping):
        message = from_raw_message({"role": "assistant", **reply})
        return str(message.get("content") or ""), tuple(message.get("tool_calls") or ())
    return "", tuple(reply)


# ------------------------------------------------------------------------------------------------ noise


Slot = tuple[int, int]
"""The turn, and 0 for its text or the number of a tool call from 1 on."""


def _texts(turns: Sequence[Turn]) -> Iterator[tuple[Slot, str]]:
    for number, (text, calls) in enumerate(turns):
        yield (number, 0), text
        yield from (((number, index), call["arguments"]) for index, call in enumerate(calls, 1))


def _affixes(every: Sequence[Sequence[Turn]]) -> dict[Slot, tuple[int, int]]:
    """Return the numbers of characters at the beginning and at the end that all rows share: tags and keys, not content.
    Return the numbers of characters at the beginning and at the end that all rows share: tags and keys, not content."""
    by_slot: dict[Slot, list[str]] = {}
    for turns in every:
        for slot, text in _texts(turns):
            by_slot.setdefault(slot, []).append(text)
    return {
        slot: (_same_beginning(texts), _same_beginning([text[::-1] for text in texts]))
        for slot, texts in by_slot.items()
    }


def _same_beginning(texts: Sequence[str]) -> int:
    # In sorted order, the first and the last text differ as early as any two texts do.
    pairs = enumerate(zip(min(texts), max(texts), strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(map(len, texts)))


def _noisy(
    turns: Sequence[Turn],
    affixes: Mapping[Slot, tuple[int, int]],
    noise: float,
    rng: random.Random,
) -> list[Turn]:
    def changed(slot: Slot, text: str) -> str:
        prefix, suffix = affixes.get(slot, (0, 0))
        end = max(prefix, len(text) - suffix)
        middle = "".join(_replaced(c, noise, rng) for c in text[prefix:end])
        return text[:prefix] + middle + text[end:]

    return [
        (
            changed((number, 0), text),
            tuple(
                ToolCall(
                    id=call["id"],
                    name=call["name"],
                    arguments=changed((number, index), call["arguments"]),
                )
                for index, call in enumerate(calls, 1)
            ),
        )
        for number, (text, calls) in enumerate(turns)
    ]


def _replaced(character: str, noise: float, rng: random.Random) -> str:
    kind = next((kind for kind in KINDS if character in kind), None)
    return rng.choice(kind) if kind is not None and rng.random() < noise else character

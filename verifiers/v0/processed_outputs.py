"""Finished rollouts as flat token sequences, by the name and in the format of trainers of the 0.1.7 era.

Token ids of the endpoint (`state["trajectory"]`, kept with `state_columns=["trajectory"]`) are used unchanged. Without
them, a conversation is tokenised turn by turn with the chat template of the tokenizer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verifiers.dialects.chat_completions import native_messages
from verifiers.errors import ConfigError, is_void
from verifiers.messages import from_raw_message
from verifiers.types import ProcessedOutputs

logger = logging.getLogger(__name__)


@dataclass
class _Sequence:
    """A rollout as one sequence. `sampled` and `logprobs` have the length of `completion_ids`."""

    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    is_truncated: bool = False

    def extend(
        self, ids: Sequence[int], *, sampled: bool, logprobs: Sequence[float] | None
    ) -> None:
        self.completion_ids += ids
        self.sampled += [sampled] * len(ids)
        if self.logprobs is not None and logprobs is not None:
            self.logprobs += logprobs
        else:
            self.logprobs = None

    def cut(self, max_seq_len: int) -> None:
        if max_seq_len <= 0 or len(self.prompt_ids) + len(self.completion_ids) <= max_seq_len:
            return
        self.is_truncated = True
        del self.prompt_ids[max_seq_len:]
        room = max_seq_len - len(self.prompt_ids)
        for along in (self.completion_ids, self.sampled, self.logprobs):
            if along is not None:
                del along[room:]


def process_env_results_vllm(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    states: Sequence[Mapping[str, Any]],
    rewards: Sequence[float],
    processing_class: Any,
    max_seq_len: int = -1,
    mask_env_responses: bool = False,
    mask_truncated_completions: bool = False,
    zero_truncated_completions: bool = False,
    **_: Any,
) -> ProcessedOutputs:
    """Return token ids, masks and log-probabilities of finished rollouts, in their order.

    `processing_class` is the tokenizer. `max_seq_len` is the maximum length of prompt and completion together, in
    tokens; below 1 there is no limit. Truncated rollouts can be masked or can get reward 0.0. A crashed rollout is
    masked, and its reward is the mean of the other rollouts of its example: its advantage is 0, and the baseline of the
    others does not change. Raises ConfigError if a rollout without token ids cannot be tokenised turn by turn because
    the chat template rewrites earlier turns.
    """
    processed = ProcessedOutputs()
    neutral = _with_neutral_rewards(states, rewards)
    for prompt, completion, state, reward in zip(
        prompts, completions, states, neutral, strict=True
    ):
        one = _from_trajectory(state)
        if one is None:
            one = _tokenised(prompt, completion, processing_class)
        one.is_truncated = one.is_truncated or bool(state.get("is_truncated"))
        one.cut(max_seq_len)
        mask = [int(own or not mask_env_responses) for own in one.sampled]
        if (one.is_truncated and mask_truncated_completions) or is_void(state):
            mask = [0] * len(mask)
        processed.prompt_ids.append(one.prompt_ids)
        processed.prompt_mask.append([0] * len(one.prompt_ids))
        processed.completion_ids.append(one.completion_ids)
        processed.completion_mask.append(mask)
        if processed.completion_logprobs is not None and one.logprobs is not None:
            processed.completion_logprobs.append(one.logprobs)
        else:
            processed.completion_logprobs = None
        zeroed = one.is_truncated and zero_truncated_completions
        processed.rewards.append(0.0 if zeroed else reward)
    return processed


def _with_neutral_rewards(
    states: Sequence[Mapping[str, Any]], rewards: Sequence[float]
) -> list[float]:
    """Return the rewards. A crashed rollout gets the mean of the other rollouts of its example."""
    healthy: dict[Any, list[float]] = {}
    for state, reward in zip(states, rewards, strict=True):
        if not is_void(state):
            healthy.setdefault(state.get("example_id"), []).append(reward)
    means = {example: sum(own) / len(own) for example, own in healthy.items()}
    return [
        means.get(state.get("example_id"), 0.0) if is_void(state) else reward
        for state, reward in zip(states, rewards, strict=True)
    ]


def _from_trajectory(state: Mapping[str, Any]) -> _Sequence | None:
    steps = state.get("trajectory") or []
    tokens = [step["tokens"] for step in steps]
    if not tokens or any(one is None for one in tokens):
        return None
    first = tokens[0]
    found = _Sequence(list(first["prompt_ids"]))
    for turn in tokens:
        seen = [*found.prompt_ids, *found.completion_ids]
        shown = turn["prompt_ids"]
        if shown[: len(seen)] != seen:
            return _last_turn(found.prompt_ids, tokens[-1])
        added = shown[len(seen) :]
        found.extend(added, sampled=False, logprobs=[0.0] * len(added))
        found.extend(turn["completion_ids"], sampled=True, logprobs=turn["completion_logprobs"])
    return found


def _last_turn(prompt_ids: list[int], turn: Mapping[str, Any]) -> _Sequence:
    """Return a sequence in which only the last turn counts as sampled: earlier turns were tokenised again."""
    logger.warning(
        "A turn does not continue the tokens before it; only the last turn of this rollout is trained on."
    )
    shared = 0
    for one, other in zip(prompt_ids, turn["prompt_ids"], strict=False):
        if one != other:
            break
        shared += 1
    found = _Sequence(list(turn["prompt_ids"][:shared]))
    added = turn["prompt_ids"][shared:]
    found.extend(added, sampled=False, logprobs=[0.0] * len(added))
    found.extend(turn["completion_ids"], sampled=True, logprobs=turn["completion_logprobs"])
    return found


def _tokenised(prompt: Any, completion: Any, tokenizer: Any) -> _Sequence:
    if isinstance(prompt, str):
        found = _Sequence(list(tokenizer.encode(prompt)))
        text = completion if isinstance(completion, str) else _text(completion)
        found.extend(list(tokenizer.encode(text)), sampled=True, logprobs=None)
        return found
    messages = [dict(m) for m in native_messages([*map(from_raw_message, prompt)])]
    found = _Sequence(_template_ids(tokenizer, messages, generation=True))
    for message in native_messages([*map(from_raw_message, completion)]):
        own = message["role"] == "assistant"
        if own:
            _extend_to(found, _template_ids(tokenizer, messages, generation=True), sampled=False)
        messages.append(dict(message))
        if own:
            _extend_to(found, _template_ids(tokenizer, messages, generation=False), sampled=True)
    if messages[-1]["role"] != "assistant":
        _extend_to(found, _template_ids(tokenizer, messages, generation=False), sampled=False)
    return found


def _extend_to(found: _Sequence, ids: list[int], *, sampled: bool) -> None:
    seen = [*found.prompt_ids, *found.completion_ids]
    if ids[: len(seen)] != seen:
        raise ConfigError(
            "The chat template of this tokenizer rewrites earlier turns (it drops their reasoning, for example), so "
            "the conversation cannot be tokenised turn by turn. Ask the endpoint for token ids "
            "(client_type='openai_chat_completions_token') and keep them with state_columns=['trajectory']."
        )
    added = ids[len(seen) :]
    if added:
        found.extend(added, sampled=sampled, logprobs=None)


def _template_ids(tokenizer: Any, messages: list[dict[str, Any]], *, generation: bool) -> list[int]:
    ids = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=generation)
    return list(ids["input_ids"] if isinstance(ids, Mapping) else ids)


def _text(completion: Any) -> str:
    return "".join(str(message["content"] or "") for message in completion)

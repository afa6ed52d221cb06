"""Rollouts as one token sequence each, for trainers that need one sequence for each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from verifiers.training.samples import OnDrift, SampleError, failure_of, samples_of


class FlatSequence(NamedTuple):
    """One rollout. `completion_ids`, `mask` and `logprobs` are aligned and hold everything after the prompt."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    """1 for tokens that the policy sampled and that are trained on."""
    logprobs: list[float]
    """At the time of sampling; 0.0 where `mask` is 0."""
    reward: float
    failure: str | None = None
    """The reason why no token is trained on; None for a healthy rollout."""
    is_truncated: bool = False

    def cut(self, prompt_length: int, completion_length: int) -> FlatSequence:
        """Return the sequence cut to these lengths. A prompt that does not fit loses its beginning and all training."""
        failure = self.failure
        mask = self.mask[:completion_length]
        if len(self.prompt_ids) > prompt_length:
            failure = f"its prompt has {len(self.prompt_ids)} tokens and {prompt_length} fit"
            mask = [0] * len(mask)
        return self._replace(
            prompt_ids=self.prompt_ids[-prompt_length:],
            completion_ids=self.completion_ids[:completion_length],
            mask=mask,
            logprobs=[p if own else 0.0 for p, own in zip(self.logprobs, mask, strict=False)],
            failure=failure,
            is_truncated=self.is_truncated or len(self.completion_ids) > completion_length,
        )


def flat_group(
    outputs: Sequence[Mapping[str, Any]], *, on_drift: OnDrift = "error"
) -> list[FlatSequence]:
    """Return one sequence for every rollout of one example, in order.

    A rollout that failed or sampled nothing becomes a single masked token with the mean reward of the others, which
    leaves the baseline unchanged. Raise SampleError if the turns of a rollout do not continue each other token by
    token; with `on_drift="last"` keep the context of its last turn instead. Raise SampleError if the endpoint returned
    no token ids or no log-probabilities.
    """
    sequences = [_healthy(output, on_drift) for output in outputs]
    rewards = [sequence.reward for sequence in sequences if sequence is not None]
    mean = sum(rewards) / len(rewards) if rewards else 0.0
    prompt = next((sequence.prompt_ids for sequence in sequences if sequence is not None), [0])
    return [
        FlatSequence(prompt, [0], [0], [0.0], mean, failure_of(output) or "it sampled no tokens")
        if sequence is None
        else sequence
        for sequence, output in zip(sequences, outputs, strict=True)
    ]


def flat_groups(
    groups: Sequence[Sequence[Mapping[str, Any]]], *, on_drift: OnDrift = "error"
) -> list[FlatSequence]:
    """Return `flat_group` of every group, in order. Raise SampleError if no rollout can be trained on."""
    sequences = [sequence for group in groups for sequence in flat_group(group, on_drift=on_drift)]
    if sequences and all(sequence.failure is not None for sequence in sequences):
        raise SampleError(
            f"None of the {len(sequences)} rollouts of this batch can be trained on; the first: {sequences[0].failure}."
        )
    return sequences


def _healthy(output: Mapping[str, Any], on_drift: OnDrift) -> FlatSequence | None:
    if on_drift == "fork":
        raise SampleError(
            "A fork is more than one sequence; use on_drift='error' or on_drift='last' here."
        )
    samples = samples_of(output, on_drift=on_drift)
    if not samples:
        return None
    [sample] = samples
    ids, start = sample.token_ids.tolist(), sample.prompt_len
    return FlatSequence(
        prompt_ids=ids[:start],
        completion_ids=ids[start:],
        mask=[int(own) for own in sample.mask[start:]],
        logprobs=sample.logprobs[start:].tolist(),
        reward=sample.reward,
        is_truncated=sample.is_truncated,
    )

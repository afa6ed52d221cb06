"""Check that samples hold exactly the sampled tokens, using only the steps of the rollout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verifiers.training.samples import SampleError, TokenSample, failure_of


@dataclass(frozen=True)
class ValidationReport:
    """The result of `validate` for one rollout."""

    problems: tuple[str, ...]
    """All contradictions; empty for valid samples."""
    sampled_count: int
    """Number of tokens that the policy sampled and that may be trained on."""
    trained_count: int
    """Number of tokens that the samples train on."""
    drift: tuple[int, ...] = field(default=())
    """Number of steps whose prompt does not continue the tokens of an earlier step."""

    @property
    def is_ok(self) -> bool:
        """Whether there are no problems. Drift is not a problem: it costs a branch."""
        return not self.problems

    def raise_for_problems(self) -> None:
        """Raise SampleError if there are problems."""
        if self.problems:
            shown = "; ".join(self.problems[:5])
            more = f" (and {len(self.problems) - 5} more)" if len(self.problems) > 5 else ""
            raise SampleError(f"The samples contradict the rollout: {shown}{more}.")


def validate(
    samples: Sequence[TokenSample],
    output: Mapping[str, Any],
    *,
    complete: bool = True,
    vocabulary_size: int | None = None,
) -> ValidationReport:
    """Prove, from the steps of the rollout alone, that every trained token was sampled where the sample records it.

    Each trained token must be a completion token of its step, with that log-probability, after exactly the context
    that the model had. No token may be trained twice. With `complete`, no token may be left out (pass False after
    cutting, masking or `on_drift="last"`).
    """
    problems = [
        p for n, sample in enumerate(samples) for p in _shape_problems(n, sample, vocabulary_size)
    ]
    trajectory = output.get("trajectory") or []
    steps = [step.get("tokens") for step in trajectory]
    if (reason := failure_of(output)) is not None:
        if samples:
            problems.append(f"there are samples although {reason}")
        return ValidationReport(tuple(problems), 0, sum(s.trained_count for s in samples))
    wanted = {
        (index, place)
        for index, tokens in enumerate(steps)
        if tokens is not None and _is_trainable(trajectory[index])
        for place, own in enumerate(tokens["completion_mask"])
        if own
    }
    trained: set[tuple[int, int]] = set()
    if problems:  # streams of unequal length cannot be compared token by token
        counts = sum(s.trained_count for s in samples)
        return ValidationReport(tuple(problems), len(wanted), counts, _drift(steps))
    for number, sample in enumerate(samples):
        problems += _source_problems(number, sample, steps, wanted, trained)
    if complete and (missing := wanted - trained):
        problems.append(f"{len(missing)} sampled tokens are not trained, first {min(missing)}")
    return ValidationReport(
        tuple(problems), len(wanted), sum(s.trained_count for s in samples), _drift(steps)
    )


def _is_trainable(step: Mapping[str, Any]) -> bool:
    return (step.get("extras") or {}).get("trainable") is not False


def _shape_problems(number: int, sample: TokenSample, vocabulary_size: int | None) -> Iterable[str]:
    count = len(sample.token_ids)
    for name in ("mask", "logprobs", "versions", "advantages"):
        stream = getattr(sample, name)
        if stream is not None and len(stream) != count:
            yield f"sample {number}: {name} has {len(stream)} entries for {count} tokens"
            return
    if count and (
        sample.token_ids.min() < 0
        or (vocabulary_size is not None and sample.token_ids.max() >= vocabulary_size)
    ):
        yield f"sample {number}: token ids from {sample.token_ids.min()} to {sample.token_ids.max()}"
    trained = sample.logprobs[sample.mask]
    if not np.isfinite(trained).all() or (len(trained) and trained.max() > 1e-4):
        yield f"sample {number}: log-probabilities that are not numbers up to 0"
    if sample.logprobs[~sample.mask].any():
        yield f"sample {number}: log-probabilities where nothing was sampled"
    if not np.isfinite(sample.token_advantages()).all():
        yield f"sample {number}: its advantage is not finite"
    if sample.mask[: sample.prompt_len].any():
        yield f"sample {number}: tokens of its prompt are trained"


def _source_problems(
    number: int,
    sample: TokenSample,
    steps: Sequence[Any],
    wanted: set[tuple[int, int]],
    trained: set[tuple[int, int]],
) -> Iterable[str]:
    covered = np.zeros(len(sample.mask), bool)
    ids = sample.token_ids.tolist()
    for index, start, end in sample.spans:
        tokens = steps[index] if index < len(steps) else None
        if tokens is None:
            yield f"sample {number}: step {index} has no tokens"
            continue
        count = end - start
        covered[start:end] = True
        if ids[:end] != tokens["prompt_ids"] + tokens["completion_ids"][:count]:
            yield f"sample {number}: its first {end} tokens are not those of step {index}"
            continue
        for place in np.flatnonzero(sample.mask[start:end]).tolist():
            token = (index, place)
            if token not in wanted:
                yield f"sample {number}: token {start + place} was not sampled by the policy"
            elif token in trained:
                yield f"sample {number}: token {start + place} is trained twice"
            elif sample.logprobs[start + place] != np.float32(tokens["completion_logprobs"][place]):
                yield f"sample {number}: token {start + place} has another log-probability"
            trained.add(token)
    if (sample.mask & ~covered).any():
        yield f"sample {number}: token {int(np.argmax(sample.mask & ~covered))} comes from no step"


def _drift(steps: Sequence[Any]) -> tuple[int, ...]:
    contexts: list[list[int]] = []
    drifted: list[int] = []
    for index, tokens in enumerate(steps):
        if tokens is None:
            continue
        prompt = tokens["prompt_ids"]
        if contexts and not any(prompt[: len(seen)] == seen for seen in contexts):
            drifted.append(index)
        contexts.append(prompt + tokens["completion_ids"])
    return tuple(drifted)

"""Finished rollouts → `TokenSample`s: flat token sequences with a mask of the tokens that the policy sampled.

A rollout gives one sample per branch of its token graph. A rollout usually has one branch; sub-agents, edited histories
and responses that the chat template renders differently later add more. A token shared by several branches is trained
in the first of them only, so every sampled token is trained exactly once. A rollout with an error gives no sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from verifiers.errors import Error, is_void
from verifiers.tokens import Chain, StepTokens, stored_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNKNOWN_VERSION = -1
"""Entry of `versions` for a token that was not sampled or whose policy version is unknown."""

OnDrift = Literal["fork", "last", "error"]


class SampleError(Error, ValueError):
    """A rollout cannot be turned into samples, or a sample contradicts its rollout."""


class Span(NamedTuple):
    """Sampled tokens `[start, end)` of a sample, and the step of the trajectory they come from."""

    step: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class TokenSample:
    """One training sequence of T tokens. Index t of every stream describes token t; the trainer shifts by one."""

    token_ids: NDArray[np.int32]
    """`[T]` the tokens of prompt and completions."""
    mask: NDArray[np.bool_]
    """`[T]` True where the policy sampled the token and it is trained on."""
    logprobs: NDArray[np.float32]
    """`[T]` log-probability at the time of sampling, after temperature; 0.0 where `mask` is False."""
    prompt_len: int
    """Number of tokens before the first sampled one."""
    reward: float
    advantage: float = 0.0
    advantages: NDArray[np.float32] | None = None
    """`[T]` the environment's own per-step advantage; NaN elsewhere until `with_advantage`."""
    versions: NDArray[np.int32] | None = None
    """`[T]` policy version that sampled the token, `UNKNOWN_VERSION` where not sampled or unknown."""
    temperature: float = 1.0
    example_id: Any = None
    group_id: str = ""
    rollout_id: str = ""
    env_id: str = ""
    is_truncated: bool = False
    """Whether a length limit cut the rollout or this sequence."""
    spans: tuple[Span, ...] = ()
    """Origins of the sampled tokens, in order."""
    routed_experts: Any = None
    """As the endpoint returned them with the branch's last step, `[T', layers, experts]`."""
    multi_modal_data: Any = None
    """As the endpoint returned it with the branch's last step."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def trained_count(self) -> int:
        """Number of tokens that are trained on."""
        return int(self.mask.sum())

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version among the trained tokens; None if unknown."""
        if self.versions is None:
            return None
        known = self.versions[self.mask & (self.versions != UNKNOWN_VERSION)]
        return int(known.min()) if len(known) else None

    def token_advantages(self) -> NDArray[np.float32]:
        """`[T]` the advantage of every token, 0.0 where it is not trained."""
        every = np.full(len(self), self.advantage, np.float32)
        if self.advantages is not None:
            every = np.where(np.isnan(self.advantages), every, self.advantages)
        return np.where(self.mask, every, np.float32(0.0))

    def with_advantage(self, advantage: float) -> TokenSample:
        """Return the sample with another advantage. The environment's own per-step advantages stay."""
        return replace(self, advantage=float(advantage))

    def masked_before(self, version: int) -> TokenSample:
        """Return the sample with tokens that a policy older than `version` sampled masked out.

        Tokens of unknown version stay.
        """
        if self.versions is None:
            return self
        keep = (self.versions >= version) | (self.versions == UNKNOWN_VERSION)
        return self._masked(self.mask & keep)

    def cut(self, max_length: int) -> TokenSample:
        """Return the first `max_length` tokens, marked as truncated if any are cut off."""
        if len(self) <= max_length:
            return self
        streams: dict[str, Any] = {
            name: None if (stream := getattr(self, name)) is None else stream[:max_length]
            for name in ("token_ids", "mask", "logprobs", "advantages", "versions")
        }
        spans = [Span(s.step, s.start, min(s.end, max_length)) for s in self.spans]
        return replace(
            self,
            **streams,
            prompt_len=min(self.prompt_len, max_length),
            is_truncated=True,
            spans=tuple(span for span in spans if span.start < span.end),
        )

    def _masked(self, mask: NDArray[np.bool_]) -> TokenSample:
        return replace(self, mask=mask, logprobs=np.where(mask, self.logprobs, np.float32(0.0)))


# ------------------------------------------------------------------------------------------------ building


def failure_of(output: Mapping[str, Any]) -> str | None:
    """Return why a rollout must not be trained on: it failed, or a reward function raised. None if it may be."""
    error = output.get("error")
    if error is not None:
        name = error.get("error") if isinstance(error, Mapping) else type(error).__name__
        return f"the rollout failed: {name}"
    errors = output.get("reward_errors") or output.get("errors")
    if errors:
        return f"a reward function failed: {errors[0]}"
    reward = output.get("reward")
    if reward is None or not math.isfinite(reward):
        return f"its reward is {reward}"
    return None


def reward_of(output: Mapping[str, Any]) -> float:
    """Return the reward of a rollout; NaN when it is missing or the rollout crashed."""
    reward = output.get("reward")
    return math.nan if reward is None or is_void(output) else float(reward)


def rollout_advantage(output: Mapping[str, Any]) -> float | None:
    """Return the advantage of a rollout as a whole; None if there is none.

    Scoring copies it into steps without an advantage. If the output lacks it, the common value of all steps is used.
    """
    if (advantage := output.get("advantage")) is not None:
        return float(advantage)
    steps = output.get("trajectory") or ()
    given = {step.get("advantage") for step in steps if step.get("tokens") is not None}
    return float(value) if len(given) == 1 and (value := given.pop()) is not None else None


def samples_of(
    output: Mapping[str, Any],
    *,
    on_drift: OnDrift = "fork",
    group_id: str = "",
    env_id: str = "",
) -> list[TokenSample]:
    """Return the samples of a finished rollout: a `State`, or a `RolloutOutput` with the state column `trajectory`.

    Empty for a rollout that failed or that sampled nothing. `on_drift` selects what happens when a turn does not
    continue the tokens before it: "fork" returns a sample per branch; "last" returns only the last turn's context,
    for trainers that take one sequence per rollout (sampled tokens outside it are lost); "error" raises SampleError.
    Raise SampleError when token ids or log-probabilities are missing.
    """
    if failure_of(output) is not None:
        return []
    trajectory = output.get("trajectory")
    if trajectory is None:
        raise SampleError(
            "The rollout has no trajectory. Request it: state_columns=['trajectory', 'trajectory_id']."
        )
    steps = stored_steps([step.get("tokens") for step in trajectory])
    _check_complete(steps)
    turns = [
        _Turn(index, tokens, trajectory[index])
        for index, tokens in enumerate(steps)
        if tokens is not None
    ]
    branches = _branches(turns, on_drift)
    advantage = rollout_advantage(output)
    fields = {
        "reward": float(output["reward"]),
        "advantage": advantage or 0.0,
        "temperature": _temperature(output),
        "example_id": output.get("example_id"),
        "group_id": group_id,
        "rollout_id": str(output.get("trajectory_id") or _first_id(trajectory)),
        "env_id": env_id,
    }
    truncated = bool(output.get("is_truncated"))
    return [
        sample
        for branch in branches
        if (sample := _sample(branch, fields, truncated, advantage)).trained_count
    ]


class _Turn(NamedTuple):
    """One step with stored tokens."""

    number: int
    tokens: StepTokens
    step: Mapping[str, Any]

    @property
    def is_trainable(self) -> bool:
        extras = self.step.get("extras")
        return not (isinstance(extras, Mapping) and extras.get("trainable") is False)


class _Branch(NamedTuple):
    """Tokens of one sequence, and the turns whose completions are trained in it, each up to a length."""

    last: _Turn
    own: list[tuple[_Turn, int]]


def _check_complete(steps: Sequence[StepTokens | None]) -> None:
    for index, tokens in enumerate(steps):
        if tokens is None:
            raise SampleError(
                f"Step {index} has no token ids. Sample with client_type='openai_chat_completions_token' from an "
                "endpoint that returns token ids (vLLM, or the embedded one)."
            )
        if tokens.first_logprob < 0:
            raise SampleError(
                f"Step {index} has no log-probabilities. Sample with logprobs=True in the sampling arguments."
            )


def _branches(turns: Sequence[_Turn], on_drift: OnDrift) -> list[_Branch]:
    by_chain: dict[int, list[_Turn]] = {}
    for turn in turns:
        by_chain.setdefault(id(turn.tokens.chain), []).append(turn)
    if len(by_chain) > 1 and on_drift == "error":
        first = next(own[0] for own in list(by_chain.values())[1:])
        raise SampleError(
            f"Step {first.number} does not continue the tokens before it from token {first.tokens.chain.shared} on. "
            "Use on_drift='fork' for a sample per branch, or 'last' for the last context only."
        )
    if on_drift == "last" and turns:
        return [_last_branch(turns)]
    return [
        _Branch(max(own, key=lambda turn: turn.tokens.length), [(t, t.tokens.length) for t in own])
        for own in by_chain.values()
    ]


def _last_branch(turns: Sequence[_Turn]) -> _Branch:
    """Return the last turn's context, with every completion in it, on any chain."""
    last = turns[-1]
    reach: dict[int, int] = {}
    chain: Chain | None = last.tokens.chain
    length = last.tokens.length
    while chain is not None:
        reach[id(chain)] = length
        chain, length = chain.parent, min(length, chain.shared)
    own = [
        (turn, min(turn.tokens.length, reach[id(turn.tokens.chain)]))
        for turn in turns
        if reach.get(id(turn.tokens.chain), 0) > turn.tokens.prompt_length
    ]
    return _Branch(last, own)


def _sample(
    branch: _Branch, fields: Mapping[str, Any], truncated: bool, of_rollout: float | None
) -> TokenSample:
    last = branch.last.tokens
    count = last.length
    mask = np.zeros(count, bool)
    logprobs = np.zeros(count, np.float32)
    versions = np.full(count, UNKNOWN_VERSION, np.int32)
    advantages: NDArray[np.float32] | None = None
    spans: list[Span] = []
    for turn, end in sorted(branch.own, key=lambda own: own[0].tokens.prompt_length):
        tokens, start = turn.tokens, turn.tokens.prompt_length
        truncated = truncated or bool(turn.step.get("is_truncated"))
        if start == end or not turn.is_trainable:
            continue
        own = slice(start, end)
        packed = tokens.packed_mask
        mask[own] = True if packed is None else np.frombuffer(packed, bool)[: end - start]
        logprobs[own] = np.frombuffer(tokens.packed_logprobs, np.float32)[: end - start]
        spans.append(Span(turn.number, start, end))
        if (known := tokens.versions) is not None:
            versions[own] = known if isinstance(known, int) else known[: end - start]
        # A step advantage equal to the rollout's is not specific to the step, and an estimator may replace it.
        if (advantage := turn.step.get("advantage")) is not None and advantage != of_rollout:
            if advantages is None:
                advantages = np.full(count, np.nan, np.float32)
            advantages[own] = advantage
    return TokenSample(
        token_ids=np.frombuffer(last.packed_ids, np.int32),
        mask=mask,
        logprobs=np.where(mask, logprobs, np.float32(0.0)),
        prompt_len=spans[0].start if spans else count,
        advantages=advantages,
        versions=np.where(mask, versions, UNKNOWN_VERSION).astype(np.int32)
        if (versions != UNKNOWN_VERSION).any()
        else None,
        is_truncated=truncated,
        spans=tuple(spans),
        routed_experts=last["routed_experts"],
        multi_modal_data=last.get("multi_modal_data"),
        **fields,
    )


def _temperature(output: Mapping[str, Any]) -> float:
    temperature = (output.get("sampling_args") or {}).get("temperature")
    return 1.0 if temperature is None else float(temperature)


def _first_id(trajectory: Sequence[Mapping[str, Any]]) -> str:
    return str(trajectory[0].get("trajectory_id") or "") if trajectory else ""

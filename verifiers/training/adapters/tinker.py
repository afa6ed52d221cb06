"""Rollouts as tinker-cookbook's trajectory groups, and its sampling client as a model client.

    client = tinker_client(sampling_client, tokenizer)
    [states] = await play_groups(env, [[row] * 8], client, "tinker", {"max_tokens": 512})
    group = trajectory_group(states)            # the result of an EnvGroupBuilder

Recipes that call `env.run_group(group_inputs, client, model, gen_sampling_args=…, gen_sem=…, score_sem=…)` with their
own `AsyncOpenAI` receive the same states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.training.adapters import trainer_module
from verifiers.training.adapters.engine_client import EngineClient, Sampled
from verifiers.training.samples import SampleError, failure_of, samples_of

INSTALL = "pip install tinker tinker-cookbook"
MAX_TOKENS = 1024
"""Maximum number of tokens per response if the sampling arguments have none."""


def tinker_client(sampling_client: Any, tokenizer: Any) -> EngineClient:
    """Return a client for `tinker.SamplingClient`. Later turns continue the sampled ids; nothing is tokenised again."""
    tinker = trainer_module("tinker", "ModelInput", "SamplingParams", install=INSTALL)

    async def generate(ids: list[int], sampling_args: dict[str, Any], _: str) -> Sampled:
        stop = sampling_args.get("stop")
        result = await sampling_client.sample_async(
            prompt=tinker.ModelInput.from_ints(ids),
            num_samples=1,
            sampling_params=tinker.SamplingParams(
                temperature=float(sampling_args.get("temperature", 1.0)),
                max_tokens=_max_tokens(sampling_args),
                top_p=float(sampling_args.get("top_p", 1.0)),
                top_k=int(sampling_args.get("top_k", -1)),
                stop=[tokenizer.eos_token_id] if stop is None else stop,
            ),
        )
        [sequence] = result.sequences
        return Sampled(sequence.tokens, sequence.logprobs or [])

    return EngineClient(generate, tokenizer)


def _max_tokens(sampling_args: Mapping[str, Any]) -> int:
    given = sampling_args.get("max_tokens") or sampling_args.get("max_completion_tokens")
    return int(given or MAX_TOKENS)


def trajectory_group(outputs: Sequence[Mapping[str, Any]]) -> Any:
    """Return the `TrajectoryGroup` of one example's rollouts, without the failed ones.

    Every turn is a transition; the cookbook merges turns that continue each other. Raise SampleError if no rollout is
    left.
    """
    types = trainer_module(
        "tinker_cookbook.rl.types", "Trajectory", "TrajectoryGroup", "Transition", install=INSTALL
    )
    # Not `if output["error"]`: a rollout whose reward function raised must not be trained on either.
    healthy = [output for output in outputs if samples_of(output)]
    if not healthy:
        reasons = {failure_of(output) or "it sampled no tokens" for output in outputs}
        raise SampleError(f"None of {len(outputs)} rollouts can be trained on: {sorted(reasons)}.")
    return types.TrajectoryGroup(
        [_trajectory(types, output) for output in healthy],
        [float(output["reward"]) for output in healthy],
        [dict(output.get("metrics") or {}) for output in healthy],
    )


def _trajectory(types: Any, output: Mapping[str, Any]) -> Any:
    tinker = trainer_module("tinker", "ModelInput", install=INSTALL)
    completers = trainer_module("tinker_cookbook.completers", "TokensWithLogprobs", install=INSTALL)
    # Versions of the cookbook before 0.5 have no stop reason.
    tells_why = "stop_reason" in completers.TokensWithLogprobs.__dataclass_fields__
    turns = [
        (step["tokens"], {"stop_reason": "length" if step.get("is_truncated") else "stop"})
        for step in output["trajectory"]
        if (step.get("extras") or {}).get("trainable") is not False
        and step["tokens"]["completion_ids"]
    ]
    return types.Trajectory(
        transitions=[
            types.Transition(
                ob=tinker.ModelInput.from_ints(tokens["prompt_ids"]),
                ac=completers.TokensWithLogprobs(
                    tokens=tokens["completion_ids"],
                    maybe_logprobs=tokens["completion_logprobs"],
                    **(end if tells_why else {}),
                ),
                reward=0.0,
                episode_done=number == len(turns),
            )
            for number, (tokens, end) in enumerate(turns, start=1)
        ],
        final_ob=tinker.ModelInput.empty(),
    )

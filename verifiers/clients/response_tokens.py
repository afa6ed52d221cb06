"""Token ids, log-probabilities and expert routing in an answer, as vLLM and its kin send them.

prompt_token_ids                 [P]   of the answer, or of the choice
choices[0].token_ids             [C]
choices[0].logprobs.content[i].logprob, or choices[0].logprobs.token_logprobs[i]
choices[0].routed_experts        {"data": base85, "shape": [T, layers, experts]}, optional
choices[0].token_versions        [C]   policy version that sampled each token, optional (the embedded endpoint)
"""

from __future__ import annotations

import base64
from math import prod
from operator import itemgetter
from typing import Any, Literal

from verifiers.errors import InvalidModelResponseError
from verifiers.packed_tokens import PackedTokens, packed_ids

_LOGPROB = itemgetter("logprob")


def parse_tokens(payload: dict[str, Any], choice: dict[str, Any]) -> PackedTokens | None:
    """The tokens of one choice; None when the answer lacks any of the three lists.

    Raises InvalidModelResponseError when they contradict each other: training on such a sample would teach nonsense.
    """
    completion_ids = choice.get("token_ids")
    if not completion_ids:
        return None
    prompt_ids = payload.get("prompt_token_ids") or choice.get("prompt_token_ids")
    logprobs = _logprobs(choice.get("logprobs"))
    if not prompt_ids or logprobs is None:
        return None
    if len(logprobs) != len(completion_ids):
        raise InvalidModelResponseError(
            f"The answer has {len(completion_ids)} token ids but {len(logprobs)} log-probabilities."
        )
    try:
        sum(logprobs)  # the fastest way to see that all of them are numbers
    except TypeError as error:
        raise InvalidModelResponseError(
            f"The answer has a token whose log-probability is no number: {error}"
        ) from error
    others: dict[str, Any] = {}
    if (routed_experts := choice.get("routed_experts")) is not None:
        others["routed_experts"] = parse_routed_experts(routed_experts)
    if (versions := choice.get("token_versions")) is not None:
        others["versions"] = versions
    try:
        return PackedTokens.make(packed_ids(prompt_ids), completion_ids, logprobs, **others)
    except ValueError as error:
        raise InvalidModelResponseError(
            f"The answer's prompt is not made of token ids. {error}"
        ) from error


def _logprobs(logprobs: Any) -> list[float] | None:
    if not isinstance(logprobs, dict):
        return None
    content = logprobs.get("content")
    if content is not None:
        return list(map(_LOGPROB, content))
    return logprobs.get("token_logprobs")


def parse_routed_experts(value: Any) -> list[list[list[int]]]:
    """Expert indices `[T, layers, experts per token]` from base85 of little-endian integers, or as they are.

    The width (1, 2 or 4 bytes) follows from the size and the shape.
    """
    if not isinstance(value, dict):
        return value
    try:
        data = base64.b85decode(value["data"])
        shape = [int(size) for size in value["shape"]]
        width = len(data) // max(1, prod(shape))
        kinds: dict[int, Literal["B", "H", "i"]] = {1: "B", 2: "H", 4: "i"}
        nested: Any = (
            memoryview(data).cast(kinds[width], shape).tolist()
        )  # typed as if it had one dimension
        return nested
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModelResponseError(
            f"routed_experts is not base85 data of the shape it states: {type(error).__name__}: {error}"
        ) from error

"""Sampling arguments as authors write them, split into what goes where in a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from verifiers.errors import BadRequestError


class Sampling(NamedTuple):
    """One request's arguments beside prompt, model and tools."""

    body: dict[str, Any]
    """Keys of the JSON body; `extra_body` is merged in and wins."""
    headers: dict[str, str] | None
    timeout_s: float | None


def split(sampling_args: Mapping[str, Any] | None, *, length_key: str) -> Sampling:
    """Drop what is None, name the length limit as the API wants it, and take out what is not for the body.

    `length_key`: the API's name for the limit of the completion, which authors write as `max_tokens` or
    `max_completion_tokens`. Unknown keys pass: endpoints know more options than any list here.
    """
    body: dict[str, Any] = {}
    headers: dict[str, str] | None = None
    timeout_s: float | None = None
    extra_body: Mapping[str, Any] | None = None
    for key, value in (sampling_args or {}).items():
        if value is None:
            continue
        if key == "extra_body":
            extra_body = value
        elif key == "extra_headers":
            headers = dict(value)
        elif key == "timeout":
            timeout_s = float(value)
        elif key == "max_tokens" or key == "max_completion_tokens":
            if key == length_key or length_key not in body:
                body[length_key] = value
        elif key == "stream" or key == "stream_options":
            if value is True:
                raise BadRequestError(
                    "stream=True has no use here: a rollout waits for the whole answer."
                )
        else:
            body[key] = value
    if extra_body:
        body.update(extra_body)
    return Sampling(body, headers, timeout_s)

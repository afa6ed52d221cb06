"""Chat completions for training: responses contain token ids, and later turns send those ids back.

Tokenising a conversation again does not always give the sampled ids, but a trainer needs each turn's prompt to begin
with exactly the ids of the earlier turns. So, when the conversation extends the last step of the trajectory, the
request carries ids instead of text:

    ids of the last step (prompt + completion)  +  ids of the messages that the environment added since

The second part comes from the server's `/tokenize`: it renders a placeholder response with and without the new
messages, and the difference belongs to them. All other cases (an edited history, images, a truncated response, a
server without these routes) are sent as an ordinary chat request.

A response repeats the whole prompt as `prompt_token_ids`, which grows with every turn. Decoding twenty thousand ids
takes a millisecond; comparing their text with the expected text takes a microsecond. So the ids are cut out of the
response's text, and only unexpected ids are decoded.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import orjson
from pydantic import BaseModel

from verifiers.clients.failures import NoSuchRoute
from verifiers.clients.openai_chat_completions_client import OpenAIChatCompletionsClient
from verifiers.clients.payloads import encoded, prompt_places, split
from verifiers.dialects.chat_completions import native_messages
from verifiers.errors import BadRequestError, EndpointUnavailable, InvalidModelResponseError
from verifiers.tokens.packed import packed_ids
from verifiers.types import State

_KEY = b'"prompt_token_ids":'


class KnownPrompt:
    """The ids that a response's prompt consists of, or begins with."""

    __slots__ = ("ids", "text")

    def __init__(self, ids: array[int]) -> None:
        import numpy as np

        self.ids = ids
        self.text = orjson.dumps(np.frombuffer(ids, np.int32), option=orjson.OPT_SERIALIZE_NUMPY)[
            1:-1
        ]
        """As JSON, without the brackets."""

    def body(self, others: Mapping[str, Any]) -> bytes:
        """Return a request body of these keys and `tokens`, the ids."""
        return b'%b,"tokens":[%b]}' % (encoded(others)[:-1], self.text)

    def decode(self, body: bytes) -> Any:
        """Decode the JSON of a response, with its `prompt_token_ids` as an int32 `array`.

        Raise `orjson.JSONDecodeError` for invalid JSON.
        """
        begin = body.rfind(_KEY)
        start = body.find(b"[", begin) if begin >= 0 else -1
        end = body.find(b"]", start) if start >= 0 else -1
        if end < 0 or body[begin + len(_KEY) : start].strip():
            return orjson.loads(body)
        ids = self._ids(body[start + 1 : end])
        if ids is None:
            return orjson.loads(body)
        payload = orjson.loads(b"%bnull%b" % (body[:start], body[end + 1 :]))
        for place in prompt_places(payload):
            if place.get("prompt_token_ids", ids) is None:
                place["prompt_token_ids"] = ids
                return payload
        return orjson.loads(body)

    def _ids(self, text: bytes) -> array[int] | None:
        """Return the ids inside a list's text; None unless it is a list of int32."""
        if b" " in text:
            text = text.replace(b" ", b"")
        if text == self.text:
            return self.ids
        known = len(self.text)
        ids = array("i")
        if text.startswith(self.text) and text[known : known + 1] == b",":
            ids.extend(self.ids)
            text = text[known + 1 :]
        try:
            ids.extend(orjson.loads(b"[%b]" % text))
        except (orjson.JSONDecodeError, TypeError, OverflowError):
            return None
        return ids


STAND_IN = "x"
MOST_REMEMBERED_STAND_INS = 256


class TokenizeResponse(BaseModel):
    """The result of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class OpenAIChatCompletionsTokenClient(OpenAIChatCompletionsClient):
    """Chat completions that return token ids, and send them back from the second turn on."""

    tokens_path: ClassVar[str] = "chat/completions/tokens"
    tokenize_path: ClassVar[str] = "../tokenize"

    def __init__(self, client_or_config: Any) -> None:
        super().__init__(client_or_config)
        self._has_token_routes = True
        self._alone_ids: dict[bytes, list[int]] = {}
        """Ids of the placeholder response by itself: equal in every turn of all rollouts with the same tools."""

    @property
    def token_client(self) -> Any:
        """Return an `AsyncOpenAI` whose base URL is the server's root, where `/tokenize` is."""
        root = str(self.client.base_url).rstrip("/").removesuffix("/v1")
        return self.client.with_options(base_url=root)

    async def _ask(
        self,
        prompt: Any,
        model: str,
        sampling_args: Mapping[str, Any] | None,
        tools: list[Any] | None,
        extra: dict[str, Any],
        state: Any,
        headers: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        sampling_args = with_token_ids(sampling_args)
        found: tuple[Mapping[str, Any], list[Any]] | None = None
        prompt_ids: Sequence[int] | None = None
        if state is not None and (trajectory := state.get("trajectory")):
            found = continued_step(trajectory, prompt)
            if not self._has_token_routes:
                pass
            elif type(self).get_prompt_ids is not OpenAIChatCompletionsTokenClient.get_prompt_ids:
                prompt_ids = await self.get_prompt_ids(state, prompt, tools)  # a subclass decides
            elif found is not None:
                prompt_ids = await self._continued(*found, tools, state.get("model") or "")
        sampling = split(sampling_args, length_key=self.dialect.length_key)
        body = self.request_body(prompt, model, sampling, tools, extra)
        if prompt_ids is not None:
            known = KnownPrompt(packed_ids(prompt_ids))
            try:
                return await self._post(
                    self.tokens_path, known.body(body), sampling, state, headers, known.decode
                )
            except NoSuchRoute as error:
                self._stop_using_token_routes(error)
        # The prompt may still begin with the same ids, although the server tokenises it again.
        decode = KnownPrompt(_sampled_ids(found[0])).decode if found is not None else orjson.loads
        return await self._post(self.dialect.path, encoded(body), sampling, state, headers, decode)

    async def _call_sdk(
        self,
        prompt_arguments: dict[str, Any],
        sampling_args: Mapping[str, Any] | None,
        headers: Any,
    ) -> Any:
        return await super()._call_sdk(prompt_arguments, with_token_ids(sampling_args), headers)

    async def get_prompt_ids(
        self, state: State, prompt_messages: Sequence[Any], oai_tools: list[Any] | None
    ) -> list[int] | None:
        """Return the ids of the prompt as a continuation of the trajectory's last step; None if it is not one."""
        found = continued_step(state.get("trajectory") or [], prompt_messages)
        if found is None:
            return None
        ids = await self._continued(*found, oai_tools, state.get("model") or "")
        return None if ids is None else ids.tolist()

    async def _continued(
        self,
        step: Mapping[str, Any],
        added: list[Any],
        tools: list[Any] | None,
        model: str,
    ) -> array[int] | None:
        """Return the ids of a step and of the messages added since; None when the server cannot provide them."""
        stand_in = _stand_in(step, added)
        try:
            with_added = await self.tokenize([stand_in, *added], tools, model)
            alone = await self._tokenize_alone(stand_in, tools, model)
        except NoSuchRoute as error:
            self._stop_using_token_routes(error)
            return None
        except (BadRequestError, EndpointUnavailable, InvalidModelResponseError) as error:
            self.logger.warning("This turn is sent as text, not as tokens: %s", error)
            return None
        ids = _sampled_ids(step)
        more = continuation(ids[-1:].tolist(), alone, with_added)
        if more is None:
            return None
        ids.extend(more)
        return ids

    async def _tokenize_alone(
        self, stand_in: dict[str, Any], tools: list[Any] | None, model: str
    ) -> list[int]:
        key = encoded({"stand_in": stand_in, "tools": tools, "model": model})
        ids = self._alone_ids.get(key)
        if ids is None:
            ids = await self.tokenize(
                [stand_in], tools, model, extra_kwargs={"add_generation_prompt": False}
            )
            if "tool_calls" not in stand_in and len(self._alone_ids) < MOST_REMEMBERED_STAND_INS:
                self._alone_ids[key] = ids
        return ids

    async def tokenize(
        self,
        messages: str | Sequence[Any],
        tools: list[Any] | None,
        model: str,
        extra_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Return the server's ids for a text, or for messages in its chat template."""
        what: dict[str, Any] = (
            {"prompt": messages}
            if isinstance(messages, str)
            else {"messages": native_messages(messages), "tools": tools}
        )
        body = encoded({"model": model, **what, **(extra_kwargs or {}), **kwargs})
        answer = await self._post(self.tokenize_path, body, None, None, None)
        ids = answer.get("tokens")
        if not isinstance(ids, list):
            raise InvalidModelResponseError(f"/tokenize answered without tokens: {answer!r:.200}")
        return ids

    def _stop_using_token_routes(self, error: Exception) -> None:
        self._has_token_routes = False
        self.logger.warning(
            "The endpoint does not accept tokens. Turns are sent as text and may not continue token by token: %s",
            error,
        )


def with_token_ids(sampling_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return sampling arguments that request token ids and log-probabilities."""
    given = dict(sampling_args or {})
    extra_body = {**(given.get("extra_body") or {}), "return_token_ids": True}
    return {**given, "logprobs": True, "extra_body": extra_body}


def continued_step(
    trajectory: Sequence[Mapping[str, Any]], prompt: Sequence[Any]
) -> tuple[Mapping[str, Any], list[Any]] | None:
    """Return the latest step that the prompt continues, and the messages added since.

    Return None if there is none, or if ids would not be exact: no token ids, a truncated response (its end-of-turn
    token is missing), images or audio, or added messages that are not user or tool messages.
    """
    for step in reversed(trajectory):
        tokens = step.get("tokens")
        if not tokens:
            continue
        before = native_messages([*step["prompt"], *step["completion"]])
        if len(before) >= len(prompt) or list(prompt[: len(before)]) != before:
            continue
        added = list(prompt[len(before) :])
        is_exact = (
            not step.get("is_truncated")
            and not tokens.get("is_truncated")
            and all(message["role"] in ("user", "tool") for message in added)
            and not any(_has_media(message) for message in prompt)
        )
        return (step, added) if is_exact else None
    return None


def continued_ids(
    sampled_ids: list[int], alone: list[int], with_added: list[int]
) -> list[int] | None:
    """Return sampled ids, then the template's text after a response, then the new messages; see `continuation`."""
    more = continuation(sampled_ids[-1:], alone, with_added)
    return None if more is None else [*sampled_ids, *more]


def continuation(last_ids: list[int], alone: list[int], with_added: list[int]) -> list[int] | None:
    """Return the ids that follow sampled ids ending with `last_ids` (one id).

    `alone`: ids of a placeholder response; `with_added`: of the same response and the new messages. After the last
    sampled id (the end-of-turn token) the template may add more (a line break) that the model never sampled: the part
    of `alone` after that id. Return None when `with_added` does not begin with `alone`.
    """
    if not last_ids or with_added[: len(alone)] != alone:
        return None
    start = len(alone)
    for index in range(len(alone) - 1, -1, -1):
        if alone[index] == last_ids[0]:
            start = index + 1
            break
    return with_added[start:]


def _sampled_ids(step: Mapping[str, Any]) -> array[int]:
    """Return prompt and completion of a step; the array belongs to the caller."""
    tokens = step["tokens"]
    if (packed := getattr(tokens, "packed_ids", None)) is not None:
        return array("i", packed)
    ids = array("i", packed_ids(tokens["prompt_ids"]))
    ids.extend(tokens["completion_ids"])
    return ids


def _stand_in(step: Mapping[str, Any], added: Sequence[Any]) -> dict[str, Any]:
    """Return a short assistant message. Before tool results it must hold their calls, or the template refuses it."""
    if added[0]["role"] == "tool":
        answer = native_messages(step["completion"])[-1]
        return {"role": "assistant", "tool_calls": answer.get("tool_calls") or []}
    return {"role": "assistant", "content": STAND_IN}


def _has_media(message: Any) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") != "text" for part in content)

"""Token ids in the JSON of requests and answers: a prompt that is known already is neither decoded nor rendered anew.

An answer repeats the whole prompt as `prompt_token_ids`, longer with every turn. Decoding twenty thousand ids takes a
millisecond; comparing their text with what we expect takes a microsecond. So the ids are cut out of the text of an
answer, and only what is not as expected is decoded.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

import orjson

from verifiers.clients.answers import prompt_places
from verifiers.clients.request_body import encoded

_KEY = b'"prompt_token_ids":'


class KnownPrompt:
    """Ids that an answer's prompt consists of, or begins with."""

    __slots__ = ("ids", "text")

    def __init__(self, ids: array[int]) -> None:
        import numpy as np

        self.ids = ids
        self.text = orjson.dumps(np.frombuffer(ids, np.int32), option=orjson.OPT_SERIALIZE_NUMPY)[
            1:-1
        ]
        """In JSON, without the brackets."""

    def body(self, others: Mapping[str, Any]) -> bytes:
        """A request body of these keys and `tokens`, the ids."""
        return b'%b,"tokens":[%b]}' % (encoded(others)[:-1], self.text)

    def decode(self, body: bytes) -> Any:
        """The JSON of an answer, its `prompt_token_ids` an int32 `array`.

        Raises `orjson.JSONDecodeError`.
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
        """The ids of a list's inside; None when it is no list of int32."""
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

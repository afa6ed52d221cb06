"""Convert text to token ids and back. One token per UTF-8 byte: every string has ids, and every id has bytes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

SPECIAL_TOKENS = (
    "<|pad|>",
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
    "<|reserved|>",
)
"""The control tokens; the index of a token in the tuple is its id."""

PAD, END_OF_TEXT, SYSTEM, USER, ASSISTANT, TOOL, END, _RESERVED = range(8)
BYTE_OFFSET = len(SPECIAL_TOKENS)
"""Byte b has the id b + BYTE_OFFSET."""
VOCAB_SIZE = BYTE_OFFSET + 256

STOP_TOKENS = (END, END_OF_TEXT)
"""A generation ends at these tokens unless the request sets `ignore_eos`."""

_SPECIAL_PATTERN = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")
_SPECIAL_IDS = {token: index for index, token in enumerate(SPECIAL_TOKENS)}


def encode(text: str, *, parse_special: bool = False) -> list[int]:
    """Return the ids of `text`.

    With `parse_special`, control tokens written in the text (`<|user|>`, ...) become their single id, which is how
    servers treat a prompt string. Chat messages are encoded without it, so that a user cannot write the end of the
    user's turn. Lone surrogates, which have no UTF-8 bytes, become "?".
    """
    if parse_special and "<|" in text:
        ids: list[int] = []
        for piece in _SPECIAL_PATTERN.split(text):
            special = _SPECIAL_IDS.get(piece)
            if special is None:
                ids += encode(piece)
            else:
                ids.append(special)
        return ids
    return [byte + BYTE_OFFSET for byte in text.encode("utf-8", errors="replace")]


def token_bytes(token_id: int) -> bytes:
    """Return the bytes of one token; for a control token, the bytes of its name."""
    if token_id >= BYTE_OFFSET:
        return bytes((token_id - BYTE_OFFSET,))
    return SPECIAL_TOKENS[token_id].encode()


def token_text(token_id: int) -> str:
    """Return one token as a string; a byte that is not a complete character is written `<0xE2>`."""
    if token_id < BYTE_OFFSET:
        return SPECIAL_TOKENS[token_id]
    byte = token_id - BYTE_OFFSET
    return chr(byte) if byte < 128 else f"<0x{byte:02X}>"


def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
    """Return the text of `ids`. Bytes that are not valid UTF-8 become U+FFFD."""
    if skip_special:
        raw = bytes([i - BYTE_OFFSET for i in ids if i >= BYTE_OFFSET])
    else:
        raw = b"".join(map(token_bytes, ids))
    return raw.decode("utf-8", errors="replace")


class StreamDecoder:
    """Decode token by token, holding back the bytes of an incomplete character."""

    def __init__(self, *, skip_special: bool = True) -> None:
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """Return the text that this token completes."""
        if token_id < BYTE_OFFSET:
            return "" if self._skip_special else self.finish() + SPECIAL_TOKENS[token_id]
        return self._decoder.decode(bytes((token_id - BYTE_OFFSET,)))

    def finish(self) -> str:
        """Return the remaining text: U+FFFD for an incomplete character, else an empty string."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def is_valid_ids(ids: Sequence[int]) -> bool:
    """Whether all are ids of this vocabulary."""
    return all(0 <= i < VOCAB_SIZE for i in ids)


class TextStream:
    """Turn tokens into text that is final, and detect stop strings.

    Text that may be the beginning of a stop string is held back until that is decided. The returned pieces always
    join to exactly the final text.
    """

    def __init__(
        self, stop: Sequence[str] = (), *, include_stop: bool = False, skip_special: bool = True
    ) -> None:
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stop), default=0)
        self._decoder = StreamDecoder(skip_special=skip_special)
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that was found."""

    def feed(self, token_id: int) -> str:
        """Return the text that is final after this token."""
        return self._take(self._decoder.feed(token_id))

    def finish(self) -> str:
        """Return the remaining text after the last token."""
        if self.stopped_by is not None:
            return ""
        certain = self._take(self._decoder.finish())
        rest, self._held = self._held, ""
        return certain + rest

    def _take(self, piece: str) -> str:
        if not self._stop:
            return piece
        if self.stopped_by is not None:
            return ""
        text = self._held + piece
        matches = [(text.find(stop), -len(stop), stop) for stop in self._stop if stop in text]
        if matches:
            # Take the earliest match, and the longest of several that begin at the same position.
            begin, _, self.stopped_by = min(matches)
            self._held = ""
            return text[: begin + len(self.stopped_by)] if self._include_stop else text[:begin]
        kept = self._undecided(text)
        self._held = text[len(text) - kept :] if kept else ""
        return text[: len(text) - kept]

    def _undecided(self, text: str) -> int:
        # Returns the length of the longest suffix of the text that is a prefix of a stop string.
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0

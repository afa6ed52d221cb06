"""Text to token ids and back: one token a UTF-8 byte, so every string has ids and every id has bytes."""

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
"""The control tokens; a token's place in the tuple is its id."""

PAD, END_OF_TEXT, SYSTEM, USER, ASSISTANT, TOOL, END, _RESERVED = range(8)
BYTE_OFFSET = len(SPECIAL_TOKENS)
"""The byte b has the id b + BYTE_OFFSET."""
VOCAB_SIZE = BYTE_OFFSET + 256

STOP_TOKENS = (END, END_OF_TEXT)
"""A request ends at these tokens unless it sets `ignore_eos`."""

_SPECIAL_PATTERN = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")
_SPECIAL_IDS = {token: index for index, token in enumerate(SPECIAL_TOKENS)}


def encode(text: str, *, parse_special: bool = False) -> list[int]:
    """The ids of `text`.

    With `parse_special`, the control tokens written in the text (`<|user|>`, ...) become their one id, which is what
    servers do for a prompt string. The contents of chat messages are encoded without it, so a user
    cannot write the end of their own turn. Lone surrogates, which have no UTF-8 bytes, become "?".
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
    """The bytes one token stands for; a control token stands for its name."""
    if token_id >= BYTE_OFFSET:
        return bytes((token_id - BYTE_OFFSET,))
    return SPECIAL_TOKENS[token_id].encode()


def token_text(token_id: int) -> str:
    """One token as a string; a byte that is no character of its own is written `<0xE2>`."""
    if token_id < BYTE_OFFSET:
        return SPECIAL_TOKENS[token_id]
    byte = token_id - BYTE_OFFSET
    return chr(byte) if byte < 128 else f"<0x{byte:02X}>"


def decode(ids: Sequence[int], *, skip_special: bool = True) -> str:
    """The text of `ids`; bytes that are no valid UTF-8 become U+FFFD."""
    if skip_special:
        raw = bytes([i - BYTE_OFFSET for i in ids if i >= BYTE_OFFSET])
    else:
        raw = b"".join(map(token_bytes, ids))
    return raw.decode("utf-8", errors="replace")


class StreamDecoder:
    """Decodes token by token, holding back the bytes of a character that is not complete yet."""

    def __init__(self, *, skip_special: bool = True) -> None:
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The text this token completes."""
        if token_id < BYTE_OFFSET:
            return "" if self._skip_special else self.finish() + SPECIAL_TOKENS[token_id]
        return self._decoder.decode(bytes((token_id - BYTE_OFFSET,)))

    def finish(self) -> str:
        """What is left: U+FFFD for an unfinished character, else nothing."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def is_valid_ids(ids: Sequence[int]) -> bool:
    """Whether all are ids of this vocabulary."""
    return all(0 <= i < VOCAB_SIZE for i in ids)

"""The text of one completion as its tokens come, cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from verifiers.endpoint.tokenizer import StreamDecoder


class TextStream:
    """Turns tokens into text that is safe to show, and notices stop strings.

    Text that may turn out to be the beginning of a stop string is held back until it is decided, so
    the pieces given out always join to exactly the final text.
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
        """The stop string that was met."""

    def feed(self, token_id: int) -> str:
        """The text this token makes certain."""
        return self._take(self._decoder.feed(token_id))

    def finish(self) -> str:
        """The rest, when no more tokens come."""
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
        found = [(text.find(stop), -len(stop), stop) for stop in self._stop if stop in text]
        if found:
            # The earliest, and of several beginning there the longest.
            begin, _, self.stopped_by = min(found)
            self._held = ""
            return text[: begin + len(self.stopped_by)] if self._include_stop else text[:begin]
        kept = self._undecided(text)
        self._held = text[len(text) - kept :] if kept else ""
        return text[: len(text) - kept]

    def _undecided(self, text: str) -> int:
        # Length of the longest end of the text with which some stop string begins.
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0

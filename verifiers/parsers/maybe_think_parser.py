"""`MaybeThinkParser`: what follows `</think>` when the model thinks aloud, everything when it does not."""

from __future__ import annotations

from typing import Any

from verifiers.parsers.parser import Parser


class MaybeThinkParser(Parser):
    """For models that may or may not write `<think>…</think>`."""

    def parse(self, text: str) -> Any:
        """`extract_fn` of what follows the last `</think>`, or of the whole text without one."""
        return self.extract_fn(text.rpartition("</think>")[2].strip())

"""v0 import path of `MaybeThinkParser`: the answer follows `</think>`, or is the whole text of a model without it."""

from __future__ import annotations

from typing import Any

from verifiers.parsers.parser import Parser


class MaybeThinkParser(Parser):
    """For models that may or may not write `<think>…</think>`."""

    def parse(self, text: str) -> Any:
        """Apply `extract_fn` to the text after the last `</think>`, or to the whole text without one."""
        return self.extract_fn(text.rpartition("</think>")[2].strip())

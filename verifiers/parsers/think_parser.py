"""v0 import path of `ThinkParser`: the answer follows `</think>`; a text without it has no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verifiers.parsers.parser import Parser


class ThinkParser(Parser):
    """For models that always write `<think>…</think>` themselves.

    Do not use it for models whose server removes the reasoning, or whose chat template opens `<think>` in the prompt
    and may never close it. Use `MaybeThinkParser` or `Parser` for those.
    """

    def parse(self, text: str) -> Any:
        """Apply `extract_fn` to the text after the last `</think>`; to "" when there is none."""
        _, closed, answer = text.rpartition("</think>")
        return self.extract_fn(answer.strip() if closed else "")

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return the share of the model's messages that are one `<think>…</think>` followed by an answer."""

        def follows_format(text: str) -> float:
            text = text.strip()
            right = (
                text.startswith("<think>")
                and text.count("<think>") == 1
                and text.count("</think>") == 1
                and len(text.split("</think>")[-1]) > 0
            )
            return 1.0 if right else 0.0

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            messages = self.get_assistant_messages(completion)
            if not messages:
                return follows_format(completion) if isinstance(completion, str) else 0.0
            return sum(follows_format(self.text_of(m)) for m in messages) / len(messages)

        return format_reward_func

"""`Parser`: extract the answer from a completion. Subclasses override `parse`, often also `parse_answer`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from verifiers.messages import content_text


def identity(text: str) -> str:
    """Return the text unchanged."""
    return text


class Parser:
    """Parses the text of a message. This base class only applies `extract_fn`."""

    def __init__(self, extract_fn: Callable[[str], Any] = identity) -> None:
        self.logger = logging.getLogger(f"verifiers.parsers.{type(self).__name__}")
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """Return the content of the text in the form that the environment needs."""
        return self.extract_fn(text)

    def _message_field(self, message: Any, field: str, default: Any = None) -> Any:
        if isinstance(message, Mapping):
            return message.get(field, default)
        return getattr(message, field, default)

    def _content_to_text(self, content: Any) -> str:
        return content_text(content)

    def _messages_of(self, completion: Any, role: str) -> Any:
        if isinstance(completion, str):
            return []
        return [message for message in completion if self._message_field(message, "role") == role]

    def get_assistant_messages(self, completion: Any) -> Any:
        """Return the messages of the model."""
        return self._messages_of(completion, "assistant")

    def get_system_messages(self, completion: Any) -> Any:
        """Return the system messages."""
        return self._messages_of(completion, "system")

    def get_user_messages(self, completion: Any) -> Any:
        """Return the messages of the user, or of the environment in the user's place."""
        return self._messages_of(completion, "user")

    def get_tool_messages(self, completion: Any) -> Any:
        """Return the results of tool calls."""
        return self._messages_of(completion, "tool")

    def text_of(self, message: Any) -> str:
        """Return the text of one message."""
        return content_text(self._message_field(message, "content"))

    def parse_answer(self, completion: Any) -> Any:
        """Parse the model's last message, or the completion itself if it is text. Return None without a message."""
        if isinstance(completion, str):
            return self.parse(completion)
        last = self.last_model_text(completion)
        return None if last is None else self.parse(last)

    def last_model_text(self, completion: Any) -> str | None:
        """Return the text of the model's last message; of raw text messages when there is no assistant message."""
        messages = self.get_assistant_messages(completion) or self._messages_of(completion, "text")
        return self.text_of(messages[-1]) if messages else None

    def get_format_reward_func(self) -> Callable[..., float]:
        """Return a reward function for the format. This parser accepts any format."""

        def format_reward_func(completion: Any, **kwargs: Any) -> float:
            return 1.0

        return format_reward_func

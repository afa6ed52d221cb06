"""v0 import path; see `verifiers.messages`."""

from typing import Any

from verifiers.messages import concat_messages as concat_messages
from verifiers.messages import content_text as content_text
from verifiers.messages import format_messages as format_messages
from verifiers.messages import from_raw_content_part as from_raw_content_part
from verifiers.messages import from_raw_message as from_raw_message
from verifiers.messages import get_messages as get_messages
from verifiers.messages import maybe_normalize_messages as maybe_normalize_messages
from verifiers.messages import message_to_printable as message_to_printable
from verifiers.messages import messages_to_printable as messages_to_printable
from verifiers.messages import normalize_messages as normalize_messages
from verifiers.messages import sanitize_tool_calls as sanitize_tool_calls
from verifiers.messages import serialize_message_for_output as serialize_message_for_output
from verifiers.messages import serialize_messages_for_output as serialize_messages_for_output


def __getattr__(name: str) -> Any:
    if name in ("ChatCompletionMessage", "ChatCompletionMessageParam"):
        from openai.types import chat

        return getattr(chat, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

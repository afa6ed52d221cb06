"""The model APIs as pure functions, without network and keys. Each module holds one API in both directions.

Read `dialect` first (the interface), then `chat_completions` (the most common API), then the others. Clients call
models through a dialect, and `interception` answers programs through one.
"""

from __future__ import annotations

from verifiers.dialects.anthropic_messages import AnthropicMessages
from verifiers.dialects.chat_completions import ChatCompletions
from verifiers.dialects.completions import Completions
from verifiers.dialects.dialect import Dialect
from verifiers.dialects.responses import Responses

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (ChatCompletions(), Completions(), Responses(), AnthropicMessages())
}
"""Name → API. Interception serves every entry, and `verifiers.clients.connect.client_class` makes its client. The name
of a new entry also belongs in `ClientType` in `verifiers/run_options.py`.
"""


def dialect_of_path(path: str) -> Dialect:
    """Return the API of a request's path, such as `/v1/chat/completions`; chat completions for any other path."""
    end = path.rstrip("/")
    matches = [each for each in DIALECTS.values() if end.endswith(each.route)]
    return max(
        matches, key=lambda each: len(each.route), default=DIALECTS["openai_chat_completions"]
    )

"""v0 import path of the client for the OpenAI responses API; see `verifiers.dialects.responses`."""

from __future__ import annotations

from verifiers.clients.http_client import HttpClient
from verifiers.dialects.responses import (
    OPENAI_RESPONSES_OUTPUT_FIELD as OPENAI_RESPONSES_OUTPUT_FIELD,
)
from verifiers.dialects.responses import Responses


class OpenAIResponsesClient(HttpClient):
    """Responses API: reasoning that is kept between turns, tool calls, images."""

    dialect = Responses()

"""v0 import path of the client for the OpenAI text completions API; see `verifiers.dialects.completions`."""

from __future__ import annotations

from verifiers.clients.http_client import HttpClient
from verifiers.dialects.completions import Completions


class OpenAICompletionsClient(HttpClient):
    """Text completions. Messages are joined by a blank line, because base models have no roles."""

    dialect = Completions()

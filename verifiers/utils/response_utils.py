"""v0 import path: a model's response as messages and as token ids."""

from verifiers.v0.utilities import parse_response_message as parse_response_message
from verifiers.v0.utilities import parse_response_messages as parse_response_messages
from verifiers.v0.utilities import parse_response_tokens as parse_response_tokens

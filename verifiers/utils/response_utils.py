"""v0 import path: a model's response as messages and as token ids."""

from verifiers.envs.turns import parse_response_message as parse_response_message
from verifiers.envs.turns import parse_response_messages as parse_response_messages
from verifiers.envs.turns import parse_response_tokens as parse_response_tokens

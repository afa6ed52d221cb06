"""v0 import path; see `verifiers.interception`."""

from verifiers.clients.openai_responses_client import (
    OPENAI_RESPONSES_OUTPUT_FIELD as OPENAI_RESPONSES_OUTPUT_FIELD,
)
from verifiers.interception.answers import empty_response as empty_response
from verifiers.interception.answers import jsonable as jsonable
from verifiers.interception.answers import protocol_from_path as protocol_from_path
from verifiers.interception.answers import (
    serialize_anthropic_message_response as serialize_anthropic_message_response,
)
from verifiers.interception.answers import (
    serialize_intercept_response as serialize_intercept_response,
)
from verifiers.interception.answers import (
    serialize_openai_completion_response as serialize_openai_completion_response,
)
from verifiers.interception.answers import (
    serialize_openai_responses_response as serialize_openai_responses_response,
)
from verifiers.interception.answers import serialize_tool_defs as serialize_tool_defs
from verifiers.interception.server import KEEPALIVE_INTERVAL_SECONDS as KEEPALIVE_INTERVAL_SECONDS
from verifiers.interception.server import InterceptionError as InterceptionError
from verifiers.interception.server import InterceptionServer as InterceptionServer
from verifiers.interception.server import StreamInterrupted as StreamInterrupted
from verifiers.interception.server import deliver_response as deliver_response
from verifiers.interception.server import synthesize_stream as synthesize_stream
from verifiers.v0.utilities import create_empty_completion as create_empty_completion

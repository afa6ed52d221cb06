"""The table of APIs: every entry has a client, and reads back its own responses."""

import pytest

from verifiers.clients.connect import CLIENT_CLASSES, client_class
from verifiers.configs import CLIENT_TYPES
from verifiers.dialects import DIALECTS
from verifiers.types import Response, ResponseMessage, ToolCall, Usage

CALL = ToolCall(id="a", name="add", arguments='{"x": 1}')


@pytest.mark.parametrize("name", DIALECTS)
def test_every_api_has_a_client_of_its_name(name: str):
    assert name in CLIENT_TYPES
    assert name in CLIENT_CLASSES
    assert type(client_class(name).dialect) is type(DIALECTS[name])  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("calls", [None, [CALL]], ids=["text", "calls"])
def test_the_response_to_a_program_is_a_response_of_the_model(
    name: str, calls: list[ToolCall] | None
):
    if calls and name == "openai_completions":
        pytest.skip("text completions have no calls")
    message = ResponseMessage(
        content="four", tool_calls=calls, finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )  # fmt: skip
    usage = Usage(prompt_tokens=5, completion_tokens=2, reasoning_tokens=0, total_tokens=7)
    response = Response(id="r", created=17, model="m", usage=usage, message=message)
    payload = DIALECTS[name].response_body(response)
    DIALECTS[name].check_payload(payload)
    copy = DIALECTS[name].response_of(payload)
    assert (copy.message.content, copy.message.tool_calls) == ("four", calls)
    assert (copy.message.finish_reason, copy.id) == (message.finish_reason, "r")
    assert copy.usage is not None
    assert copy.usage.total_tokens == 7

"""The table of APIs: every entry has a client, and reads back its own responses."""

import pytest

from verifiers.clients.connect import client_class
from verifiers.clients.http_client import HttpClient
from verifiers.configs import CLIENT_TYPES, ClientConfig
from verifiers.dialects import DIALECTS
from verifiers.dialects.completions import Completions
from verifiers.types import Response, ResponseMessage, ToolCall, Usage

CALL = ToolCall(id="a", name="add", arguments='{"x": 1}')


@pytest.mark.parametrize("name", DIALECTS)
def test_every_api_has_a_client_of_its_name(name: str):
    assert name in CLIENT_TYPES
    assert type(client_class(name).dialect) is type(DIALECTS[name])  # type: ignore[attr-defined]


def test_an_entry_of_the_table_is_enough_for_a_client(monkeypatch: pytest.MonkeyPatch):
    class OtherCompletions(Completions):
        name = "other_completions"

    monkeypatch.setitem(DIALECTS, "other_completions", OtherCompletions())
    kind = client_class("other_completions")
    assert kind is client_class("other_completions")
    assert kind.__name__ == "OtherCompletionsClient"
    client = kind(ClientConfig(api_base_url="http://localhost:1/v1"))
    assert isinstance(client, HttpClient)
    assert client.dialect is DIALECTS["other_completions"]
    assert not client._is_adapted, "requests go through the library's transport"


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

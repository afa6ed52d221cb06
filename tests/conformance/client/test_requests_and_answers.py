"""What goes to an endpoint and what comes back, for every client."""

from __future__ import annotations

import copy

import pytest
from client_suite import KEY, PROMPT, TOOL, ask

from verifiers.errors import (
    BadRequestError,
    ConfigError,
    EmptyModelResponseError,
)
from verifiers.state import State
from verifiers.types import (
    AssistantMessage,
    Response,
    TextMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)


async def test_an_answer_comes_back_in_the_librarys_shape(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    response = await ask(make_client(dialect.client_type))

    assert isinstance(response, Response)
    assert (response.id, response.model) == ("answer-1", "m")
    assert (response.message.role, response.message.content) == ("assistant", "four")
    assert (response.message.finish_reason, response.message.is_truncated) == ("stop", False)
    assert response.message.tool_calls is None
    assert (response.usage.prompt_tokens, response.usage.completion_tokens) == (5, 2)
    assert response.usage.total_tokens == 7


async def test_the_request_carries_model_prompt_key_and_headers(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    await ask(make_client(dialect.client_type, extra_headers={"X-Team": "red"}))

    [request] = endpoint.requests
    assert (request.method, request.path) == ("POST", dialect.path)
    assert KEY in request.headers[dialect.key_header]
    assert request.headers["x-team"] == "red"
    assert request.headers["content-type"] == "application/json"
    assert request.body["model"] == "m"
    assert dialect.prompt_texts(request.body) == ["Be brief.", "2+2?"]


async def test_sampling_arguments_reach_the_endpoint_under_its_names(
    dialect, endpoint, make_client
):
    endpoint.script(dialect.answer())
    sampling_args = {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": None,
        "some_new_option": [1],
        "extra_body": {"min_p": 0.1},
        "extra_headers": {"X-Run": "7"},
    }
    before = copy.deepcopy(sampling_args)
    await ask(make_client(dialect.client_type), sampling_args=sampling_args)

    [request] = endpoint.requests
    assert request.body[dialect.length_key] == 9
    assert request.body["temperature"] == 0.5
    assert request.body["some_new_option"] == [1]
    assert request.body["min_p"] == 0.1
    assert request.headers["x-run"] == "7"
    assert {"top_p", "extra_body", "extra_headers"}.isdisjoint(request.body)
    assert sampling_args == before, "the caller's arguments must not change"


async def test_both_names_of_the_length_limit_work(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    await ask(make_client(dialect.client_type), sampling_args={"max_completion_tokens": 9})
    assert endpoint.requests[0].body[dialect.length_key] == 9


async def test_sampling_arguments_may_be_none(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    response = await make_client(dialect.client_type).get_response(PROMPT, "m", None)
    assert response.message.content == "four"


async def test_headers_can_come_from_the_rollouts_state(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    client = make_client(
        dialect.client_type,
        extra_headers_from_state={"X-Session": "trajectory_id"},
    )
    state = State(input={"prompt": PROMPT}, trajectory_id="t-1", trajectory=[], model="m")
    await ask(client, state=state)

    assert endpoint.requests[0].headers["x-session"] == "t-1"


async def test_a_header_from_a_key_that_no_state_has_is_told_before_any_request(
    dialect, endpoint, make_client
):
    client = make_client(
        dialect.client_type, extra_headers_from_state={"X-Session": "trajectry_id"}
    )
    state = State(input={"prompt": PROMPT}, trajectory_id="t-1", trajectory=[], model="m")
    with pytest.raises(ConfigError, match=r"X-Session.*Did you mean 'trajectory_id'"):
        await ask(client, state=state)
    assert endpoint.requests == []


async def test_a_cut_answer_says_so(dialect, endpoint, make_client):
    endpoint.script(dialect.answer("cut"))
    message = (await ask(make_client(dialect.client_type))).message
    assert (message.content, message.finish_reason, message.is_truncated) == ("fou", "length", True)


async def test_tool_calls_go_out_and_come_back(dialect, endpoint, make_client):
    client = make_client(dialect.client_type)
    if not dialect.has_tools:
        with pytest.raises(BadRequestError, match="not support tools"):
            await ask(client, tools=[TOOL])
        return
    endpoint.script(dialect.answer("calls"))
    message = (await ask(client, tools=[TOOL])).message

    assert message.finish_reason == "tool_calls"
    assert [dict(call) for call in message.tool_calls] == [
        {"id": "a", "name": "add", "arguments": '{"x": 1}'},
        {"id": "b", "name": "neg", "arguments": "{}"},
    ]
    [offered] = endpoint.requests[0].body["tools"]
    described = offered.get("function", offered)
    assert (described["name"], described["description"]) == ("add", "Adds.")
    assert (described.get("parameters") or described["input_schema"]) == TOOL.parameters


async def test_no_tools_means_no_tools_in_the_request(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    client = make_client(dialect.client_type)
    await ask(client, tools=[])
    await ask(client, tools=None)
    assert all("tools" not in request.body for request in endpoint.requests)


async def test_a_conversation_with_tool_results_can_be_continued(dialect, endpoint, make_client):
    if not dialect.has_tools:
        pytest.skip("no tools in this API")
    endpoint.script(dialect.answer())
    prompt = [
        *PROMPT,
        AssistantMessage(
            content=None,
            tool_calls=[
                ToolCall(id="a", name="add", arguments='{"x": 1}'),
                ToolCall(id="b", name="neg", arguments="not json"),
            ],
        ),
        ToolMessage(tool_call_id="a", content="one"),
        ToolMessage(tool_call_id="b", content="two"),
        AssistantMessage(content="so", finish_reason="stop", is_truncated=False),
        UserMessage(content="go on"),
    ]
    before = copy.deepcopy(prompt)
    await ask(make_client(dialect.client_type), prompt)

    sent = str(endpoint.requests[0].body)
    assert all(word in sent for word in ("'a'", "'b'", "add", "neg", "one", "two", "so", "go on"))
    assert "is_truncated" not in sent
    assert prompt == before, "the prompt must not change"


async def test_plain_dict_messages_are_accepted(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    await ask(make_client(dialect.client_type), prompt)
    assert dialect.prompt_texts(endpoint.requests[0].body) == ["Be brief.", "2+2?"]


async def test_a_text_message_is_sent_as_the_users(dialect, endpoint, make_client):
    endpoint.script(dialect.answer())
    await ask(make_client(dialect.client_type), [TextMessage(content="Once upon")])
    assert dialect.prompt_texts(endpoint.requests[0].body) == ["Once upon"]


async def test_reasoning_is_kept_apart_from_content(dialect, endpoint, make_client):
    if not dialect.has_reasoning:
        pytest.skip("no reasoning in this API")
    endpoint.script(dialect.answer("reasoning"))
    message = (await ask(make_client(dialect.client_type))).message
    assert (message.content, message.reasoning_content) == ("four", "2+2")


async def test_an_empty_answer_is_an_error_of_its_own(dialect, endpoint, make_client):
    endpoint.script(dialect.answer("empty"))
    client = make_client(dialect.client_type)
    if not dialect.refuses_empty:
        assert (await ask(client)).message.content == ""
        return
    with pytest.raises(EmptyModelResponseError):
        await ask(client)
    assert len(endpoint.requests) == 1, (
        "the model was heard; asking again is the rollout's business"
    )

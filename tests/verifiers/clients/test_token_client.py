"""Token in, token out: every turn's prompt begins with exactly the ids of the turns before."""

from __future__ import annotations

import pytest
from dialects import chat
from hypothesis import given
from hypothesis import strategies as st
from loopback import Answer

from verifiers.clients.openai_chat_completions_token_client import continued_ids
from verifiers.state import State
from verifiers.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)

EOS, NEWLINE = 1, 2
TOOL = Tool(name="f", description="d", parameters={"type": "object", "properties": {}})


def ids_of(text):
    return [100 + ord(letter) for letter in str(text)]


def render(messages, add_generation_prompt=True):
    """A chat template like ChatML's: a line break follows the end-of-turn token, and nobody samples it."""
    ids = []
    for message in messages:
        said = message.get("content") or "".join(c["id"] for c in message.get("tool_calls") or [])
        ids += [3, *ids_of(message["role"]), *ids_of(said), EOS, NEWLINE]
    return [*ids, 3, *ids_of("assistant")] if add_generation_prompt else ids


class TokenServer:
    """Answers like a server with token routes, by a character tokenizer."""

    def __init__(self, completion="hi", finish_reason="stop", missing=()):
        self.completion = completion
        self.finish_reason = finish_reason
        self.missing = missing

    def __call__(self, request):
        body = request.body
        if any(request.path.endswith(route) for route in self.missing):
            return Answer(404, {"error": {"message": "Not Found"}})
        if request.path == "/tokenize":
            ids = render(body["messages"], body.get("add_generation_prompt", True))
            return Answer(body={"count": len(ids), "max_model_len": 1000, "tokens": ids})
        prompt_ids = (
            body["tokens"] if request.path.endswith("/tokens") else render(body["messages"])
        )
        completion_ids = [*ids_of(self.completion), EOS]
        payload = chat({"content": self.completion}, self.finish_reason)
        payload["prompt_token_ids"] = prompt_ids
        payload["choices"][0]["token_ids"] = completion_ids
        payload["choices"][0]["logprobs"] = {
            "content": [{"token": "?", "logprob": -0.5} for _ in completion_ids]
        }
        return Answer(body=payload)


@pytest.fixture
def client(make_client):
    return make_client("openai_chat_completions_token")


def new_state(prompt):
    return State(input={"prompt": prompt}, trajectory=[], trajectory_id="t", model="m")


async def play(client, state, prompt, **options):
    """One turn, recorded in the trajectory as a rollout does."""
    response = await client.get_response(
        prompt, "m", {"temperature": 0.5, "extra_body": {"top_k": 3}}, state=state, **options
    )
    completion = [
        AssistantMessage(
            **{k: v for k, v in response.message.items() if k in ("content", "tool_calls")}
        )
    ]
    state.trajectory.append(
        {
            "prompt": prompt,
            "completion": completion,
            "response": response,
            "tokens": {**response.message.tokens, "is_truncated": response.message.is_truncated},
            "is_truncated": response.message.is_truncated,
        }
    )
    return response.message.tokens, [*prompt, *completion]


def paths(endpoint):
    return [request.path for request in endpoint.requests]


async def test_the_first_turn_is_a_chat_request_for_token_ids(client, endpoint):
    endpoint.respond = TokenServer()
    prompt = [UserMessage(content="2+2?")]
    tokens, _ = await play(client, new_state(prompt), prompt)

    [request] = endpoint.requests
    assert request.path == "/v1/chat/completions"
    assert request.body["logprobs"] is True
    assert (request.body["return_token_ids"], request.body["top_k"]) == (True, 3)
    assert tokens.prompt_ids == render([{"role": "user", "content": "2+2?"}])


async def test_later_turns_continue_token_by_token(client, endpoint):
    endpoint.respond = TokenServer()
    prompt = [SystemMessage(content="s"), UserMessage(content="2+2?")]
    state = new_state(prompt)
    before, conversation = await play(client, state, prompt)
    for turn in range(3):
        conversation = [*conversation, UserMessage(content=f"and {turn}?")]
        tokens, conversation = await play(client, state, conversation)
        start = [*before.prompt_ids, *before.completion_ids]
        assert tokens.prompt_ids[: len(start)] == start
        # The template's own rendering: the character tokenizer makes both agree, line break included.
        assert tokens.prompt_ids == render([dict(m) for m in conversation[:-1]])
        before = tokens
    assert paths(endpoint).count("/v1/chat/completions/tokens") == 3
    assert paths(endpoint).count("/tokenize") == 4, "the stand-in alone is asked for once"
    assert endpoint.requests[-1].body["messages"], "the server wants the text beside the ids"


async def test_tool_results_continue_too(client, endpoint):
    call = ToolCall(id="c1", name="f", arguments="{}")
    endpoint.respond = TokenServer()
    prompt = [UserMessage(content="2+2?")]
    state = new_state(prompt)
    before, _ = await play(client, state, prompt, tools=[TOOL])
    said = AssistantMessage(content=None, tool_calls=[call])
    state.trajectory[0]["completion"] = [said]
    tokens, _ = await play(
        client, state, [*prompt, said, ToolMessage(tool_call_id="c1", content="4")], tools=[TOOL]
    )
    start = [*before.prompt_ids, *before.completion_ids]
    assert tokens.prompt_ids[: len(start)] == start
    with_tools = [r for r in endpoint.requests if r.path == "/tokenize"]
    assert all(r.body["tools"][0]["function"]["name"] == "f" for r in with_tools)
    assert with_tools[0].body["messages"][0]["tool_calls"][0]["id"] == "c1"


IMAGE = UserMessage(content=[ImageUrlContentPart(image_url=ImageUrlSource(url="u"))])


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda said: [UserMessage(content="other"), *said[1:], UserMessage(content="n")],
            "history edited",
        ),
        (lambda said: [UserMessage(content="only this")], "a new conversation"),
        (lambda said: [*said, SystemMessage(content="n")], "a system message added"),
        (
            lambda said: [*said, UserMessage(content="n"), AssistantMessage(content="x")],
            "an answer added",
        ),
        (lambda said: [*said, IMAGE], "an image added"),
        (lambda said: said, "nothing added"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_whatever_is_no_plain_continuation_is_sent_as_text(client, endpoint, edit, why):
    endpoint.respond = TokenServer()
    prompt = [UserMessage(content="2+2?")]
    state = new_state(prompt)
    _, conversation = await play(client, state, prompt)
    await play(client, state, edit(conversation))
    assert paths(endpoint) == ["/v1/chat/completions"] * 2, why


async def test_a_truncated_answer_is_not_continued_by_ids(client, endpoint):
    endpoint.respond = TokenServer(finish_reason="length")
    prompt = [UserMessage(content="2+2?")]
    state = new_state(prompt)
    _, conversation = await play(client, state, prompt)
    await play(client, state, [*conversation, UserMessage(content="n")])
    assert paths(endpoint) == ["/v1/chat/completions"] * 2


@pytest.mark.parametrize("missing", ["/tokenize", "/tokens"])
async def test_a_server_without_the_routes_is_asked_by_text_and_told_once(
    client, endpoint, caplog, missing
):
    endpoint.respond = TokenServer(missing=(missing,))
    prompt = [UserMessage(content="2+2?")]
    state = new_state(prompt)
    _, conversation = await play(client, state, prompt)
    for _ in range(3):
        _, conversation = await play(client, state, [*conversation, UserMessage(content="n")])
    assert sum(path.endswith(missing) for path in paths(endpoint)) == 1
    assert caplog.text.count("does not accept tokens") == 1


async def test_without_a_state_every_turn_is_text(client, endpoint):
    endpoint.respond = TokenServer()
    response = await client.get_response([UserMessage(content="q")], "m", {})
    assert response.message.tokens.completion_ids


ids = st.lists(st.integers(1, 9), max_size=8)


@given(sampled=st.lists(st.integers(1, 9), min_size=1, max_size=8), alone=ids, added=ids)
def test_continued_ids_always_begin_with_the_sampled_ones_and_end_with_the_new(
    sampled, alone, added
):
    found = continued_ids(sampled, alone, [*alone, *added])
    assert found[: len(sampled)] == sampled
    assert found[len(found) - len(added) :] == added


@given(sampled=ids, alone=st.lists(st.integers(1, 9), min_size=1, max_size=8), other=ids)
def test_a_template_that_rewrites_earlier_turns_is_noticed(sampled, alone, other):
    if other[: len(alone)] != alone:
        assert continued_ids(sampled, alone, other) is None


def test_what_the_template_adds_after_the_end_of_turn_is_kept():
    assert continued_ids([7, EOS], [3, 4, EOS, NEWLINE], [3, 4, EOS, NEWLINE, 8]) == [
        7,
        EOS,
        NEWLINE,
        8,
    ]
    assert continued_ids([7, EOS], [3, 4, EOS], [3, 4, EOS, 8]) == [7, EOS, 8]
    assert continued_ids([7], [3, 4], [3, 4, 8]) == [7, 8], (
        "no end-of-turn token known: nothing between"
    )

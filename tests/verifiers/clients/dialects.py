"""Each API's way to say the same things, so that one suite can check every client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loopback import Answer

USAGE = (5, 2)  # prompt and completion tokens of every answer here


@dataclass(frozen=True)
class Dialect:
    """How one API writes requests and answers."""

    client_type: str
    path: str
    length_key: str
    key_header: str = "authorization"
    has_tools: bool = True
    has_reasoning: bool = True
    refuses_empty: bool = True
    sdk_path: tuple[str, ...] = ()
    forms: dict[str, Any] = field(default_factory=dict)

    def answer(self, form: str = "text", **changes: Any) -> Answer:
        return Answer(body={**self.forms[form], **changes})

    def prompt_texts(self, body: dict[str, Any]) -> list[str]:
        """The texts of the prompt in a request."""
        if "prompt" in body:
            return body["prompt"].split("\n\n")
        messages = body.get("messages") or body.get("input") or []
        texts = [body["system"]] if body.get("system") else []
        return texts + [m["content"] for m in messages if isinstance(m.get("content"), str)]


def chat(message: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "id": "answer-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", **message},
                "finish_reason": finish_reason,
                "logprobs": None,
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def text(content: str | None, finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "id": "answer-1",
        "object": "text_completion",
        "created": 1700000000,
        "model": "m",
        "choices": [
            {"index": 0, "text": content, "finish_reason": finish_reason, "logprobs": None}
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def message(content: list[Any], stop_reason: str = "end_turn") -> dict[str, Any]:
    return {
        "id": "answer-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }


def response(output: list[Any], status: str = "completed") -> dict[str, Any]:
    return {
        "id": "answer-1",
        "object": "response",
        "created_at": 1700000000,
        "model": "m",
        "status": status,
        "output": output,
        "usage": {
            "input_tokens": 5,
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 7,
        },
    }


def said(content: str) -> dict[str, Any]:
    return {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": content, "annotations": []}],
    }


_CHAT_CALLS = [
    {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
    {"id": "b", "type": "function", "function": {"name": "neg", "arguments": "{}"}},
]
CHAT_FORMS = {
    "text": chat({"content": "four"}),
    "cut": chat({"content": "fou"}, "length"),
    "calls": chat({"content": None, "tool_calls": _CHAT_CALLS}, "tool_calls"),
    "reasoning": chat({"content": "four", "reasoning_content": "2+2"}),
    "empty": chat({"content": None}),
}

DIALECTS = [
    Dialect(
        "openai_chat_completions",
        "/v1/chat/completions",
        "max_completion_tokens",
        sdk_path=("chat", "completions", "create"),
        forms=CHAT_FORMS,
    ),
    Dialect(
        "openai_chat_completions_token",
        "/v1/chat/completions",
        "max_completion_tokens",
        sdk_path=("chat", "completions", "create"),
        forms=CHAT_FORMS,
    ),
    Dialect(
        "nemorl_chat_completions",
        "/v1/chat/completions",
        "max_completion_tokens",
        sdk_path=("chat", "completions", "create"),
        forms=CHAT_FORMS,
    ),
    Dialect(
        "openai_completions",
        "/v1/completions",
        "max_tokens",
        has_tools=False,
        has_reasoning=False,
        sdk_path=("completions", "create"),
        forms={"text": text("four"), "cut": text("fou", "length"), "empty": text("")},
    ),
    Dialect(
        "openai_responses",
        "/v1/responses",
        "max_output_tokens",
        sdk_path=("responses", "create"),
        forms={
            "text": response([said("four")]),
            "cut": response([said("fou")], "incomplete"),
            "calls": response(
                [
                    {
                        "type": "function_call",
                        "id": "1",
                        "call_id": "a",
                        "name": "add",
                        "arguments": '{"x": 1}',
                    },
                    {
                        "type": "function_call",
                        "id": "2",
                        "call_id": "b",
                        "name": "neg",
                        "arguments": "{}",
                    },
                ]
            ),
            "reasoning": response(
                [
                    {
                        "type": "reasoning",
                        "id": "rs",
                        "summary": [{"type": "summary_text", "text": "2+2"}],
                    },
                    said("four"),
                ]
            ),
            "empty": response([]),
        },
    ),
    Dialect(
        "anthropic_messages",
        "/v1/messages",
        "max_tokens",
        key_header="x-api-key",
        refuses_empty=False,
        sdk_path=("messages", "create"),
        forms={
            "text": message([{"type": "text", "text": "four"}]),
            "cut": message([{"type": "text", "text": "fou"}], "max_tokens"),
            "calls": message(
                [
                    {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}},
                    {"type": "tool_use", "id": "b", "name": "neg", "input": {}},
                ],
                "tool_use",
            ),
            "reasoning": message(
                [
                    {"type": "thinking", "thinking": "2+2", "signature": "s"},
                    {"type": "text", "text": "four"},
                ]
            ),
            "empty": message([]),
        },
    ),
]

"""Convert a whole `Response` to the server-sent events of each API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from verifiers.interception import answers
from verifiers.interception.requests import ApiFormat
from verifiers.types import Response

DONE = b"data: [DONE]\n\n"
"""End of a stream in OpenAI's older APIs."""


def event(data: Any, name: str | None = None) -> bytes:
    """Return one event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data)}\n\n".encode()


def events_of(response: Response, api_format: ApiFormat, wants_usage: bool) -> list[bytes]:
    """Return the events of a response, including the last one."""
    match api_format:
        case "openai_chat_completions":
            return [*map(event, chat_chunks(response, wants_usage)), DONE]
        case "openai_completions":
            return [event(answers.serialize_openai_completion_response(response)), DONE]
        case "openai_responses":
            return [event(each, each["type"]) for each in _responses_events(response)]
        case "anthropic_messages":
            return [event(each, each["type"]) for each in _anthropic_events(response)]


def error_event(error: BaseException, api_format: ApiFormat) -> bytes:
    """Return an error in the middle of a stream; the regular end then stays out."""
    body = answers.error_body(error, api_format)
    if api_format == "openai_responses":
        failed = {"type": "error", "code": "server_error", "message": body["error"]["message"]}
        return event(failed, "error")
    return event(body, "error" if api_format == "anthropic_messages" else None)


def chat_chunks(response: Response, wants_usage: bool = False) -> list[dict[str, Any]]:
    """Return `chat.completion.chunk` objects: content, then the finish reason, then token counts if requested."""
    head = {
        "id": response.id,
        "object": "chat.completion.chunk",
        "created": response.created,
        "model": response.model,
    }
    said = response.message
    delta: dict[str, Any] = {"role": "assistant", "content": said.content}
    if said.reasoning_content:
        delta["reasoning_content"] = said.reasoning_content
    if calls := answers.tool_calls(response):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    ended = {"index": 0, "delta": {}, "finish_reason": answers.finish_reason(response)}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [ended]},
    ]
    if wants_usage:
        chunks.append({**head, "choices": [], "usage": answers.usage(response)})
    return chunks


def _responses_events(response: Response) -> Iterator[dict[str, Any]]:
    whole = answers.serialize_openai_responses_response(response)
    begun = {
        **whole,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
    }
    inner = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole["output"]):
        inner += _item_events(index, item)
    inner.append({"type": f"response.{whole['status']}", "response": whole})
    for number, each in enumerate(inner):
        yield {**each, "sequence_number": number}


def _item_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    match item["type"]:
        case "message":
            part = item["content"][0]
            here = {**place, "content_index": 0}
            begun = {**item, "status": "in_progress", "content": []}
            text = {"text": part["text"]}
            kind = "response.output_text"
            yield _added(index, begun)
            yield {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
            yield {"type": f"{kind}.delta", **here, "delta": part["text"], "logprobs": []}
            yield {"type": f"{kind}.done", **here, **text, "logprobs": []}
            yield {"type": "response.content_part.done", **here, "part": part}
        case "function_call":
            kind = "response.function_call_arguments"
            yield _added(index, {**item, "status": "in_progress", "arguments": ""})
            yield {"type": f"{kind}.delta", **place, "delta": item["arguments"]}
            yield {"type": f"{kind}.done", **place, "arguments": item["arguments"]}
        case _:  # reasoning
            part = item["summary"][0]
            here = {**place, "summary_index": 0}
            kind = "response.reasoning_summary"
            yield _added(index, {**item, "summary": []})
            yield {"type": f"{kind}_part.added", **here, "part": {**part, "text": ""}}
            yield {"type": f"{kind}_text.delta", **here, "delta": part["text"]}
            yield {"type": f"{kind}_text.done", **here, "text": part["text"]}
            yield {"type": f"{kind}_part.done", **here, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _added(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _anthropic_events(response: Response) -> Iterator[dict[str, Any]]:
    whole = answers.serialize_anthropic_message_response(response)
    counts = whole["usage"]
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**counts, "output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        empty, deltas = _block_deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": counts}
    yield {"type": "message_stop"}


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block's start event and its deltas."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "tool_use":
            text = json.dumps(block["input"])
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block.get("thinking") or ""}]
            if block.get("signature"):
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case _:
            return block, []

"""An OpenAI-compatible endpoint in a thread, with scripted replies. The model's name selects the case.

A reply depends on the conversation only, so the order of requests does not matter: a conversation that has no reply
yet starts the next script of its row, and a continued conversation belongs to the script with the same replies.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from differential.cases import Case, Script, Turn

Json = dict[str, Any]


class ScriptedModel:
    """The replies of all cases, and the requests that were received."""

    def __init__(self, cases: Mapping[str, Case]) -> None:
        self._cases = cases
        self._started: Counter[tuple[str, str]] = Counter()
        self._judged: Counter[tuple[str, str]] = Counter()
        self.requests: dict[str, list[Json]] = {name: [] for name in cases}
        self._lock = threading.Lock()

    def answer(self, path: str, body: Json) -> tuple[int, Json]:
        """Return status and body of the response to one request."""
        name, _, role = body["model"].partition(":")
        case = self._cases[name]
        with self._lock:
            self.requests[name].append({"path": path, **body})
            if role == "judge":
                turn: Turn = self._judgement(case, body)
            else:
                turn = self._turn(case, body)
        return _response(path, body, {"content": turn} if isinstance(turn, str) else turn)

    def _judgement(self, case: Case, body: Json) -> str:
        text = json.dumps(body["messages"])
        return next(reply for key, reply in case.judge.items() if key in text)

    def _turn(self, case: Case, body: Json) -> Turn:
        messages = body.get("messages")
        if messages is None:
            messages = [{"role": "user", "content": body["prompt"]}]
        replied = [message for message in messages if message["role"] == "assistant"]
        replied = replied[case.opening :]
        key, scripts = next(
            (key, scripts)
            for key, scripts in case.replies.items()
            if key in json.dumps(messages, ensure_ascii=False)
        )
        if replied:
            script = next((one for one in scripts if _is_script_of(one, replied)), scripts[0])
        else:
            opening = json.dumps(messages, sort_keys=True)
            script = scripts[self._started[case.name, key + opening] % len(scripts)]
            self._started[case.name, key + opening] += 1
        return script[min(len(replied), len(script) - 1)]


def _is_script_of(script: Script, replied: Sequence[Json]) -> bool:
    return all(
        _said(script[min(index, len(script) - 1)])[0] == (message.get("content") or "")
        and len(_said(script[min(index, len(script) - 1)])[1])
        == len(message.get("tool_calls") or [])
        for index, message in enumerate(replied)
    )


def _said(turn: Turn) -> tuple[str, Sequence[Json]]:
    if isinstance(turn, str):
        return turn, ()
    return turn.get("content") or "", turn.get("tool_calls", ())


def _words(value: Any) -> int:
    """Count the words of a text, or of the texts of content parts."""
    if isinstance(value, list):
        return sum(_words(part.get("text")) for part in value)
    return len(value.split()) if value else 0


def _response(path: str, body: Json, turn: Json) -> tuple[int, Json]:
    """Return status and body of a reply.

    Fields of a turn: `content`, `tool_calls`, `reasoning_content`, `finish_reason`, `status` with `error`,
    `no_choices`, `no_usage`.
    """
    if "status" in turn:
        error = {"message": turn.get("error", "refused"), "type": "error", "code": None}
        return turn["status"], {"error": error}
    texts = [m.get("content") for m in body.get("messages", [])] or [body.get("prompt")]
    prompt_tokens = sum(_words(text) for text in texts)
    replied = sum(message["role"] == "assistant" for message in body.get("messages", []))
    tool_calls = [
        {
            "id": f"call_{replied}_{index}",
            "type": "function",
            "function": {"name": one["name"], "arguments": one["arguments"]},
        }
        for index, one in enumerate(turn.get("tool_calls", []))
    ]
    completion_tokens = _words(turn.get("content")) + len(tool_calls)
    finish = turn.get("finish_reason") or ("tool_calls" if tool_calls else "stop")
    if path.endswith("/chat/completions"):
        message: Json = {"role": "assistant", "content": turn.get("content")}
        if tool_calls:
            message["tool_calls"] = tool_calls
        if "reasoning_content" in turn:
            message["reasoning_content"] = turn["reasoning_content"]
        choice: Json = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        kind = "chat.completion"
    else:
        choice = {"index": 0, "text": turn["content"], "finish_reason": finish, "logprobs": None}
        kind = "text_completion"
    response: Json = {
        "id": "response",
        "object": kind,
        "created": 1700000000,
        "model": body["model"],
        "choices": [] if turn.get("no_choices") else [choice],
    }
    if not turn.get("no_usage"):
        response["usage"] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
    return 200, response


@contextmanager
def serving(model: ScriptedModel) -> Iterator[str]:
    """Serve the model on a free port of this machine; yield the base URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, response = model.answer(self.path, body)
            content = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            with suppress(ConnectionError):  # the client was killed
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()

"""An OpenAI-compatible endpoint that answers at once or after a fixed latency, in its own process.

    python mock_endpoint.py --port 0 --latency 1.0 --tool-turns 4

It is a load generator's opposite: as cheap as asyncio allows, so that a benchmark measures the client. It prints
the port it bound on one line, and serves `POST /v1/chat/completions` and `GET /v1/models`, keep-alive.
With `--tool-turns K` the first K replies of a conversation are tool calls (`add(a=1, b=2)`), then plain text.
No dependency beyond the standard library: it also runs in the virtual environment of another package.
"""

import argparse
import asyncio
import json

PLAIN = {"role": "assistant", "content": "The answer is 4."}
TOOL_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
        }
    ],
}


def completion(message: dict, finish_reason: str) -> bytes:
    body = json.dumps(
        {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 1700000000,
            "model": "mock",
            "choices": [
                {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
            ],
            "usage": {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26},
        }
    ).encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
        + body
    )


class Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it are answered in order."""

    latency_s = 0.0
    tool_turns = 0
    plain = completion(PLAIN, "stop")
    tool_call = completion(TOOL_CALL, "tool_calls")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head_end = self.buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = self.buffer[:head_end].lower()
            length = 0
            at = head.find(b"content-length:")
            if at >= 0:
                length = int(head[at + 15 : (head.find(b"\r\n", at) + 1 or len(head) + 1) - 1])
            if len(self.buffer) < head_end + 4 + length:
                return
            body = self.buffer[head_end + 4 : head_end + 4 + length]
            self.buffer = self.buffer[head_end + 4 + length :]
            answer = self.plain
            if self.tool_turns and body.count(b'"tool_call_id"') < self.tool_turns:
                answer = self.tool_call
            if self.latency_s:
                asyncio.get_running_loop().call_later(self.latency_s, self.send, answer)
            else:
                self.send(answer)

    def send(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        Connection, "127.0.0.1", port, backlog=16384
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--latency", type=float, default=0.0)
    options.add_argument("--tool-turns", type=int, default=0)
    chosen = options.parse_args()
    Connection.latency_s = chosen.latency
    Connection.tool_turns = chosen.tool_turns
    asyncio.run(serve(chosen.port))


if __name__ == "__main__":
    main()

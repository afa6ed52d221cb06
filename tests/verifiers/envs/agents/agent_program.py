# ruff: noqa: T201 - what it prints is what the tests look at
"""A small agent, with nothing but the standard library. Runs inside the sandbox; its arguments say how it behaves."""

import json
import os
import sys
import time
import urllib.error
import urllib.request

ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


def post(url, body, key="OPENAI_API_KEY"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + os.environ[key], "Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def chat(messages, **options):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, **options}
    return post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)


def tools():
    """Several turns of chat completions with a tool, the last one streamed."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}]
    offered = [{"type": "function", "function": ADD}]
    while True:
        said = json.loads(chat(messages, tools=offered, temperature=0.3)[1])["choices"][0][
            "message"
        ]
        messages.append(said)
        if not said.get("tool_calls"):
            break
        for call in said["tool_calls"]:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "3"})
    messages.append({"role": "user", "content": "Thanks."})
    _, stream = chat(messages, stream=True)
    chunks = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks[:-1]]
    print("streamed:", "".join(delta.get("content") or "" for delta in deltas), chunks[-1])


def anthropic():
    """One turn of Anthropic's messages, streamed."""
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    body = {"model": "any", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}
    _, stream = post(url, {**body, "stream": True}, "ANTHROPIC_API_KEY")
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    print([event["delta"]["text"] for event in events if event["type"] == "content_block_delta"])
    print(events[-1]["type"])


def crash():
    sys.exit("no configuration")


def crash_after_a_turn():
    chat([{"role": "user", "content": "Hi."}])
    os._exit(3)


def hang():
    chat([{"role": "user", "content": "Hi."}])
    print("waiting", flush=True)
    chat([{"role": "user", "content": "Again."}])
    time.sleep(1000)


def garbage():
    """Nonsense first; the agent survives it, and asks properly then."""
    base = os.environ["OPENAI_BASE_URL"]
    print(post(base + "/chat/completions", b"{nonsense")[0])
    print(chat([{"role": "cat", "content": "miau"}])[0])
    print(post(base.replace("/v1", "x/v1") + "/chat/completions", {})[0])
    print(chat([{"role": "user", "content": "Hi."}])[0])


def errors():
    """What the agent sees of a model that fails."""
    print(*chat([{"role": "user", "content": "Hi."}]), flush=True)


def parallel():
    """Three requests at once."""
    import threading

    for name in "abc":
        threading.Thread(target=chat, args=([{"role": "user", "content": name}],)).start()


def daemon():
    """Leaves a process behind that writes a file as long as it lives."""
    chat([{"role": "user", "content": "Hi."}])
    if os.fork() == 0:
        os.setsid()
        while True:
            with open("/box/alive", "a") as file:
                file.write("x")
            time.sleep(0.001)
    while not os.path.exists("/box/alive"):
        time.sleep(0.001)
    chat([{"role": "user", "content": "Again."}])
    time.sleep(1000)


def show_environment():
    names = ["OPENAI_MODEL", "OPENAI_TIMEOUT", "MINE", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"]
    print(json.dumps({name: os.environ.get(name) for name in names}))


def eat_memory():
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()

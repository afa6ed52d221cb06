#!/usr/bin/env python3
# ruff: noqa: T201 - what it prints is the log of the agent
"""Does what OpenCode does, with the standard library: reads its configuration, calls the model, runs tools.

`opencode run < question`. The tool `bash` runs a command; `subagents`, of the RLM plugin, asks one sub-LLM per prompt.
"""

import json
import pathlib
import subprocess
import sys
import threading
import urllib.request


def tool(name, argument, kind):
    parameters = {"type": "object", "properties": {argument: kind}}
    return {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": parameters},
    }


BASH = tool("bash", "command", {"type": "string"})
SUBAGENTS = tool("subagents", "prompts", {"type": "array"})


class Model:
    def __init__(self, config):
        [(key, provider)] = config["provider"].items()
        [name] = provider["models"]
        assert config["model"] == f"{key}/{name}", config["model"]
        self.name = name
        self.options = provider["options"]

    def ask(self, messages, tools=None, stream=False, **headers):
        body = {"model": self.name, "messages": messages, "stream": stream}
        if tools:
            body["tools"] = tools
        request = urllib.request.Request(
            self.options["baseURL"] + "/chat/completions",
            json.dumps(body).encode(),
            {"Authorization": "Bearer " + self.options["apiKey"], **headers},
        )
        with urllib.request.urlopen(request, timeout=self.options["timeout"] / 1000) as answer:
            text = answer.read().decode()
        return from_stream(text) if stream else json.loads(text)["choices"][0]["message"]


def from_stream(text):
    """The message of a stream of chunks."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", text
    message = {"role": "assistant", "content": "", "tool_calls": []}
    for choice in (choice for line in lines[:-1] for choice in json.loads(line)["choices"]):
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls") or []:
            if call["index"] == len(message["tool_calls"]):
                function = {"name": call["function"]["name"], "arguments": ""}
                message["tool_calls"].append(
                    {"id": call["id"], "type": "function", "function": function}
                )
            message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"][
                "arguments"
            ]
    return message


def bash(model, command):
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    return done.stdout + done.stderr


def subagents(model, prompts):
    """All at once; every second request streams."""
    answers = [None] * len(prompts)

    def one(index):
        messages = [{"role": "user", "content": prompts[index]}]
        headers = {"X-RLM-Role": "sub"}
        try:
            message = model.ask(messages, [BASH], stream=index % 2 == 1, **headers)
            answers[index] = message["content"]
        except urllib.error.HTTPError as error:
            answers[index] = f"failed: {error.code}"

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return json.dumps(answers)


def as_opencode_sends_it(message):
    """Tool names in lower case, arguments as compact JSON, no empty reasoning."""
    kept = {"role": "assistant", "content": message.get("content") or ""}
    calls = []
    for call in message.get("tool_calls") or []:
        arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
        function = {"name": call["function"]["name"].lower(), "arguments": arguments}
        calls.append({"id": call["id"], "type": "function", "function": function})
    if calls:
        kept["tool_calls"] = calls
    return kept


def main():
    assert sys.argv[1:] == ["run"], sys.argv
    config = json.loads((pathlib.Path.home() / ".config/opencode/opencode.json").read_text())
    assert config["$schema"] == "https://opencode.ai/config.json"
    build = config["agent"].get("build", {})
    model = Model(config)
    messages = []
    if "prompt" in build:
        path = build["prompt"].removeprefix("{file:").removesuffix("}")
        messages.append({"role": "system", "content": pathlib.Path(path).read_text()})
    messages.append({"role": "user", "content": sys.stdin.read()})
    offered = [BASH, SUBAGENTS] if config.get("plugin") else [BASH]
    for name in build.get("tools", {}):
        offered = [tool for tool in offered if tool["function"]["name"] != name]
    print("offers", *(tool["function"]["name"] for tool in offered))
    while True:
        message = as_opencode_sends_it(model.ask(messages, offered, stream=True))
        messages.append(message)
        if not message.get("tool_calls"):
            print("says", message["content"])
            return
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            result = globals()[call["function"]["name"]](model, **arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    main()

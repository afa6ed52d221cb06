#!/usr/bin/env python3
# ruff: noqa: T201 - its output is the log that the tests read
"""A program with the interface of `opencode run`: configuration, prompt on stdin, tools, the API over HTTP.

It offers the tool `bash` and runs what the model asks for, until the model answers without a tool call.
"""

import json
import os
import subprocess
import sys
import urllib.request

BASH = {
    "name": "bash",
    "description": "Runs a shell command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}


def main():
    assert sys.argv[1:] == ["run"], sys.argv
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    with open(os.path.join(folder, "opencode", "opencode.json")) as file:
        config = json.load(file)
    (provider,) = config["provider"].values()
    build = config["agent"].get("build", {})
    messages = []
    if "prompt" in build:
        with open(build["prompt"].removeprefix("{file:").removesuffix("}")) as file:
            messages.append({"role": "system", "content": file.read()})
    messages.append({"role": "user", "content": sys.stdin.read()})
    tools = [] if build.get("tools", {}).get("bash") is False else [BASH]
    while True:
        body = {"model": config["model"].partition("/")[2], "messages": messages}
        if tools:
            body["tools"] = [{"type": "function", "function": tool} for tool in tools]
        request = urllib.request.Request(
            provider["options"]["baseURL"] + "/chat/completions",
            json.dumps(body).encode(),
            {
                "Authorization": "Bearer " + provider["options"]["apiKey"],
                "Content-Type": "application/json",
                "X-Agent": "open-code",
            },
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            message = json.load(response)["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls") or []:
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
            print(f"$ {command}", flush=True)
            content = done.stdout + done.stderr
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if not message.get("tool_calls"):
            print(message["content"], flush=True)
            return


if __name__ == "__main__":
    main()

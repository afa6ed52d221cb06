"""Work with files in a shell; afterwards a script in the sandbox reads the files.

A row: {"question": "In the directory opal, rename …", "answer": "",
        "info": {"before": "{\"opal/kelp7.txt\": \"…\"}", "after": "{…}", "gold": "cd opal && for f in …"}}
"""

import json
import random
import zlib
from collections.abc import Iterator
from itertools import islice

from bash_file_tasks import TEMPLATES

import verifiers as vf

SYSTEM_PROMPT = (
    "You work in a shell through the tool `bash`. Commands start in the directory that holds the files; each "
    "call is a new "
    "shell. Do what is asked, no more: at the end there must be no other files, so use /tmp for temporary ones. "
    "When you "
    "are done, say so without calling the tool."
)
EVALUATION_SHARE = 8
"""One task in this many is reserved for evaluation, for any seed."""
WORKDIR = "/box"

LIST_FILES = """
import json, os, sys
found = {}
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        if os.path.islink(path) or not os.path.isfile(path):
            content = None
        else:
            with open(path, "rb") as file:
                content = file.read(1 << 20).decode("utf-8", "replace")
        found[os.path.relpath(path, sys.argv[1])] = content
print(json.dumps(found))
"""
"""Runs in the sandbox. The expected files stay outside, where the model's commands cannot read them."""


def tasks(split: str, seed: int) -> Iterator[dict]:
    """Yield different tasks of one split, endlessly."""
    numbers = random.Random(f"{split} {seed}")
    seen: set[str] = set()
    while True:
        task = numbers.choice(TEMPLATES)(numbers)
        before = json.dumps(task.before)
        is_eval = zlib.crc32(task.instruction.encode()) % EVALUATION_SHARE == 0
        if is_eval == (split == "eval") and task.instruction + before not in seen:
            seen.add(task.instruction + before)
            # As text: every task has different paths, and all rows of a dataset share their keys.
            info = {"before": before, "after": json.dumps(task.after), "gold": task.gold}
            yield {"question": task.instruction, "answer": "", "info": info}


class FileTasksEnv(vf.SandboxEnv):
    """A sandbox that starts with the files of the row."""

    def get_sandbox_request(self, state: vf.State):
        request = super().get_sandbox_request(state)
        before = json.loads(state["info"]["before"])
        request.files = {f"{WORKDIR}/{path}": text.encode() for path, text in before.items()}
        return request


async def files_are_right(sandbox, info, state) -> float:
    """Return 1.0 if exactly the right files exist, with the right content."""
    listed = await sandbox.run_python(LIST_FILES, argv=[WORKDIR], max_output_bytes=4 << 20)
    expected = json.loads(info["after"])
    try:
        found = json.loads(listed.stdout)
    except ValueError:  # too many files: the list was cut
        found = {}
    right = sum(
        content is not None and path in expected and content.rstrip() == expected[path].rstrip()
        for path, content in found.items()
    )
    state["share_right"] = right / max(1, len(expected.keys() | found.keys()))
    return float(state["share_right"] == 1.0)


def share_of_files(state) -> float:
    """Return the share of files, expected or existing, that are right."""
    return state.get("share_right", 0.0)


def gold_completion(row) -> list:
    """Return replies that get the full score for a row: one command, then a word."""
    arguments = json.dumps({"command": row["info"]["gold"]})
    return [[vf.ToolCall(id="call_0", name="bash", arguments=arguments)], "Done."]


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 80,
    max_turns: int = 8,
    seconds_per_command: float = 10.0,
    seed: int = 0,
) -> vf.Environment:
    """Tasks of eight kinds. `num_train_examples=-1` trains on an endless stream of tasks."""
    rubric = vf.Rubric(funcs=[files_are_right])
    rubric.add_metric(share_of_files)

    def endless() -> Iterator[dict]:
        return tasks("train", seed)

    return FileTasksEnv(
        timeout_per_command_seconds=seconds_per_command,
        memory_gb=0.25,
        disk_size_gb=0.0625,
        max_turns=max_turns,
        dataset=endless
        if num_train_examples == -1
        else lambda: list(islice(endless(), num_train_examples)),
        eval_dataset=lambda: list(islice(tasks("eval", seed), num_eval_examples)),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
    )

"""Find in a person's notes in which room a thing is; an MCP server gives access to the notes.

A row: {"question": "Notebook: eval-0. In which room is the spare key?", "answer": "cellar",
        "info": {"notebook": "eval-0", "thing": "spare key"}}
"""

import json
import sys
from pathlib import Path

from mcp_notes_server import notes

import verifiers as vf

SYSTEM_PROMPT = (
    "Answer the question with the help of the notes, which you can list, search and read with the tools. "
    "A thing may be kept together with another one that has a note of its own. "
    "When you know the room, put its name inside <answer> and </answer>."
)
SERVER = Path(__file__).with_name("mcp_notes_server.py")
MAX_HOPS = 6


def rows(split: str, count: int, hops: int, seed: int) -> list[dict]:
    """Each row has a separate notebook."""
    found = []
    for index in range(count):
        notebook = f"{split}-{index}"
        _, thing, room = notes(notebook, seed, hops)
        question = f"Notebook: {notebook}. In which room is the {thing}?"
        info = {"notebook": notebook, "thing": thing}
        found.append({"question": question, "answer": room, "info": info})
    return found


def is_right(completion, answer, parser) -> float:
    """Return 1.0 if the tagged text is the room."""
    written = (parser.parse_answer(completion) or "").strip().lower()
    return float(written.removeprefix("the ").rstrip(".") == answer)


def notes_read(completion) -> float:
    """Return the number of notes that were opened."""
    calls = [call for message in completion for call in message.get("tool_calls") or []]
    return float(sum(call["name"] == "read_note" for call in calls))


def gold_completion(row) -> list:
    """Return the replies that get the full score for a row: one search, then the answer."""
    arguments = {"notebook": row["info"]["notebook"], "word": row["info"]["thing"]}
    call = vf.ToolCall(id="call_0", name="search_notes", arguments=json.dumps(arguments))
    return [[call], f"<answer>{row['answer']}</answer>"]


def load_environment(
    num_train_examples: int = 500,
    num_eval_examples: int = 50,
    hops: int = 2,
    max_turns: int = 12,
    seed: int = 0,
) -> vf.Environment:
    """A thing is `hops` notes away from the first note that mentions it."""
    if not 0 <= hops <= MAX_HOPS:
        raise ValueError(f"hops must be from 0 to {MAX_HOPS}; got {hops}.")
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric(funcs=[is_right], parser=parser)
    rubric.add_metric(notes_read)
    server = {
        "name": "notes",
        "command": sys.executable,
        "args": [str(SERVER), "--seed", str(seed), "--hops", str(hops)],
    }
    return vf.MCPEnv(
        mcp_servers=[server],
        max_turns=max_turns,
        dataset=rows("train", num_train_examples, hops, seed),
        eval_dataset=rows("eval", num_eval_examples, hops, seed),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )

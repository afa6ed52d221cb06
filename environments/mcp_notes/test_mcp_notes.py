import pytest
from mcp_notes import gold_completion, load_environment
from mcp_notes_server import notes

from verifiers.testing import ScriptedClient, call, run


def results(output):
    return [m["content"] for m in output["completion"] if m["role"] == "tool"]


async def test_the_notes_are_read_through_the_server_and_lead_to_the_room():
    async with load_environment(num_eval_examples=2) as env:
        row = env.get_eval_dataset()[0]
        texts, thing, room = notes(row["info"]["notebook"], 0, 2)
        [first] = [title for title, text in texts.items() if text.startswith(f"I keep the {thing}")]
        book = row["info"]["notebook"]
        replies = [
            [call("list_notes", notebook=book), call("search_notes", notebook=book, word=thing)],
            [call("read_note", notebook=book, title=first)],
            [call("read_note", notebook=book, title="note 99")],
            f"<answer>The {room}.</answer>",
        ]
        [output] = await run(env, ScriptedClient(replies))
    listed, searched, read, missing = results(output)
    assert len(listed.split("\n")) == len(texts)
    assert first in searched
    assert read == texts[first]
    assert "There is no note" in missing
    assert (output["reward"], output["metrics"]["notes_read"]) == (1.0, 2.0)


async def test_the_gold_replies_score_full_and_a_guess_does_not():
    async with load_environment(num_eval_examples=1, hops=0, seed=5) as env:
        [row] = env.get_eval_dataset()
        [gold] = await run(env, ScriptedClient(gold_completion(row)))
        [guess] = await run(env, ScriptedClient(["<answer>on the roof</answer>"]))
    assert (gold["reward"], guess["reward"]) == (1.0, 0.0)


@pytest.mark.parametrize("hops", [0, 1, 3, 6])
def test_following_the_notes_takes_so_many_hops(hops):
    for number in range(20):
        texts, thing, room = notes(f"book {number}", seed=1, hops=hops)
        steps = 0
        while True:
            [text] = [
                t
                for t in texts.values()
                if t.startswith((f"I keep the {thing} ", f"The {thing} is"))
            ]
            if text.startswith("The"):
                break
            thing, steps = text.rstrip(".").split("together with the ")[1], steps + 1
        assert (steps, f"is in the {room}," in text) == (hops, True)


def test_notebooks_differ_and_depend_on_the_seed():
    assert notes("a", 0, 2) == notes("a", 0, 2)
    assert notes("a", 0, 2) != notes("b", 0, 2)
    assert notes("a", 0, 2) != notes("a", 1, 2)

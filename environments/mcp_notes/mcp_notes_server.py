"""The MCP server of `mcp-notes`: notebooks of short notes, identical in all processes with the same seed.

`python mcp_notes_server.py --seed 0 --hops 2` serves over stdio.
"""

import argparse
import random
from itertools import pairwise

THINGS = (
    *(
        "spare key",
        "passport",
        "torch",
        "sewing kit",
        "blue umbrella",
        "chess set",
        "camping stove",
        "old radio",
    ),
    *("guitar tuner", "stapler", "first-aid box", "tape measure"),
)
PLACES = (
    *(
        "attic",
        "cellar",
        "garage",
        "garden shed",
        "hall cupboard",
        "kitchen drawer",
        "piano stool",
        "wardrobe",
    ),
    *("red suitcase", "bookshelf", "tool box", "window sill"),
)
ROOMS = ("attic", "cellar", "study", "kitchen", "hall", "bedroom", "garage", "conservatory")


def notes(notebook: str, seed: int, hops: int) -> tuple[dict[str, str], str, str]:
    """Return the notes of a notebook (title → text), the thing in the question, and its room.

    One note says that the thing lies with a second thing, and so on for `hops` notes; the last of them names the
    room. The other notes are about other things.
    """
    numbers = random.Random(f"{seed} {hops} {notebook}")
    things = numbers.sample(THINGS, len(THINGS))
    chain, others = things[: hops + 1], things[hops + 1 :]
    room = numbers.choice(ROOMS)
    written = [
        (thing, f"I keep the {thing} together with the {beside}.")
        for thing, beside in pairwise(chain)
    ]
    place = numbers.choice(PLACES)
    written.append((chain[-1], f"The {chain[-1]} is in the {room}, by the {place}."))
    written += [
        (thing, f"The {thing} is in the {numbers.choice(ROOMS)}, by the {numbers.choice(PLACES)}.")
        for thing in others
    ]
    numbers.shuffle(written)
    titles = [f"note {number}" for number in range(1, len(written) + 1)]
    texts = dict(zip(titles, (text for _, text in written), strict=True))
    return texts, chain[0], room


def serve(seed: int, hops: int) -> None:
    """Serve over stdio until the client disconnects."""
    try:
        from mcp.server.mcpserver import MCPServer
    except ImportError:  # mcp 1
        from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[no-redef]

    server = MCPServer("notes", log_level="WARNING")

    @server.tool()
    def list_notes(notebook: str) -> list[str]:
        """The titles of a notebook's notes."""
        return list(notes(notebook, seed, hops)[0])

    @server.tool()
    def search_notes(notebook: str, word: str) -> list[str]:
        """The titles of the notes in a notebook that contain a word or phrase."""
        texts, _, _ = notes(notebook, seed, hops)
        return [title for title, text in texts.items() if word.lower() in text.lower()]

    @server.tool()
    def read_note(notebook: str, title: str) -> str:
        """The text of one note."""
        texts, _, _ = notes(notebook, seed, hops)
        if title not in texts:
            return f"There is no note {title!r}. The notes are: {', '.join(texts)}."
        return texts[title]

    server.run()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--hops", type=int, default=2)
    serve(**vars(options.parse_args()))

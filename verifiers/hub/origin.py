"""Where the environment in a folder was published: `.prime/.env-metadata.json`, as the public `prime` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verifiers.files import replace_file

FILE = Path(".prime") / ".env-metadata.json"
LEGACY_FILE = Path(".env-metadata.json")


def read_origin(folder: Path) -> dict[str, Any]:
    """What is known of the published environment that a folder belongs to; `{}` when nothing is."""
    for file in (folder / FILE, folder / LEGACY_FILE):
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # a note for convenience: without it the user names the environment
        if isinstance(value, dict):
            return value
    return {}


def write_origin(folder: Path, **known: Any) -> None:
    """Remember it; earlier keys stay. When owner or name change, the earlier ones become `forked_from`."""
    before = read_origin(folder)
    moved = before.get("name") and any(
        before.get(key) != known.get(key) for key in ("owner", "name")
    )
    if moved:
        parent = {
            key: before[key]
            for key in ("owner", "name", "environment_id", "version")
            if before.get(key)
        }
        chain = before.get("fork_chain")
        known = {
            "forked_from": parent,
            "origin": before.get("origin") or parent,
            "fork_chain": [*(chain if isinstance(chain, list) else []), parent],
            **known,
        }
    file = folder / FILE
    file.parent.mkdir(exist_ok=True)
    replace_file(file, json.dumps({**before, **known}, indent=2) + "\n")


def hub_id_of_folder(folder: Path) -> str | None:
    """`owner/name` of a folder that was pushed or pulled; None otherwise."""
    known = read_origin(folder)
    if isinstance(known.get("owner"), str) and isinstance(known.get("name"), str):
        return f"{known['owner']}/{known['name']}"
    return None


def known_hub_id(env: str) -> str | None:
    """`owner/name` of an environment named without its owner: of the folders it may be in; None when unknown."""
    module, plain = env.replace("-", "_"), env.replace("_", "-")
    places = [Path(env)] if env.startswith((".", "/", "~")) else []
    places += [
        Path("environments") / module,
        Path("environments") / plain,
        Path(plain),
        Path(module),
    ]
    for place in places:
        if (found := hub_id_of_folder(place.expanduser())) is not None:
            return found
    return None

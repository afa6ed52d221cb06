"""Where the environment in a folder was published: `.prime/.env-metadata.json`, in the format of the public `prime`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from verifiers.files import replace_file

FILE = Path(".prime") / ".env-metadata.json"
LEGACY_FILE = Path(".env-metadata.json")


def read_origin(folder: Path) -> dict[str, Any]:
    """Return the stored facts about a folder's published environment, or `{}`."""
    for file in (folder / FILE, folder / LEGACY_FILE):
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # The file is a convenience. Without it the user names the environment.
        if isinstance(value, dict):
            return value
    return {}


def write_origin(folder: Path, **known: Any) -> None:
    """Store facts; earlier keys stay. If owner or name change, the earlier ones become `forked_from`."""
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
    """Return `owner/name` of a folder that was pushed or pulled, or None."""
    known = read_origin(folder)
    if isinstance(known.get("owner"), str) and isinstance(known.get("name"), str):
        return f"{known['owner']}/{known['name']}"
    return None


def known_hub_id(env: str) -> str | None:
    """Return `owner/name` of an environment given without its owner, from the folders it may be in, or None."""
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

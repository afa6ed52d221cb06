"""v0 import path. Reads the address of a tunnel in the output of `cloudflared`."""

from __future__ import annotations

import re

_URL = re.compile(r"https://[^\s|/]*\.trycloudflare\.com[^\s]*")


def extract_tunnel_url_from_line(line: str) -> str | None:
    """Return the address of a quick tunnel in a line of its output, without a trailing slash; None if there is none."""
    match = _URL.search(line)
    return match.group().rstrip("/") if match else None

"""What `cloudflared` says, for those who run a tunnel of their own and pass its address as `interception_url`."""

from __future__ import annotations

import re

_URL = re.compile(r"https://[^\s|/]*\.trycloudflare\.com[^\s]*")


def extract_tunnel_url_from_line(line: str) -> str | None:
    """The address of a quick tunnel in a line of its output, without a slash at the end; None if there is none."""
    found = _URL.search(line)
    return found.group().rstrip("/") if found else None

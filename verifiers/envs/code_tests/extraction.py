"""The program in a completion."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$")
PYTHON_LANGUAGES = frozenset({"", "python", "python3", "py", "py3"})


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language in lower case, content) of every closed fenced block of Markdown, in their order."""
    blocks: list[tuple[str, str]] = []
    fence, language, lines = "", "", list[str]()
    for line in text.splitlines():
        match = _FENCE.match(line)
        if not fence:
            if match:
                fence, language, lines = match[1], match[2].lower(), []
        elif match and match[1].startswith(fence) and not match[2]:
            blocks.append((language, "\n".join(lines)))
            fence = ""
        else:
            lines.append(line)
    return blocks


def extract_code(text: str) -> str:
    """The last closed fenced block that is Python or names no language, else the last one of all, else ""."""
    blocks = fenced_blocks(text)
    for language, content in reversed(blocks):
        if language in PYTHON_LANGUAGES:
            return content
    return blocks[-1][1] if blocks else ""

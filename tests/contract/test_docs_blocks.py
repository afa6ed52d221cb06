"""Every Python and bash block of the documentation runs, without a network.

Blocks of one page run in their order, in one process, in an empty folder, and share their names. A block opened with
```python no-run is only compiled; the HTML comment right before it must say why it cannot run.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/trainers").glob("*.md")),
]
FENCE = re.compile(r"^```(\w+)?[ ]?(.*)$")
LANGUAGES = {"python", "bash", "text", "toml", "json", "jsonl", "mermaid", "xml", "html", "yaml"}
LIMIT_S = 150.0


class Block(NamedTuple):
    language: str
    options: str
    line: int
    text: str
    reason: str
    """The HTML comment right before the block."""


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    inside: list[str] | None = None
    language = options = reason = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if inside is None:
            if fence:
                inside, start = [], number
                language, options = fence[1] or "", fence[2]
            elif line.strip():
                comment = re.fullmatch(r"<!--(.*)-->", line.strip())
                reason = comment[1].strip() if comment else ""
        elif line == "```":
            found.append(Block(language, options, start, "\n".join(inside), reason))
            inside, reason = None, ""
        else:
            inside.append(line)
    assert inside is None, f"{page.name}: the block of line {start} has no end"
    return found


def script(page: Path) -> str:
    """The blocks of a page as one program, each compiled under the page's name and its own line numbers."""
    steps = ["import ast, asyncio, subprocess, sys, types", "here = {'__name__': '__main__'}"]
    for block in blocks(page):
        if block.language == "python" and "no-run" not in block.options:
            source = "\n" * block.line + block.text
            steps.append(f"run_python({source!r})")
        elif block.language == "bash":
            steps.append(f"run_bash({block.text!r}, {block.line})")
    return PRELUDE.format(page=page.name) + "\n".join(steps[1:])


PRELUDE = """
import ast, asyncio, inspect, subprocess, sys
def run_python(source):
    code = compile(source, {page!r}, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, here)
    if inspect.iscoroutine(value):
        asyncio.run(value)
def run_bash(text, line):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{page}:{{line}}: exit code {{done.returncode}}\\n{{done.stdout}}{{done.stderr}}")
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    if not any(block.language in ("python", "bash") for block in blocks(page)):
        pytest.skip("no code on this page")
    (tmp_path / "page.py").write_text(script(page), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **OFFLINE,
        },
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


OFFLINE = {"HF_HUB_OFFLINE": "1", "UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_names_its_language_and_says_why_it_does_not_run(page: Path) -> None:
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: say which language the block is in"
        if block.language == "python":
            ast.parse(block.text)
        if "no-run" in block.options:
            assert block.reason, (
                f"{where}: say in <!-- a comment --> before the block why it cannot run"
            )


def test_a_block_that_fails_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\ntext\n```python\nassert x == 2, 'noticed'\n```\n")
    (tmp_path / "page.py").write_text(script(page))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert 'File "page.md", line 6' in done.stderr

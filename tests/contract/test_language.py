"""The style sheet of CONTRIBUTING.md, as far as a pattern can hold it: phrases that plain English does not need."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

BANNED = {
    r"(?<!\bthere )\b(?:is|are|was|were|be) no (?!(?:longer|more|less|later|earlier|fewer|greater|larger|smaller)\b)\w+":
        "write `is not a …`",
    r"\b(?:is|are|was|were) none\b": "write what is missing",
    r"\b(?:nobody|whoever|somebody|anybody|everybody|no one|whatever|whichever)\b": "name the person or the thing",
    r"\b(?:is|are|was|were|be|been|being) (?:told|said|heeded|spoken)\b": "name the sender and write `receives`, `reports` or `prints`",
    r"\b(?:so|as) many(?! (?:\w+ )?as\b)": "write the number or `that many …`",
    r"\bhow often\b": "write `how many times`",
    r"\b(?:knows|complains|complained|wishes|speaks|understands|believes|forgets|remembers)\b": "name what the code does: stores, accepts, raises, supports",
    r"\b(?:at the most|at the least)\b": "write `at most`, `at least`",
    r"(?:^|[.;:] )(?:Most|Longest|Fewest|Shortest) (?!of\b)\w+": "write `Maximum …` or `Minimum …`",
    r"(?:^|[.;] )(?:Were|Had|Should) (?:the|it|a|an|this|that|they|there|started|begun)\b[^?]*$": "write `If …`",
    r"(?:^|[.;] )(?:What|Whose) [^?.;:]*(?:[.;:]|$)(?!\?)": "begin with a noun",
    r"\b(?:thing|way|place|one|word|name)s? (?:of|for) its own\b|\bof (?:its|their|our|one's) own\b": "write `separate`, `own …`",
    r"\bbotch|\bbefall|\bbefell\b|\bmend(?:s|ed|ing)?\b|\banew\b|\bhitherto\b|\bthereof\b": "use the common word",
}
"""Pattern → what to write instead."""
PATTERNS = [(re.compile(pattern, re.MULTILINE), advice) for pattern, advice in BANNED.items()]

PYTHON = sorted(
    path
    for package in ("verifiers", "hub_server", "cli", "environments")
    for path in (ROOT / package).rglob("*.py")
)
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "environments").rglob("*.md")]
)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every comment, docstring and message of a module."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every line of a page outside of code blocks."""
    in_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, line


def findings(path: Path) -> list[str]:
    read = texts if path.suffix == ".py" else prose
    return [
        f"{path.relative_to(ROOT)}:{line}: {found.group(0).strip()!r}: {advice}"
        for line, text in read(path)
        for pattern, advice in PATTERNS
        for found in pattern.finditer(text)
    ]


@pytest.mark.parametrize("path", [*PYTHON, *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_text_is_free_of_banned_phrases(path: Path) -> None:
    assert findings(path) == []

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
    "write `is not a …`": r"(?<![Tt]here )\b(?:is|are|was|were|be) no "
    r"(?!(?:longer|more|less|later|earlier|fewer|greater|larger|smaller)\b)\w+",
    "write which value is missing": r"(?<![Tt]here )\b(?:is|are|was|were) none\b",
    "name the person or the thing": r"\b(?:nobody|whoever|somebody|anybody|everybody|no one|whatever|whichever)\b",
    "write `receives`, `reports` or `prints`": r"\b(?:is|are|was|were|be|been|being) (?:told|said|heeded|spoken)\b",
    "write the number or `that many`": r"\b(?:so|as) many(?! (?:\w+ )?as\b)",
    "write `how many times`": r"\bhow often\b",
    "write `stores`, `accepts`, `supports` or `raises`": r"\b(?:knows|complain(?:s|ed)|wishes|speaks|understands"
    r"|believes|forgets|remembers)\b",
    "write `at most` or `at least`": r"\bat the (?:most|least)\b",
    "write `Maximum …` or `Minimum …`": r"(?:^|[.;:] )(?:Most|Longest|Fewest|Shortest) (?!of\b)\w+",
    "write `If …`": r"(?:^|[.;] )(?:Were|Had|Should) (?:the|it|a|an|this|that|they|there|started)\b[^?]*$",
    "begin with a noun": r"(?:^|[.;] )(?:What|Whose) (?![^.;:]*\?)[^?.;:]{12,}(?:[.;:]|$)",
    "write `separate` or `own …`": r"\b(?:thing|way|place|one|word|name)s? (?:of|for) its own\b"
    r"|\bof (?:its|their|our|one's) own\b",
    "use the common word": r"\bbotch|\bbefall|\bbefell\b|\bmend(?:s|ed|ing)?\b|\banew\b",
}
"""Advice → pattern of the phrases it is about."""
PATTERNS = [(re.compile(pattern, re.MULTILINE), advice) for advice, pattern in BANNED.items()]

CHECKED = (
    "verifiers",
    "hub_server",
    "cli",
    "docs",
    "environments/*/README.md",
    "README.md",
    "CHANGELOG.md",
)
"""Folders and pages that follow the style sheet. CONTRIBUTING.md quotes what it forbids."""


def checked() -> Iterator[Path]:
    for name in CHECKED:
        path = ROOT / name
        if path.is_dir():
            yield from sorted([*path.rglob("*.py"), *path.rglob("*.md")])
        else:
            yield from sorted(ROOT.glob(name))


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


@pytest.mark.parametrize("path", list(checked()), ids=lambda p: str(p.relative_to(ROOT)))
def test_text_is_free_of_banned_phrases(path: Path) -> None:
    assert findings(path) == []

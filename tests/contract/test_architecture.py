"""docs/architecture.md and docs/decisions/ describe the code that exists: folders, layers, features and records."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def table(heading: str) -> list[list[str]]:
    """Cells of every row of the first table below a heading, without the header row."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def packages(folder: str, depth: int = 1) -> set[str]:
    """Folders of a source tree with Python modules in them, to a depth, with a final slash."""
    return {
        f"{path.parent.relative_to(ROOT)}/"
        for path in (ROOT / folder).rglob("*.py")
        if 1 <= len(path.parent.relative_to(ROOT / folder).parts) <= depth
        and "templates" not in path.parts
    }


FOLDERS = {code(row[0])[0]: row for row in table("Folders")}
FEATURES = table("Where is …?")


def test_every_folder_of_the_source_is_in_the_table() -> None:
    expected = packages("verifiers") | packages("hub_server") | packages("cli", 2) | {"hub_server/"}
    expected |= packages("tests") | {"environments/"}
    listed = set(FOLDERS)
    missing = {name for name in expected - listed if not (ROOT / name).name.startswith("__")}
    assert not missing, f"docs/architecture.md, Folders: no row for {sorted(missing)}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_table_exists_and_names_the_file_to_read_first(folder: str) -> None:
    assert (ROOT / folder).is_dir(), f"{folder} does not exist"
    first = code(FOLDERS[folder][2])
    assert first, f"{folder}: the table names no file to read first"
    for name in first:
        assert (ROOT / folder / name).exists(), f"{folder}{name} does not exist"


def defined(path: Path) -> set[str]:
    """Names that a module defines: functions, classes, `Class.method`, constants and fields."""
    names: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(prefix + node.target.id)
            elif isinstance(node, ast.Assign):
                names.update(prefix + t.id for t in node.targets if isinstance(t, ast.Name))
            elif isinstance(node, ast.If | ast.Try):
                visit(node.body, prefix)

    visit(ast.parse(path.read_text()).body, "")
    return names


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row[0])
def test_a_feature_is_where_the_page_says(row: list[str]) -> None:
    """`path.py` exists, and each name after it in brackets, `path.py` (`name`, `Class.name`), is defined there."""
    for cell in row[1:]:
        entries = re.findall(r"`([^`]+\.\w+|[^`]+/)`(?: \(([^)]*)\))?", cell)
        assert entries, f"{row[0]}: no file in {cell!r}"
        for name, inside in entries:
            path = ROOT / name
            assert path.exists(), f"{row[0]}: {name} does not exist"
            for symbol in code(inside):
                assert symbol in defined(path), f"{row[0]}: {name} does not define {symbol}"


def test_decision_records_are_numbered_without_gaps_and_listed() -> None:
    assert [path.name[:4] for path in DECISIONS] == [
        f"{n:04}" for n in range(1, len(DECISIONS) + 1)
    ]
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    navigation = (ROOT / "zensical.toml").read_text()
    for path in DECISIONS:
        title = path.read_text().splitlines()[0]
        assert title.startswith(f"# {path.name[:4]} "), f"{path.name} begins with {title!r}"
        assert f"[{path.name[:4]}]({path.name})" in index, f"index.md does not list {path.name}"
        assert f'"decisions/{path.name}"' in navigation, f"zensical.toml does not list {path.name}"


@pytest.mark.parametrize("path", DECISIONS, ids=lambda p: p.name)
def test_a_decision_names_existing_tests(path: Path) -> None:
    enforced = path.read_text().split("**Enforced by.**", 1)[1].split("\n\n")[0]
    assert code(enforced)
    for name in code(enforced):
        assert (ROOT / name).exists(), f"{path.name}: {name} does not exist"

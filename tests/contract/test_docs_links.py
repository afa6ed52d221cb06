"""Links between pages lead somewhere, every page can be reached from the README, and what pages name exists.

Links to other hosts are not followed: tests do not leave the machine.
"""

import re
from itertools import chain, takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "environments").glob("*/README.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"``[^\n]+?``|`[^`\n]+`")
COMMAND = re.compile(r"(?:^|[\s`$(|&;])((?:vf-[a-z]+|prime(?: [a-z][a-z-]*)*))\b([^\n`|#]*)")
PATH = re.compile(
    r"(?:verifiers|hub_server|cli|tests|environments|docs)/[\w./-]*\w\.(?:py|md|toml|json)"
)


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its code blocks, which may hold anything."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return LINK.findall(CODE.sub("``", prose(page)))


def anchors(page: Path) -> set[str]:
    """The fragments that headings of a page can be linked by, as GitHub makes them."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return names


def is_outside(link: str) -> bool:
    return re.match(r"[a-z]+:", link) is not None


def target(page: Path, link: str) -> Path:
    path = link.partition("#")[0]
    return (page.parent / path).resolve() if path else page


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    broken = []
    for link in links(page):
        if is_outside(link):
            continue
        to, fragment = target(page, link), link.partition("#")[2]
        if not to.exists() or (
            fragment and to.suffix == ".md" and fragment.lower() not in anchors(to)
        ):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    frontier = list(reached)
    while frontier:
        page = frontier.pop()
        for link in links(page):
            to = page if is_outside(link) else target(page, link)
            found = sorted(to.glob("*.md")) if to.is_dir() else [to]
            for one in found:
                if one.suffix == ".md" and one not in reached and one.exists():
                    reached.add(one)
                    frontier.append(one)
    pages = {page for page in PAGES if "docs" in page.relative_to(ROOT).parts}
    assert sorted(map(shown, pages - reached)) == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],
    ids=shown,
)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = chain.from_iterable(PATH.findall(code) for code in CODE.findall(prose(page)))
    missing = {
        name for name in named if not any((base / name).exists() for base in (ROOT, page.parent))
    }
    assert missing == set()


def options_of_commands() -> dict[str, set[str]]:
    """`vf-eval` → its options, short and long, from the generated reference."""
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    command = ""
    for line in page.splitlines():
        if heading := re.match(r"#{2,3} (\S.*)", line):
            command = heading[1]
            found[command] = {"--help"}
        elif line.startswith("|") and command:
            found[command].update(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", line.split("|")[1]))
    return found


OPTIONS = options_of_commands()


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_commands_are_shown_with_options_they_have(page: Path) -> None:
    if page.name == "cli.md":
        pytest.skip("that is the reference itself")
    wrong = []
    for line in page.read_text(encoding="utf-8").splitlines():
        for command, rest in COMMAND.findall(line):
            words = [command, *takewhile(re.compile("[a-z]").match, rest.split())]
            names = [" ".join(words[:end]) for end in range(len(words), 0, -1)]
            known = next((OPTIONS[name] for name in names if name in OPTIONS), None)
            if known is None:
                continue
            used = re.findall(r"(?<=\s)--[a-z][\w-]*", re.sub(r"'[^']*'|\"[^\"]*\"", "", rest))
            wrong += [f"{command} {option}" for option in used if option not in known]
    assert wrong == []


def test_what_the_tests_above_look_for_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# A *first* `vf-x`: heading\n## Twice\n## Twice\n[a](other.md#b) [c](<d.md> "e") `[no](x)`\n'
        "```text\n[no](y)\n```\n"
    )
    assert links(page) == ["other.md#b", "d.md"]
    assert anchors(page) == {"a-first-vf-x-heading", "twice", "twice-1"}
    assert {"--num-examples", "-n", "--resume"} <= OPTIONS["vf-eval"]
    assert COMMAND.findall("run `vf-eval my-env -n 3 --yes` now") == [
        ("vf-eval", " my-env -n 3 --yes")
    ]

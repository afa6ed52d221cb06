"""The documentation site: every page is in the navigation, and no page needs the network."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe|source)[^>]*?(?:src|href)=\"?(https?://[^\" >]+)")


def pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from pages(value)


def test_the_navigation_of_the_site_names_every_page_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    docs = ROOT / config["project"]["docs_dir"]
    written = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    assert sorted(pages(config["project"]["nav"])) == written


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "zensical.toml", folder)
    built = subprocess.run(
        [str(Path(sys.executable).with_name("zensical")), "build", "--strict"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_the_site_is_built_without_a_warning_and_has_every_page(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert {path.with_suffix(".html") for path in written} <= built


def test_no_page_of_the_site_loads_anything_from_another_host(site: Path) -> None:
    loaded = {
        f"{page.relative_to(site)}: {url}"
        for page in site.rglob("*.html")
        for url in LOADED.findall(page.read_text())
    }
    assert loaded == set()


def test_the_search_index_of_the_site_holds_the_text_of_its_pages(site: Path) -> None:
    assert "vf-eval" in (site / "search.json").read_text()

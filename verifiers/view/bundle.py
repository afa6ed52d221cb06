"""A run as a folder of static files, which any file server can serve: the same pages, without filter and search.

    index.html            the run
    rollouts-1.html …     the table of rollouts, in the order of the run
    examples-1.html …     the table of examples
    example/CODE.html     all rollouts of one example
    rollout/ROW.html      a rollout; ROW-2.html … are further parts of its messages
    raw/ROW.json          the saved line
    static/               style sheet and modules

Links are relative. Each page has the content security policy in a `meta` element.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError
from verifiers.files import replace_file
from verifiers.view import transcript
from verifiers.view.pages import PAGE, Choice, Viewer
from verifiers.view.rendering import STATIC, static_file
from verifiers.view.sources import FolderRun


class BundleLinks:
    """Addresses of files, relative to a page that is `depth` folders below the top."""

    is_static = True

    def __init__(self, depth: int) -> None:
        self._up = "../" * depth

    def runs(self) -> str:
        """Return the address of the run: a bundle has no list of runs."""
        return self.run("")

    def run(self, key: str) -> str:
        """Return the address of the run."""
        return f"{self._up}index.html"

    def rollouts(self, key: str, **query: Any) -> str:
        """Return the address of a page of the table; it is not filtered."""
        return f"{self._up}rollouts-{query.get('page') or 1}.html"

    def examples(self, key: str, **query: Any) -> str:
        """Return the address of a page of the table of examples."""
        return f"{self._up}examples-{query.get('page') or 1}.html"

    def example(self, key: str, code: int) -> str:
        """Return the address of all rollouts of one example."""
        return f"{self._up}example/{code}.html"

    def rollout(self, key: str, row: int, **query: Any) -> str:
        """Return the address of a rollout, or of a further part of its messages."""
        page = query.get("page") or 1
        return f"{self._up}rollout/{row}{f'-{page}' if page > 1 else ''}.html"

    def raw(self, key: str, row: int) -> str:
        """Return the address of the saved line of a rollout."""
        return f"{self._up}raw/{row}.json"

    def message(self, key: str, row: int, number: int) -> str:
        """Return the address of the saved line, which contains the whole text of the message."""
        return self.raw(key, row)

    def compare(self, keys: list[str], **query: Any) -> str:
        """Return the address of the run: a bundle has one run."""
        return self.run("")

    def static(self, name: str) -> str:
        """Return the address of a static file."""
        return f"{self._up}static/{name}"


class _OneRun:
    """A source with one run."""

    def __init__(self, run: FolderRun) -> None:
        self._run = run

    def runs(self) -> list[Any]:
        return [self._run]

    def run(self, key: str) -> FolderRun:
        return self._run


def write_bundle(folder: Path, target: Path) -> int:
    """Write the pages of the run in `folder` into `target`. Return the number of pages.

    Raises ConfigError if `target` contains other files than those of a bundle.
    """
    if target.exists() and any(target.iterdir()) and not (target / "static" / "view.css").is_file():
        raise ConfigError(
            f"{target} is not empty and contains no bundle. Choose a new folder; no file is overwritten."
        )
    run = FolderRun(folder, f"{folder.parent.name}/{folder.name}")
    source = _OneRun(run)
    top, below = (Viewer(source, BundleLinks(depth), may_write=False) for depth in (0, 1))
    for viewer in (top, below):
        viewer.patience_s = None
    columns = run.columns()
    for name in ("static", "example", "rollout", "raw"):
        (target / name).mkdir(parents=True, exist_ok=True)
    for name in STATIC:
        replace_file(target / "static" / name, static_file(name))
    pages = {"index.html": top.run(run.key)}
    pages |= {
        f"rollouts-{page}.html": top.rollouts(run.key, Choice(), page)
        for page in range(1, max(1, -(-columns.count // PAGE)) + 1)
    }
    pages |= {
        f"examples-{page}.html": top.examples(run.key, page=page)
        for page in range(1, max(1, -(-len(columns.example_ids) // PAGE)) + 1)
    }
    count = _write_all(target, pages)
    for code in range(len(columns.example_ids)):
        count += _write_all(target, {f"example/{code}.html": below.example(run.key, code)})
    for row in range(columns.count):
        count += _write_all(target, _rollout_pages(below, run, row))
        replace_file(target / "raw" / f"{row}.json", run.line(row))
    return count


def _rollout_pages(viewer: Viewer, run: FolderRun, row: int) -> dict[str, str]:
    messages = len(transcript.conversation(run.output(row)))
    parts = max(1, -(-messages // transcript.PAGE))
    return {
        f"rollout/{row}{f'-{part}' if part > 1 else ''}.html": viewer.rollout(
            run.key, row, page=part
        )
        for part in range(1, parts + 1)
    }


def _write_all(target: Path, pages: dict[str, str]) -> int:
    for name, html in pages.items():
        replace_file(target / name, html.encode("utf-8", "replace"))
    return len(pages)

"""Templates and addresses of the pages. Every value is escaped; the templates contain no script and no style."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from verifiers.view import charts
from verifiers.view.formats import FORMATS
from verifiers.view.transcript import visible

STATIC = {
    "view.css": "text/css; charset=utf-8",
    "view.js": "text/javascript; charset=utf-8",
    "keys.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "table.js": "text/javascript; charset=utf-8",
}
"""Static file → content type."""


class Links(Protocol):
    """Addresses of pages, relative to the server's root or to a static page."""

    is_static: bool
    """Whether the pages are files, without a server that filters and searches."""

    def runs(self) -> str:
        """Return the address of the list of runs."""
        ...

    def run(self, key: str) -> str:
        """Return the address of a run."""
        ...

    def rollouts(self, key: str, **query: Any) -> str:
        """Return the address of the table of rollouts."""
        ...

    def examples(self, key: str, **query: Any) -> str:
        """Return the address of the table of examples."""
        ...

    def example(self, key: str, code: int) -> str:
        """Return the address of all rollouts of one example."""
        ...

    def rollout(self, key: str, row: int, **query: Any) -> str:
        """Return the address of a rollout."""
        ...

    def raw(self, key: str, row: int) -> str:
        """Return the address of the saved line of a rollout."""
        ...

    def message(self, key: str, row: int, number: int) -> str:
        """Return the address of the whole text of a message."""
        ...

    def compare(self, keys: list[str], **query: Any) -> str:
        """Return the address of the comparison of runs."""
        ...

    def static(self, name: str) -> str:
        """Return the address of a static file."""
        ...


def with_query(path: str, query: dict[str, Any]) -> str:
    """Return a path with the parameters that have a value."""
    kept = {name: value for name, value in query.items() if value not in (None, "", 0)}
    return f"{path}?{urlencode(kept, doseq=True, errors='replace')}" if kept else path


class ServerLinks:
    """Addresses below `prefix` of a server."""

    is_static = False

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def runs(self) -> str:
        """Return the address of the list of runs."""
        return f"{self.prefix}/"

    def run(self, key: str) -> str:
        """Return the address of a run."""
        return f"{self.prefix}/runs/{quote(key, safe='')}"

    def rollouts(self, key: str, **query: Any) -> str:
        """Return the address of the table of rollouts."""
        return with_query(f"{self.run(key)}/rollouts", query)

    def examples(self, key: str, **query: Any) -> str:
        """Return the address of the table of examples."""
        return with_query(f"{self.run(key)}/examples", query)

    def example(self, key: str, code: int) -> str:
        """Return the address of all rollouts of one example."""
        return f"{self.run(key)}/examples/{code}"

    def rollout(self, key: str, row: int, **query: Any) -> str:
        """Return the address of a rollout."""
        return with_query(f"{self.run(key)}/rollouts/{row}", query)

    def raw(self, key: str, row: int) -> str:
        """Return the address of the saved line of a rollout."""
        return f"{self.rollout(key, row)}/raw"

    def message(self, key: str, row: int, number: int) -> str:
        """Return the address of the whole text of a message."""
        return f"{self.rollout(key, row)}/messages/{number}"

    def compare(self, keys: list[str], **query: Any) -> str:
        """Return the address of the comparison of runs."""
        return with_query(f"{self.prefix}/compare", {"run": keys, **query})

    def static(self, name: str) -> str:
        """Return the address of a static file."""
        return f"{self.prefix}/static/{name}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("verifiers.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FORMATS)
    environment.filters["visible"] = lambda value: visible(str(value))
    environment.globals["charts"] = charts
    return environment


def render(template: str, links: Links, **values: Any) -> str:
    """Return a page as HTML."""
    return _environment().get_template(template).render(url=links, **values)


@cache
def static_file(name: str) -> bytes:
    """Return the content of a static file. Raises KeyError for a name that is not in `STATIC`."""
    if name not in STATIC:
        raise KeyError(name)
    return (files("verifiers.view") / "static" / name).read_bytes()

"""Rendering of index pages: PEP 503 and 691 with 592, 629, 658, 700, 714 and 792. Pure.

PEP 833 froze the HTML form; new fields are added to the JSON form only.
"""

import gzip
import hashlib
from collections.abc import Callable
from html import escape
from typing import NamedTuple

import orjson
import zstandard

API_VERSION = "1.4"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"
PLAIN_HTML_TYPE = "text/html"
_WORTH_PACKING_BYTES = 600


class IndexFile(NamedTuple):
    """A wheel on a project's page."""

    filename: str
    url: str
    """Relative to the page, so that it is correct behind any proxy and prefix."""
    sha256: str
    size_bytes: int
    upload_time: str
    requires_python: str | None
    metadata_sha256: str | None
    yanked_reason: str | None
    """None if the version is not yanked; an empty text yanks without a reason."""


class ProjectListing(NamedTuple):
    """Content of a project's page."""

    name: str
    status: str
    status_reason: str | None
    serial: int
    versions: list[str]
    files: list[IndexFile]


class Rendered(NamedTuple):
    """A page in one form, ready to be sent."""

    content_type: str
    etag: str
    identity: bytes
    gzip: bytes | None
    zstd: bytes | None


class Page(NamedTuple):
    """A page in all its forms."""

    json: Rendered
    html: Rendered
    plain_html: Rendered
    serial: int


def project_page(listing: ProjectListing) -> Page:
    """Return a project's page."""
    return _page(lambda: _project_json(listing), lambda: _project_html(listing), listing.serial)


def root_page(names: list[str], serial: int) -> Page:
    """Return the page that lists projects, by normalized name."""
    body = {
        "meta": {"api-version": API_VERSION, "_last-serial": serial},
        "projects": [{"name": name, "_last-serial": serial} for name in names],
    }
    links = "".join(f'<a href="{escape(n)}/">{escape(n)}</a><br>\n' for n in names)
    return _page(lambda: orjson.dumps(body), lambda: _html("Simple index", "", links), serial)


def _page(json: Callable[[], bytes], html: Callable[[], bytes], serial: int) -> Page:
    html_body = html()
    return Page(
        json=_rendered(JSON_TYPE, json()),
        html=_rendered(HTML_TYPE, html_body),
        plain_html=_rendered(f"{PLAIN_HTML_TYPE}; charset=utf-8", html_body),
        serial=serial,
    )


def _rendered(content_type: str, body: bytes) -> Rendered:
    worth_it = len(body) >= _WORTH_PACKING_BYTES
    return Rendered(
        content_type=content_type,
        etag=hashlib.sha256(content_type.encode() + body).hexdigest()[:32],
        identity=body,
        gzip=gzip.compress(body, 6, mtime=0) if worth_it else None,
        zstd=zstandard.ZstdCompressor(level=6).compress(body) if worth_it else None,
    )


def _project_json(listing: ProjectListing) -> bytes:
    files = []
    for file in listing.files:
        metadata = {"sha256": file.metadata_sha256} if file.metadata_sha256 else False
        entry = {
            "filename": file.filename,
            "url": file.url,
            "hashes": {"sha256": file.sha256},
            "size": file.size_bytes,
            "upload-time": file.upload_time,
            "yanked": (file.yanked_reason or True) if file.yanked_reason is not None else False,
            "core-metadata": metadata,
            # The name of the same field before PEP 714, for pip 23.0 and older.
            "data-dist-info-metadata": metadata,
            "provenance": None,
        }
        if file.requires_python:
            entry["requires-python"] = file.requires_python
        files.append(entry)
    status: dict[str, str] = {"status": listing.status}
    if listing.status_reason:
        status["reason"] = listing.status_reason
    return orjson.dumps(
        {
            "meta": {"api-version": API_VERSION, "_last-serial": listing.serial},
            "name": listing.name,
            "project-status": status,
            "versions": listing.versions,
            "files": files,
        }
    )


def _project_html(listing: ProjectListing) -> bytes:
    meta = f'<meta name="pypi:project-status" content="{escape(listing.status)}">\n'
    if listing.status_reason:
        reason = escape(listing.status_reason)
        meta += f'<meta name="pypi:project-status-reason" content="{reason}">\n'
    links = []
    for file in listing.files:
        attributes = ""
        if file.requires_python:
            attributes += f' data-requires-python="{escape(file.requires_python)}"'
        if file.metadata_sha256:
            attributes += f' data-core-metadata="sha256={file.metadata_sha256}"'
            attributes += f' data-dist-info-metadata="sha256={file.metadata_sha256}"'
        if file.yanked_reason is not None:
            attributes += f' data-yanked="{escape(file.yanked_reason)}"'
        href = escape(f"{file.url}#sha256={file.sha256}")
        links.append(f'<a href="{href}"{attributes}>{escape(file.filename)}</a><br>\n')
    return _html(f"Links for {listing.name}", meta, "".join(links))


def _html(title: str, meta: str, links: str) -> bytes:
    return (
        "<!DOCTYPE html>\n<html>\n<head>\n"
        f'<meta name="pypi:repository-version" content="{API_VERSION}">\n{meta}'
        f"<title>{escape(title)}</title>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{links}</body>\n</html>\n"
    ).encode()


# --- negotiation ------------------------------------------------------------------------------

_OFFERED = {
    JSON_TYPE: "json",
    "application/vnd.pypi.simple.latest+json": "json",
    HTML_TYPE: "html",
    "application/vnd.pypi.simple.latest+html": "html",
    PLAIN_HTML_TYPE: "plain_html",
}
_WILDCARDS = {
    "*/*": "plain_html",
    "text/*": "plain_html",
    "application/*": "json",
}


def negotiate(accept: str, format_parameter: str = "") -> str | None:
    """Return `json`, `html` or `plain_html` for an Accept header (or `?format=`); None means 406.

    An exact type wins over a wildcard: poetry sends `…v1+json, */*;q=0.1`.
    """
    if format_parameter:
        return _OFFERED.get(format_parameter)
    best, best_key = None, (0.0, False)
    for part in (accept or "*/*").split(","):
        media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        exact = media_type in _OFFERED
        form = _OFFERED.get(media_type) or _WILDCARDS.get(media_type)
        if form is not None and quality > 0 and (quality, exact) > best_key:
            best, best_key = form, (quality, exact)
    return best


def choose_encoding(accept_encoding: str) -> str:
    """Return `zstd`, `gzip` or `identity`: the smallest encoding that the client accepts."""
    offered = {}
    for part in accept_encoding.lower().split(","):
        coding, _, parameter = part.partition(";")
        offered[coding.strip()] = parameter.strip().removeprefix("q=") not in ("0", "0.0", "0.00")
    for coding in ("zstd", "gzip"):
        if offered.get(coding, False):
            return coding
    return "identity"


def matches_etag(if_none_match: str, etag: str) -> bool:
    """Return whether the client's copy is current. Weak and strong tags compare alike for GET."""
    if if_none_match.strip() == "*":
        return True
    return any(
        tag.strip().removeprefix("W/").strip('"') == etag for tag in if_none_match.split(",")
    )


class ByteRange(NamedTuple):
    """The bytes from `start` up to `end` (exclusive)."""

    start: int
    end: int


class RangeNotSatisfiable(ValueError):
    """The range lies outside of the file."""


def parse_range(header: str, size_bytes: int) -> ByteRange | None:
    """Return the one range of a Range header, or None if the whole file is the answer.

    Several ranges are answered with the whole file: no client of an index needs them, and an attacker could use them
    to keep a server busy. Raises RangeNotSatisfiable.
    """
    unit, _, spec = header.partition("=")
    first, dash, last = spec.strip().partition("-")
    digits_only = (first.strip() + last.strip()).isdecimal()
    if unit.strip().lower() != "bytes" or not dash or "," in spec or not digits_only:
        return None
    if len(first) > 18 or len(last) > 18:
        raise RangeNotSatisfiable
    if not first.strip():
        suffix = int(last)
        if suffix == 0:
            raise RangeNotSatisfiable
        return ByteRange(max(0, size_bytes - suffix), size_bytes)
    start = int(first)
    end = min(int(last) + 1, size_bytes) if last.strip() else size_bytes
    if last.strip() and int(last) < start:
        return None
    if start >= size_bytes:
        raise RangeNotSatisfiable
    return ByteRange(start, end)

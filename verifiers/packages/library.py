"""This library as a wheel, built from its installed files: for a hub that serves it, and for other virtual
environments.

Package indexes have a different package of the same name, so the wheel is passed along where this library is needed.
This needs neither a build backend nor a clone: every installation, editable or not, has all files of the wheel.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import NamedTuple

NAME = "verifiers"
PACKAGES = ("verifiers", "hub_server", "vf_cli")
_NOT_SHIPPED = frozenset({"__pycache__", "outputs", "build", "dist"})
_EARLY = (1980, 1, 1, 0, 0, 0)


class LibraryMissing(RuntimeError):
    """The library runs from files that do not belong to an installed distribution."""


class Library(NamedTuple):
    """The installed library as the files of a wheel."""

    version: str
    contents: dict[str, bytes]
    """Path in the wheel → bytes, without METADATA, WHEEL and RECORD."""
    metadata: str

    @property
    def sha256(self) -> str:
        """A hash of everything but the version."""
        digest = hashlib.sha256(_VERSION.sub("", self.metadata, count=1).encode())
        for path in sorted(self.contents):
            digest.update(f"\0{path}\0{len(self.contents[path])}\0".encode())
            digest.update(self.contents[path])
        return digest.hexdigest()


_VERSION = re.compile(r"^Version: .*$", re.MULTILINE)


def installed_library() -> Library:
    """Return the files of the running library. Blocking. Raises LibraryMissing."""
    try:
        distribution = importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError as error:
        raise LibraryMissing(
            f"{NAME} is imported from a folder and is not installed. Install the folder: pip install -e FOLDER."
        ) from error
    metadata = distribution.read_text("METADATA")
    if metadata is None or "vf-hub" not in (distribution.read_text("entry_points.txt") or ""):
        raise LibraryMissing(
            f"The installed package {NAME} {distribution.version} is not this library. Install this library's wheel."
        )
    contents = {path: file.read_bytes() for path, file in _modules()}
    contents.update(_described(distribution))
    return Library(distribution.version, contents, metadata)


def _modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise LibraryMissing(f"The installed {NAME} has no package {package}.")
        folder = Path(spec.submodule_search_locations[0])
        for file in sorted(_files(folder)):
            yield f"{package}/{file.relative_to(folder).as_posix()}", file


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that belong to a package. In a clone the examples are links to folders, which may hold saved
    runs.
    """
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [n for n in folders if not n.startswith(".") and n not in _NOT_SHIPPED]
        for name in names:
            if not name.startswith(".") and not name.endswith(".pyc"):
                yield Path(root, name)


def _described(distribution: Distribution) -> dict[str, bytes]:
    """Return entry points and licences, by their names inside the `.dist-info` folder."""
    found = {}
    for file in distribution.files or []:
        inside = Path(*file.parts[1:])
        is_licence = inside.parts[:1] == ("licenses",)
        if file.parts[0].endswith(".dist-info") and (
            is_licence or inside.name == "entry_points.txt"
        ):
            path = Path(str(distribution.locate_file(file)))
            if path.is_file():
                found[f".dist-info/{inside.as_posix()}"] = path.read_bytes()
    return found


def write_library(library: Library, into: Path, version: str | None = None) -> Path:
    """Write the wheel into a folder, optionally under another version. The same files give the same bytes."""
    version = version or library.version
    info = f"{NAME}-{version}.dist-info"
    metadata = _VERSION.sub(f"Version: {version}", library.metadata, count=1)
    wheel = "Wheel-Version: 1.0\nGenerator: verifiers\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = {
        path.replace(".dist-info/", f"{info}/", 1) if path.startswith(".dist-info/") else path: data
        for path, data in library.contents.items()
    }
    members |= {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    record = io.StringIO()
    writer = csv.writer(record, lineterminator="\n")
    for path, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([path, f"sha256={digest}", len(content)])
    writer.writerow([f"{info}/RECORD", "", ""])
    members[f"{info}/RECORD"] = record.getvalue().encode()
    file = into / f"{NAME}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in members.items():
            member = zipfile.ZipInfo(path, _EARLY)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content)
    return file

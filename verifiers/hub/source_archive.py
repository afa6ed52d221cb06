"""The source of an environment as one archive: its files, its content hash, and safe unpacking.

Members and hash follow the public `prime` command (0.6 and later), so that both compute the same hash for the same
content. Two additions keep a changed project from having the same hash: files beside pyproject.toml that are in the
wheel (`data.json`, `LICENSE`) are members too, and files of the wheel from other places are hashed.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from verifiers.errors import ConfigError
from verifiers.files import sha256_of
from verifiers.hub.errors import HubMisbehaved
from verifiers.packages.archive import unsafe_path

SKIPPED_FOLDERS = {"__pycache__", "dist", "build", "outputs"}
MAX_MEMBERS = 20_000
MAX_UNPACKED_BYTES = 2 * 1024**3


class SourceArchive(NamedTuple):
    """A packed source archive."""

    path: Path
    sha256: str
    size_bytes: int
    content_hash: str
    """SHA-256 over names and contents. It depends on the content only, not on the time or place of packing."""
    members: list[str]


def pack(folder: Path, wheel: Path, target: Path) -> SourceArchive:
    """Write the source of the project in `folder`, whose wheel is `wheel`, to the tar.gz `target`."""
    files = source_files(folder)
    with zipfile.ZipFile(wheel) as archive:
        packaged = {
            info.filename: hashlib.sha256(archive.read(info)).hexdigest()
            for info in archive.infolist()
            if not info.is_dir()
        }
    packaged_hashes = set(packaged.values())
    for path in folder.iterdir():
        is_file = path.is_file() and not path.is_symlink() and not path.name.startswith(".")
        if is_file and path.name not in files and sha256_of(path) in packaged_hashes:
            files[path.name] = path
    contents = {name: path.read_bytes() for name, path in files.items()}
    known = {hashlib.sha256(content).hexdigest() for content in contents.values()}
    elsewhere = {
        name: digest
        for name, digest in packaged.items()
        if digest not in known and ".dist-info/" not in name
    }
    with (
        target.open("wb") as raw,
        # No time and no name in the header: the same content gives the same archive.
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(contents[name])
            info.mode = 0o755 if files[name].stat().st_mode & 0o100 else 0o644
            with files[name].open("rb") as file:
                tar.addfile(info, file)
    return SourceArchive(
        target,
        sha256_of(target),
        target.stat().st_size,
        content_hash(contents, elsewhere),
        sorted(files),
    )


def content_hash(contents: dict[str, bytes], elsewhere: dict[str, str] | None = None) -> str:
    """Return the SHA-256 over `file:<path>` and the bytes of each file, in the order of the paths.

    `elsewhere`: path in the wheel → SHA-256, for files that are not in the source.
    """
    digest = hashlib.sha256()
    for name in sorted(contents):
        digest.update(b"file:" + name.encode())
        digest.update(contents[name])
    for name in sorted(elsewhere or {}):
        digest.update(f"wheel:{name}={(elsewhere or {})[name]}".encode())
    return digest.hexdigest()


def source_files(folder: Path) -> dict[str, Path]:
    """Return path in the archive → file: README, pyproject.toml and modules at the top, and all files in folders.

    Left out are hidden files, links, caches, build results, and files that `.gitignore` files of the project name.
    """
    ignored = _IgnoreRules(folder)
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink() or ignored(path):
            continue
        if path.is_dir():
            if not _is_skipped(path.name):
                _add_below(path, folder, ignored, files)
        elif path.name in ("README.md", "pyproject.toml") or path.suffix == ".py":
            files[path.name] = path
    if not any(name.endswith(".py") for name in files):
        raise ConfigError(
            f"{folder} has no Python module: expected one beside pyproject.toml or in a folder there."
        )
    return files


def unpack(archive: Path, target: Path) -> list[str]:
    """Unpack a source archive into `target`, a new or empty folder, and return the paths of its files.

    Raises HubMisbehaved for links, devices, paths that leave the folder, and bombs. The folder is then removed.
    """
    written: list[str] = []
    unpacked_bytes = 0
    if target.is_dir():
        target.rmdir()  # so that no folder remains after a failure, whether it existed or not
    target.mkdir(parents=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for info in tar:
                if info.isdir():
                    continue
                reason = unsafe_path(info.name.removeprefix("./"))
                if reason or not info.isreg():
                    raise HubMisbehaved(
                        f"The source archive has a member {info.name[:200]!r} that "
                        f"{reason or 'is a link or device'}; it was not unpacked."
                    )
                unpacked_bytes += info.size
                if unpacked_bytes > MAX_UNPACKED_BYTES or len(written) >= MAX_MEMBERS:
                    raise HubMisbehaved("The source archive is too large; it was not unpacked.")
                name = info.name.removeprefix("./")
                file = target / name
                file.parent.mkdir(parents=True, exist_ok=True)
                opened = tar.extractfile(info)
                assert opened is not None, "regular files have contents"
                with opened, file.open("xb") as out:
                    while piece := opened.read(1 << 20):
                        out.write(piece)
                file.chmod(0o755 if info.mode & 0o100 else 0o644)
                written.append(name)
    except (tarfile.TarError, EOFError, OSError) as error:
        _remove(target)
        raise HubMisbehaved(f"The source archive cannot be unpacked: {error}.") from error
    except BaseException:
        _remove(target)
        raise
    return written


class _IgnoreRules:
    """The `.gitignore` files of a project, with git's meaning. Rules of a deeper folder take precedence."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._rules: dict[Path, GitIgnoreSpec] = {}

    def __call__(self, path: Path) -> bool:
        """Return whether a file or folder is ignored. No folder above it may be ignored."""
        end = "/" if path.is_dir() else ""
        for folder in path.parents:
            is_ignored = (
                self._of(folder).check_file(path.relative_to(folder).as_posix() + end).include
            )
            if is_ignored is not None:
                return is_ignored
            if folder == self._root:
                break
        return False

    def _of(self, folder: Path) -> GitIgnoreSpec:
        if folder not in self._rules:
            file = folder / ".gitignore"
            # Git skips a byte order mark too.
            text = file.read_text("utf-8-sig", "replace") if file.is_file() else ""
            try:
                self._rules[folder] = GitIgnoreSpec.from_lines(text.splitlines())
            except ValueError as error:
                raise ConfigError(f"{file} has a line that is not a pattern: {error}") from error
        return self._rules[folder]


def _add_below(folder: Path, root: Path, ignored: _IgnoreRules, files: dict[str, Path]) -> None:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.is_symlink() or ignored(path):
            continue
        if path.is_dir():
            if not _is_skipped(path.name):
                _add_below(path, root, ignored, files)
        elif path.is_file():
            files[path.relative_to(root).as_posix()] = path


def _is_skipped(name: str) -> bool:
    return name in SKIPPED_FOLDERS or name.endswith(".egg-info")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)

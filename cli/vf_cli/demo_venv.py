"""A new virtual environment with verifiers and what it needs, made from the ones installed here, without a network.

The installed files are linked, as uv does from its cache. The library is installed as the wheel that a user gets.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verifiers.packages.install import Installer, run_installer
from verifiers.packages.library import installed_library, write_library


def clean_venv(folder: Path) -> Path:
    """Make it in `folder`; its interpreter. Raises InstallError, CalledProcessError."""
    python = venv_without_the_library(folder)
    with tempfile.TemporaryDirectory(prefix="vf-demo-wheel-") as scratch:
        wheel = write_library(installed_library(), Path(scratch))
        run_installer(["--no-deps", str(wheel)], Installer(python=str(python)))
    return python


def venv_without_the_library(folder: Path, also: Iterable[str] = ()) -> Path:
    """Make one that has what verifiers needs, and other installed packages if wanted; its interpreter."""
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = folder / scripts / Path(sys.executable).name
    asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    for distribution in _needed_by("verifiers"):
        _link_files(distribution, site)
    for name in also:
        for distribution in (importlib.metadata.distribution(name), *_needed_by(name)):
            _link_files(distribution, site)
    return python


def _needed_by(name: str) -> Iterator[Distribution]:
    """The installed distributions that this one depends on, directly or not, without itself."""
    seen = {(canonicalize_name(name), "")}
    waiting = [(name, "")]
    given: set[str] = {canonicalize_name(name)}
    while waiting:
        project, extra = waiting.pop()
        for line in importlib.metadata.distribution(project).requires or []:
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            for wanted in ("", *requirement.extras):
                key = (canonicalize_name(requirement.name), wanted)
                if key not in seen:
                    seen.add(key)
                    waiting.append((requirement.name, wanted))
            if canonicalize_name(requirement.name) not in given:
                given.add(canonicalize_name(requirement.name))
                yield importlib.metadata.distribution(requirement.name)


def _link_files(distribution: Distribution, site: Path) -> None:
    """Put the distribution's files into `site`, with what Python has compiled; its commands are left out."""
    for file in distribution.files or []:
        if ".." in file.parts:
            continue  # a command, which would start the interpreter here
        source = Path(str(distribution.locate_file(file)))
        compiled = (
            source.with_name("__pycache__") / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        )
        for path in (source, compiled) if source.suffix == ".py" else (source,):
            if not path.is_file():
                continue
            target = site / path.relative_to(str(distribution.locate_file("")))
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                _link(path, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)

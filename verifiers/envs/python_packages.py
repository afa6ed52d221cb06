"""Whether the packages that an environment's code imports are there, and what their modules are called."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verifiers.errors import ConfigError


def requirements(text: str) -> list[Requirement]:
    """`"numpy sympy>=1.12"` as requirements; options of pip (`-q`, `--pre`) are skipped. Raises ConfigError."""
    found = []
    for word in text.split():
        if word.startswith("-"):
            continue
        try:
            found.append(Requirement(word))
        except InvalidRequirement as error:
            raise ConfigError(
                f"pip_install_packages: {word!r} is no requirement ({error}). Write names with versions at most, "
                "separated by spaces, as in 'numpy sympy>=1.12'."
            ) from None
    return found


def installed_modules(wanted: Iterable[Requirement], packages: str) -> tuple[str, ...]:
    """The importable modules of the wanted packages in the running environment ("host") or a virtual environment.

    Raises ConfigError naming everything that is missing or has the wrong version, and what to do.
    """
    folders = _site_packages(packages)
    known = {
        canonicalize_name(distribution.name): distribution
        for distribution in reversed(list(importlib.metadata.distributions(path=folders)))
        if distribution.name
    }
    modules: list[str] = []
    missing: list[str] = []
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        distribution = known.get(canonicalize_name(requirement.name))
        if distribution is None:
            missing.append(str(requirement))
        elif not requirement.specifier.contains(distribution.version, prereleases=True):
            missing.append(f"{requirement} (there is {distribution.version})")
        else:
            modules += top_level_modules(distribution)
    if missing:
        names = " ".join(f"'{name.partition(' (')[0]}'" for name in missing)
        where = "the running environment" if packages == "host" else packages
        raise ConfigError(
            f"Not installed in {where}: {', '.join(missing)}. Nothing is downloaded into sandboxes; install there with "
            f"`pip install {names}`, or pass pip_install_packages= with what the code really needs, or "
            "packages='/path/to/a/virtual/environment' that has them."
        )
    return tuple(dict.fromkeys(modules))


def top_level_modules(distribution: importlib.metadata.Distribution) -> list[str]:
    """Names to import a distribution by, without private ones."""
    stated = (distribution.read_text("top_level.txt") or "").split()
    names = stated or [
        file.parts[0].removesuffix(".py")
        for file in distribution.files or []
        if (file.name == "__init__.py" and len(file.parts) == 2)
        or (len(file.parts) == 1 and file.suffix == ".py")
    ]
    return sorted({name for name in names if name.isidentifier() and not name.startswith("_")})


def _site_packages(packages: str) -> list[str]:
    if packages == "host":
        return list(sys.path)
    found = sorted(Path(packages).glob("lib/python3*/site-packages"))
    if not found:
        raise ConfigError(
            f"packages={packages!r} is no virtual environment: it has no lib/python3*/site-packages."
        )
    return [str(folder) for folder in found]

"""Install an environment into a Python: a local folder, a wheel, a repository, or a published environment of a hub."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from verifiers.errors import ConfigError, EnvironmentNotFound, Error
from verifiers.loading import read_pyproject
from verifiers.packages.build import last_lines, unmet_requirements, uv_command
from verifiers.packages.library import NAME as LIBRARY
from verifiers.packages.library import LibraryMissing, installed_library, write_library
from verifiers.packages.published import (
    HubEnvironment,
    PublishedSource,
    PublishedWheel,
    parse_hub_id,
)

DEFAULT_PATH = "./environments"
INSTALL_TIMEOUT_S = 1800.0
logger = logging.getLogger(__name__)


class InstallError(Error, RuntimeError):
    """The installer failed; the text is the end of its output."""


class Installer(NamedTuple):
    """The program that installs, and the Python it installs into."""

    python: str = sys.executable
    """Interpreter to install into."""
    program: Literal["uv", "pip"] | None = None
    """None selects uv if it is available, else pip."""
    options: Sequence[str] = ()
    """Further options of `install`, e.g. `--pre`."""
    variables: Mapping[str, str] = {}
    """Environment variables in addition to those of this process."""


def install(
    env: str,
    path: str | Path = DEFAULT_PATH,
    *,
    from_repo: bool = False,
    repo: str | None = None,
    branch: str = "main",
    source: PublishedSource | None = None,
    installer: Installer | None = None,
) -> str:
    """Install an environment and return the name of its distribution.

    `env` is a name (the folder `path/<name>`), a folder, a wheel file, or `owner/name[@version]` of the hub behind
    `source`.
    With `from_repo` it is `environments/<name>` in the git repository `repo`. Raises EnvironmentNotFound,
    ConfigError, or
    InstallError with the installer's output.
    """
    if from_repo:
        return install_repository(env, repo, branch)
    if env.endswith(".py"):
        raise ConfigError(
            f"{env} is a single file, which needs no installation: `vf-eval {env}` and `vf-train` load it by its path. "
            "`vf-init` creates a project that can be installed."
        )
    if env.endswith(".whl") or _is_folder_path(env):
        return install_folder(Path(env).expanduser(), installer)
    if "/" in env:
        return install_published(parse_hub_id(env), source, installer)
    return install_folder(Path(path) / env.replace("-", "_"), installer)


def install_folder(folder: Path, installer: Installer | None = None) -> str:
    """Install a project folder, editable, or a wheel file."""
    if folder.suffix == ".whl":
        if not folder.is_file():
            raise EnvironmentNotFound(f"There is no wheel {folder}.")
        run_installer([str(folder)], installer)
        return folder.name.partition("-")[0].replace("_", "-")
    if not folder.is_dir():
        name = folder.name.replace("_", "-")
        parent = folder.parent
        there = sorted(p.parent.name.replace("_", "-") for p in parent.glob("*/pyproject.toml"))
        listed = f" {parent} has {', '.join(there)}." if there else ""
        raise EnvironmentNotFound(
            f"There is no environment folder {folder}.{listed} `vf-init {name}` creates a new one; "
            "--path names the folder of environments; owner/name installs from a hub."
        )
    pyproject = read_pyproject(folder)
    name = pyproject.get("project", {}).get("name")
    if not name:
        raise ConfigError(
            f"{folder} has no pyproject.toml with a project name, so it cannot be installed."
        )
    is_here = installer is None or installer.python == sys.executable
    options = ["--no-build-isolation"] if is_here and _builds_here(pyproject) else []
    run_installer([*options, "-e", str(folder.resolve())], installer)
    return str(name)


def install_repository(env: str, repo: str | None, branch: str = "main") -> str:
    """Install `environments/<name>` of a git repository."""
    if not repo:
        raise ConfigError(
            f"Name the repository of {env!r}: --repo https://host/owner/repository (its folder environments/)."
        )
    name = env.replace("_", "-")
    url = repo if repo.startswith("git+") else f"git+{repo}"
    run_installer([f"{name} @ {url}@{branch}#subdirectory=environments/{name.replace('-', '_')}"])
    return name


def install_published(
    environment: HubEnvironment,
    source: PublishedSource | None,
    installer: Installer | None = None,
) -> str:
    """Install a published environment from the hub behind `source`, and check that it is installed afterwards."""
    if source is None:
        raise ConfigError(
            f"{environment.owner}/{environment.name} is on a hub, and no hub is configured. Set PRIME_API_BASE_URL "
            "(and PRIME_API_KEY) to yours, or install a folder (./my_env) or a wheel file instead."
        )
    install_wheel(source.wheel(environment), installer)
    return environment.name


def install_wheel(wheel: PublishedWheel, installer: Installer | None = None) -> None:
    """Install a published wheel. Raises InstallError unless exactly this wheel is installed afterwards."""
    if wheel.yanked is not None:
        logger.warning(
            "%s %s was yanked by its author: %s",
            wheel.name,
            wheel.version,
            "".join(c if c.isprintable() else " " for c in wheel.yanked) or "no reason given",
        )
    installer = installer or Installer()
    installer = installer._replace(variables={**installer.variables, **wheel.variables})
    with tempfile.TemporaryDirectory(prefix="vf-install-") as scratch:
        pins = pinned_requirements([wheel], installer.python, Path(scratch))
        constraints = Path(scratch) / "constraints.txt"
        constraints.write_text("".join(f"{line}\n" for line in pins), encoding="utf-8")
        options = ["--constraint", str(constraints)] if pins else []
        run_installer([*options, wheel.requirement, *wheel.url_dependencies], installer)
        _insist(wheel.requirement, installer, is_required=True)
        for line in pins:
            if " @ " in line:
                _insist(line, installer)


def pinned_requirements(wheels: Sequence[PublishedWheel], python: str, scratch: Path) -> list[str]:
    """Return lines for a constraints file: the addresses of the hub's environments that these wheels need, and the
    library.

    Package indexes have a different package with the library's name. The library is therefore the one that the Python
    has, else the hub's, else the one that runs (its wheel is written to `scratch`).
    """
    pins = {_name_of(line): line for wheel in wheels for line in wheel.dependencies}
    requires = [Requirement(text) for wheel in wheels for text in wheel.requires]
    limits = [r.specifier for r in requires if canonicalize_name(r.name) == LIBRARY and not r.url]
    if limits or pins:
        library = _library(python, limits, scratch, pins.get(LIBRARY))
        pins.pop(LIBRARY, None)
        if library is not None:
            pins[LIBRARY] = library
    return [pins[name] for name in sorted(pins)]


def _library(
    python: str, limits: Sequence[SpecifierSet], scratch: Path, of_the_hub: str | None
) -> str | None:
    """Return the constraint on the library, or None to leave it to the index."""

    def fits(version: str) -> bool:
        return all(limit.contains(version, prereleases=True) for limit in limits)

    there = installed_from(LIBRARY, python)
    is_ours = there is not None and _has_this_library(python)
    if there is not None and is_ours and fits(there[0]):
        return f"{LIBRARY}=={there[0]}"
    if of_the_hub is not None:
        return of_the_hub
    if there is not None and is_ours:
        limit = ",".join(str(limit) for limit in limits if not limit.contains(there[0]))
        raise InstallError(
            f"It requires {LIBRARY}{limit}, and {python} has this library in version {there[0]}, which another package "
            f"of the same name would replace. Raise the limit in the environment's pyproject.toml, or install it "
            "into a separate virtual environment."
        )
    if there is not None and fits(there[0]):
        return None
    try:
        library = installed_library()
    except LibraryMissing:
        return None
    if not fits(library.version):
        return None
    return f"{LIBRARY} @ {write_library(library, scratch).as_uri()}"


def _has_this_library(python: str) -> bool:
    """Return whether a Python's package with the library's name is this library."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('vf_cli') is None)"
    return subprocess.run([python, "-c", code], capture_output=True, timeout=60.0).returncode == 0


def _insist(requirement: str, installer: Installer, *, is_required: bool = False) -> None:
    """Install from an address again if a different package of the same name is installed. Raises InstallError on
    failure.

    pip treats an installed package of the same name and version as the same package, wherever it came from.
    """
    name, _, url = requirement.partition(" @ ")
    address = unquote(url.partition("#")[0])

    def is_there() -> bool:
        found = installed_from(name, installer.python)
        if found is None:
            return not is_required  # a condition of its requirement did not hold
        return unquote((found[1] or "").partition("#")[0]) == address

    if is_there():
        return
    again = ["--reinstall"] if _program(installer) == "uv" else ["--force-reinstall"]
    run_installer([*again, "--no-deps", requirement], installer)
    if not is_there():
        raise InstallError(
            f"The installer reported success, but {installer.python} does not have the {name} of {address}."
        )


def _name_of(line: str) -> str:
    return canonicalize_name(line.partition(" @ ")[0].strip())


def installed_from(name: str, python: str = sys.executable) -> tuple[str, str | None] | None:
    """Return version and origin address of an installed distribution, or None if it is not installed."""
    done = subprocess.run(
        [python, "-c", _INSTALLED, name], capture_output=True, text=True, timeout=60.0
    )
    try:
        version, direct_url = json.loads(done.stdout)
    except ValueError:
        return None
    return version, direct_url


_INSTALLED = """
import importlib.metadata, json, sys
found = importlib.metadata.distribution(sys.argv[1])
direct = json.loads(found.read_text("direct_url.json") or "{}")
print(json.dumps([found.version, direct.get("url")]))
"""


def run_installer(arguments: list[str], installer: Installer | None = None) -> None:
    """Run `uv pip install` or `pip install`. Raises InstallError with the last lines of output if it fails."""
    installer = installer or Installer()
    command = [
        *installer_command(installer),
        "install",
        *_target(installer),
        *installer.options,
        *arguments,
    ]
    logger.debug("running %s", " ".join(command))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            env={**os.environ, **installer.variables},
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"Installing took longer than {INSTALL_TIMEOUT_S:.0f} s and was stopped."
        ) from error
    if done.returncode:
        raise InstallError(
            f"Installing failed ({' '.join(arguments)}):\n{last_lines(done.stderr or done.stdout)}"
        )
    importlib.invalidate_caches()


def installer_command(installer: Installer) -> list[str]:
    """Return the command for `uv pip` or `pip`. Raises ConfigError if the requested one is missing."""
    if installer.program != "pip" and (uv := uv_command()) is not None:
        return [*uv, "pip"]
    if installer.program == "uv":
        raise ConfigError("uv is not installed; install it, or use --with pip.")
    if importlib.util.find_spec("pip") is not None:
        options = ["--disable-pip-version-check", "--no-input"]
        if installer.python != sys.executable:
            options += ["--python", installer.python]
        return [sys.executable, "-m", "pip", *options]
    raise ConfigError(
        f"Neither uv nor pip is available for {installer.python}; install one of them."
    )


def _program(installer: Installer) -> str:
    return "uv" if Path(installer_command(installer)[0]).stem == "uv" else "pip"


def _target(installer: Installer) -> list[str]:
    return ["--python", installer.python] if _program(installer) == "uv" else []


def uninstall(name: str, installer: Installer | None = None) -> None:
    """Remove an installed distribution. Raises EnvironmentNotFound, InstallError."""
    installer = installer or Installer()
    if installed_from(name, installer.python) is None:
        raise EnvironmentNotFound(f"{name!r} is not installed in {installer.python}.")
    is_uv = _program(installer) == "uv"
    options = _target(installer) if is_uv else ["--yes"]
    done = subprocess.run(
        [*installer_command(installer), "uninstall", *options, name],
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
    )
    if done.returncode:
        raise InstallError(f"Removing {name} failed:\n{last_lines(done.stderr or done.stdout)}")
    importlib.invalidate_caches()


def _is_folder_path(env: str) -> bool:
    return env.startswith((".", "/", "~")) or (Path(env) / "pyproject.toml").is_file()


def _builds_here(pyproject: dict[str, dict[str, object]]) -> bool:
    """Return whether an editable install needs only installed packages. Then it works without any index."""
    system = pyproject.get("build-system", {})
    requires = system.get("requires")
    if not isinstance(requires, list) or unmet_requirements(requires):
        return False
    if not str(system.get("build-backend", "")).startswith("hatchling"):
        return True
    hatch = pyproject.get("tool", {}).get("hatch", {})
    build = hatch.get("build", {}) if isinstance(hatch, dict) else {}
    return "dev-mode-dirs" in build or not unmet_requirements(["editables~=0.3"])


# The names of v0's `verifiers.utils.install_utils`; they return True or False instead of raising.


def parse_env_id(env_id: str) -> tuple[str, str, str | None]:
    """Return owner, name and version or None. Raises ConfigError (a ValueError) for anything else."""
    name, _, version = env_id.partition("@")
    hub = parse_hub_id(name)
    return hub.owner, hub.name, version if "@" in env_id else None


def normalize_package_name(name: str) -> str:
    """Return the module spelling of a package name: `My-Env` → `my_env`."""
    return name.replace("-", "_").lower()


def is_installed(env_name: str, version: str | None = None) -> bool:
    """Return whether a distribution of this name, and of this version when given, is installed."""
    try:
        found = importlib.metadata.version(env_name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return False
    return version in (None, "latest", found)


def install_from_local(env_name: str, env_dir: str = DEFAULT_PATH) -> bool:
    """Install the folder `env_dir/<env_name>` and return whether it worked. The log has the reason of a failure."""
    return _succeeds(env_name, path=env_dir)


def install_from_repo(env_name: str, branch: str = "main", repo: str | None = None) -> bool:
    """Install from a git repository and return whether it worked. The log has the reason of a failure."""
    return _succeeds(env_name, from_repo=True, branch=branch, repo=repo)


def install_from_hub(env_id: str, source: PublishedSource | None = None) -> bool:
    """Install from a hub, by default the configured one, and return whether it worked. The log has the reason of a
    failure.
    """
    if source is not None:
        return _succeeds(env_id, source=source)
    from verifiers.hub.config import hub_settings
    from verifiers.hub.installation import HubSource

    try:
        settings = hub_settings()
    except Error as error:
        logger.error("%s", error)
        return False
    with HubSource(settings) as configured:
        return _succeeds(env_id, source=configured)


def _succeeds(env: str, **options: object) -> bool:
    try:
        install(env, **options)  # pyright: ignore[reportArgumentType]  # the three callers pass the right types
    except Error as error:
        logger.error("%s", error)
        return False
    return True

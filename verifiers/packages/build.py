"""Build an environment folder into a wheel and a source archive, and check that the wheel can be evaluated.

The project's build backend runs in this interpreter if all its requirements are installed here (no download),
otherwise in an isolated interpreter through `uv build` or `python -m build`.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from verifiers.errors import AuthorError, ConfigError
from verifiers.files import sha256_of
from verifiers.loading import read_pyproject
from verifiers.packages.wheel import WheelManifest, read_wheel

BUILD_TIMEOUT_S = 600.0

_WITH_INSTALLED_BACKEND = """
import importlib, os, sys
backend, out_dir = sys.argv[1:]
module, _, attribute = backend.partition(":")
hooks = importlib.import_module(module)
for name in filter(None, attribute.split(".")):
    hooks = getattr(hooks, name)

def build(kind):
    print("built:" + getattr(hooks, "build_" + kind)(out_dir), flush=True)

# The backend is imported once. Each hook runs in a separate process where the system can fork, as PEP 517 recommends.
if not hasattr(os, "fork"):
    build("wheel")
elif (child := os.fork()) == 0:
    build("wheel")
    sys.exit()
elif os.waitpid(child, 0)[1]:
    sys.exit(1)
build("sdist")
"""


class BuildError(AuthorError, RuntimeError):
    """A project could not be built, or the result is not an environment."""


class BuiltFile(NamedTuple):
    """One archive."""

    path: Path
    size_bytes: int
    sha256: str


class Built(NamedTuple):
    """Result of `build_environment`."""

    wheel: BuiltFile
    sdist: BuiltFile
    manifest: WheelManifest
    """The checked content of the wheel."""
    module: str
    """The top-level module with `load_environment`."""


def build_environment(folder: str | Path, out_dir: str | Path | None = None) -> Built:
    """Build the project in `folder` into `out_dir` (`folder/dist` by default) and check the wheel.

    Raises ConfigError if the folder is not a project, BuildError if the build fails or the wheel has no
    `load_environment`,
    and WheelRejected if a hub would refuse the wheel.
    """
    folder = Path(folder).resolve()
    if not folder.is_dir():
        raise ConfigError(
            f"There is no folder {folder}. Give the environment's name, or its folder with --path."
        )
    if not (folder / "pyproject.toml").is_file():
        raise ConfigError(
            f"{folder} has no pyproject.toml, so it cannot be built. `vf-init` creates one."
        )
    out = Path(out_dir).resolve() if out_dir else folder / "dist"
    out.mkdir(parents=True, exist_ok=True)
    wheel, sdist = _build(folder, out)
    manifest = read_wheel(wheel)
    return Built(
        _described(wheel), _described(sdist), manifest, environment_module(wheel, manifest)
    )


def environment_module(wheel: Path, manifest: WheelManifest) -> str:
    """Return the top-level module of a wheel that defines `load_environment`, found without importing it."""
    expected = manifest.normalized_name.replace("-", "_")
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
        for module in sorted(manifest.top_level, key=lambda name: name != expected):
            member = next(
                (m for m in (f"{module}.py", f"{module}/__init__.py") if m in members), None
            )
            if member and defines_load_environment(archive.read(member).decode("utf-8", "replace")):
                if module != expected:
                    raise BuildError(
                        f"load_environment is in the module {module!r}, but {manifest.name!r} is loaded from "
                        f"{expected!r}. Rename the module or the project."
                    )
                return module
    raise BuildError(
        f"No module of {wheel.name} defines load_environment; it has {', '.join(manifest.top_level) or 'none'}. "
        f"Expected it in {expected}.py or {expected}/__init__.py: check the `include` of the build configuration."
    )


def defines_load_environment(source: str) -> bool:
    """Return whether a module's source defines, imports or assigns `load_environment` at its top level."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == "load_environment"
        ):
            return True
        if isinstance(node, ast.ImportFrom) and any(
            (a.asname or a.name) == "load_environment" for a in node.names
        ):
            return True
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and node.id == "load_environment"
        ):
            return True
    return False


def unmet_requirements(requirements: list[str]) -> list[str]:
    """Return the requirements that no installed distribution satisfies."""
    unmet: list[str] = []
    for text in requirements:
        try:
            requirement = Requirement(text)
            met = requirement.marker is not None and not requirement.marker.evaluate()
            met = met or requirement.specifier.contains(
                importlib.metadata.version(requirement.name), prereleases=True
            )
        except (InvalidRequirement, importlib.metadata.PackageNotFoundError):
            met = False
        if not met:
            unmet.append(text)
    return unmet


def uv_command() -> list[str] | None:
    """Return the command for `uv`: the one beside this interpreter, else the one on PATH, else None."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    return [found] if found else None


def _build(folder: Path, out: Path) -> tuple[Path, Path]:
    system = read_pyproject(folder).get("build-system", {})
    backend = system.get("build-backend")
    requires = system.get("requires", [])
    if backend and not unmet_requirements(requires):
        command = [sys.executable, "-c", _WITH_INSTALLED_BACKEND, backend, str(out)]
        wheel, sdist = _built_names(_run(command, folder))
        return out / wheel, out / sdist
    before = {file: file.stat().st_mtime_ns for file in out.iterdir()}
    if (uv := uv_command()) is not None:
        _run([*uv, "build", "--out-dir", str(out), str(folder)], folder)
    elif importlib.util.find_spec("build") is not None:
        _run([sys.executable, "-m", "build", "--outdir", str(out), str(folder)], folder)
    else:
        missing = ", ".join(unmet_requirements(requires)) or "a build backend"
        raise ConfigError(
            f"{folder} cannot be built here: install {missing}, or uv, or the package `build`."
        )
    new = [file for file in out.iterdir() if before.get(file) != file.stat().st_mtime_ns]
    wheels = [file for file in new if file.suffix == ".whl"]
    sdists = [file for file in new if file.name.endswith(".tar.gz")]
    if len(wheels) != 1 or len(sdists) != 1:
        raise BuildError(
            f"The build of {folder} wrote {[file.name for file in new]}, not one wheel and one sdist."
        )
    return wheels[0], sdists[0]


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            f"Building {folder} took longer than {BUILD_TIMEOUT_S:.0f} s and was stopped."
        ) from error
    if done.returncode:
        raise BuildError(f"Building {folder} failed:\n{last_lines(done.stderr or done.stdout)}")
    return done.stdout


def last_lines(text: str, count: int = 15) -> str:
    """Return the last lines of a tool's output, which contain the reason of a failure."""
    return "\n".join(text.strip().splitlines()[-count:])


def _built_names(output: str) -> list[str]:
    return [line[6:] for line in output.splitlines() if line.startswith("built:")]


def _described(file: Path) -> BuiltFile:
    return BuiltFile(file, file.stat().st_size, sha256_of(file))

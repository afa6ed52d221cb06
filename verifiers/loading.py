"""Find an environment and build it with its module's `load_environment()`.

An environment has an id or a path. The id `my-env` names the installed module `my_env`, or an example of this package.
A path names a folder (`./my_env`) or a single Python file (`./my_env.py`); neither has to be installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from verifiers.errors import (
    ConfigError,
    EnvironmentCodeError,
    EnvironmentNotFound,
    Error,
    MissingKeyError,
)

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment


import os
from collections.abc import Iterable

logger = logging.getLogger(__name__)


class EnvironmentLoadError(EnvironmentCodeError, RuntimeError):
    """An environment's module could not be imported, or its `load_environment` raised."""


class Loaded(NamedTuple):
    """An environment with the data from loading it."""

    environment: Environment
    module: ModuleType
    load_s: float
    """Seconds from before the import of its module until the environment was built."""


class EnvironmentFiles(NamedTuple):
    """The files behind a path to an environment."""

    env_id: str
    module: str
    """Name under which the module is imported."""
    file: Path
    """Python file with `load_environment`."""
    path: Path
    """The environment's folder, or `file` if the environment is a single file."""
    is_behind: bool = False
    """Whether other modules precede the file's folder: the file has the name of an installed module."""


EXAMPLES = Path(__file__).parent / "examples"
"""Folders of the example environments of this package."""


def load_environment(env_id: str, **env_args: Any) -> Environment:
    """Return the environment with this id or path, built by its module's `load_environment(**env_args)`.

    `env_id` is `my-env`, `owner/my-env` or `owner/my-env@version` (owner and version inform the reader: the installed
    environment is loaded), a folder (`./my_env`), or a Python file (`./my_env.py`). Sets `env_id` and `env_args` of the
    environment.

    Raise EnvironmentNotFound, ConfigError for arguments that `load_environment` does not accept, and
    EnvironmentLoadError if the environment's own code raises. Errors of this library and MissingKeyError pass
    unchanged.
    """
    return load(env_id, env_args).environment


def load(env_id: str, env_args: Mapping[str, Any]) -> Loaded:
    """Like `load_environment`, with the module and the load time."""
    if (path := path_of(env_id)) is not None:
        return load_path(path, env_args)
    if (example := _example_folder(env_id)) is not None:
        return load_path(example, env_args)
    started = time.perf_counter()
    return _build(import_environment_module(env_id), env_id, env_args, started)


def load_path(path: str | Path, env_args: Mapping[str, Any] | None = None) -> Loaded:
    """Return the environment in a folder or in a single Python file, installed or not. Its module is imported from
    there.

    Sets `loaded_from` of the environment. Raise EnvironmentNotFound if there is no environment at `path`, and otherwise
    the errors of `load_environment`.
    """
    started = time.perf_counter()
    source = source_at(path)
    module = sys.modules.get(source.module)
    if module is None or not _is_current(module, source.file):
        module = _import_file(source)
    loaded = _build(module, source.env_id, env_args or {}, started, source.path)
    loaded.environment.loaded_from = source.path
    return loaded


def path_of(env: str) -> Path | None:
    """Return the path that names an environment; None for an id.

    A path begins with `.`, `/` or `~`, or ends with `/` or `.py`. `environments/my_env` is also a path if that folder
    holds an environment. Raise ConfigError if `owner/my-env` is both such a folder and an installed environment.
    """
    if env.startswith((".", "/", "~")) or env.endswith(("/", ".py")):
        return Path(env).expanduser()
    if "/" not in env or "@" in env or environment_source(Path(env)) is None:
        return None
    folder = Path(env).resolve()
    installed = module_name(env).replace("_", "-")
    spec = importlib.util.find_spec(module_name(env))
    if spec is not None and not (spec.origin and Path(spec.origin).is_relative_to(folder)):
        raise ConfigError(
            f"{env!r} is a folder here, and an environment {installed!r} is installed. Write './{env}' for "
            f"the folder, or {installed!r} for the installed environment."
        )
    return folder


def source_at(path: str | Path) -> EnvironmentFiles:
    """Return the files of the environment at a path. Raise EnvironmentNotFound with the nearest file."""
    path = Path(path).expanduser()
    if path.is_dir():
        return _folder_source(path.resolve())
    if not path.is_file():
        seen_from = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise EnvironmentNotFound(
            f"There is no folder or file {path}{seen_from}.{_near_path(path)}"
        )
    if path.suffix != ".py":
        raise EnvironmentNotFound(
            f"{path} is not a Python file. An environment is a folder or a .py file with load_environment()."
        )
    file, folder = path.resolve(), path.resolve().parent
    is_project = (folder / "pyproject.toml").is_file() and environment_source(folder) == file
    if is_project or path.name == "__init__.py":
        return _folder_source(folder)
    name = re.sub(r"\W+", "_", path.stem).lower()
    is_taken = _is_taken(name, file)
    module = f"{name}_file" if is_taken else name
    return EnvironmentFiles(name.strip("_").replace("_", "-"), module, file, file, is_taken)


def _folder_source(folder: Path) -> EnvironmentFiles:
    file = environment_source(folder)
    name = folder_module_name(folder)
    env_id = name.replace("_", "-")
    if file is None:
        files = [one.name for one in sorted(folder.glob("*.py")) if _defines_environment(one)]
        advice = (
            f"{' and '.join(files)} there defines load_environment(): give the path of that file."
            if files
            else f"`vf-init {env_id}` makes a new environment."
        )
        raise EnvironmentNotFound(
            f"{folder} holds no environment: expected {name}.py or {name}/__init__.py in it. {advice}"
        )
    return EnvironmentFiles(env_id, name, file, folder)


def _defines_environment(file: Path) -> bool:
    """Return whether the text of a file defines `load_environment`; nothing is executed."""
    with suppress(OSError, UnicodeDecodeError):
        return (
            re.search(r"^(async )?def load_environment\b", file.read_text("utf-8"), re.M)
            is not None
        )
    return False


def _near_path(path: Path) -> str:
    """Return a hint with the nearest path; "" if there is none."""
    folder = path.parent
    there = [one.name for one in folder.glob("*")] if folder.is_dir() else []
    usable = [name for name in there if name.endswith(".py") or (folder / name).is_dir()]
    near = [n for n in (f"{path.name}.py", path.stem) if n in usable and n != path.name]
    near = near or get_close_matches(path.name, usable, n=1)
    return f" Did you mean {str(folder / near[0])!r}?" if near else ""


def _is_taken(name: str, file: Path) -> bool:
    """Return whether another module has this name: `chess.py` must not replace the package chess."""
    if name in _stamps:
        return False  # an environment of that name, loaded from another path
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if loaded is None:
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(name)
    if loaded is None and spec is None:
        return False
    origin = getattr(spec, "origin", None) or getattr(loaded, "__file__", None)
    if origin and Path(origin).resolve() == file:
        return False
    return name.replace("_", "-") not in installed_environments()


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


_stamps: dict[str, tuple[int, int]] = {}
"""Module name → time and size of the file when it was imported by its path."""


def _stamp(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size


def _is_current(module: ModuleType, file: Path) -> bool:
    """Return whether a loaded module is this file in its present state: a notebook loads an edited file again."""
    name = module.__name__
    return _file_of(module) == file and _stamps.get(name, _stamp(file)) == _stamp(file)


def _example_folder(env_id: str) -> Path | None:
    """Return the folder of an example of this package; None if there is none or the id's module is installed."""
    if not re.fullmatch(r"\w+(-\w+)*", env_id):
        return None
    name = module_name(env_id)
    folder = EXAMPLES / name
    importlib.invalidate_caches()
    if not folder.is_dir() or importlib.util.find_spec(name) is not None:
        return None
    here = environment_source(Path("environments") / name)
    if here is not None and here.read_bytes() != (folder / f"{name}.py").read_bytes():
        logger.warning(
            "%s is the example that the package brings. Write ./environments/%s for the folder here.",
            env_id,
            name,
        )
    return folder


def example_environments() -> list[str]:
    """Return the ids of the example environments of this package, sorted."""
    return sorted(folder.name.replace("_", "-") for folder in EXAMPLES.glob("*/"))


def require_present(env_id: str) -> None:
    """Raise EnvironmentNotFound if an environment cannot be found. Nothing is imported."""
    if (path := path_of(env_id)) is not None:
        source_at(path)
    elif _example_folder(env_id) is None:
        require_installed(env_id)


def require_installed(env_id: str) -> None:
    """Raise EnvironmentNotFound if no module of this id is installed. Nothing is imported."""
    name = module_name(env_id)
    importlib.invalidate_caches()
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        raise EnvironmentNotFound(_not_found_message(env_id, name))


def module_name(env_id: str) -> str:
    """Return the module of an id: `owner/my-env@1.2` → `my_env`."""
    name = env_id.rpartition("/")[2].partition("@")[0].replace("-", "_")
    if not name.isidentifier() or env_id.startswith((".", "/")):
        raise EnvironmentNotFound(
            f"{env_id!r} is not an environment id: write it as my-env, owner/my-env or owner/my-env@version. Write a "
            "folder or a file as ./my_env or ./my_env.py."
        )
    return name


def import_environment_module(env_id: str) -> ModuleType:
    """Return the installed module of an id. Raise EnvironmentNotFound if there is none."""
    name = module_name(env_id)
    importlib.invalidate_caches()  # this process may have installed the environment
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            _refuse_taskset(env_id, _source_of(name), error)
            raise EnvironmentLoadError(
                f"Environment {env_id!r} needs the module {error.name!r}, which is not installed. "
                f"Install the environment with its dependencies: vf-install {env_id}"
            ) from error
        raise EnvironmentNotFound(_not_found_message(env_id, name)) from None
    except (Error, MissingKeyError):
        raise
    except Exception as error:
        _refuse_taskset(env_id, _source_of(name), error)
        raise EnvironmentLoadError(
            f"Environment {env_id!r} failed while its module {name} was imported: {_described(error, _folder_of(name))}"
        ) from error


def _folder_of(name: str) -> Path | None:
    """Return the folder of an installed module's file; None if it is unknown."""
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        return Path(spec.origin).parent if spec and spec.origin else None
    return None


def installed_environments() -> list[str]:
    """Return the ids of installed packages that depend on `verifiers` and look like environments, sorted.

    A package counts if a top-level module has the package's name. Nothing is imported.
    """
    found: set[str] = set()
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        depends = any(
            re.match(r"verifiers(?![\w.-])", text) for text in distribution.requires or []
        )
        if name and depends:
            module = name.replace("-", "_").replace(".", "_").lower()
            if importlib.util.find_spec(module) is not None:
                found.add(module.replace("_", "-"))
    return sorted(found)


def folder_module_name(folder: Path) -> str:
    """Return the module of a folder's environment: the project name in its pyproject.toml, or the folder's name."""
    project = read_pyproject(folder).get("project", {})
    name = project.get("name", folder.name) if isinstance(project, dict) else folder.name
    return re.sub(r"[-.]", "_", str(name)).lower()


def environment_source(folder: Path) -> Path | None:
    """Return the file that defines the environment of a folder, in any layout of packages; None if there is none."""
    name = folder_module_name(folder)
    candidates = (
        folder / f"{name}.py",
        folder / name / "__init__.py",
        folder / "src" / name / "__init__.py",
        folder / "src" / f"{name}.py",
        folder / "__init__.py",
    )
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def read_pyproject(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's pyproject.toml; `{}` if there is none. Raise ConfigError if it is not TOML."""
    return _toml(folder / "pyproject.toml")


def _toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def evaluation_defaults(env_id: str) -> dict[str, Any]:
    """Return `num_examples` and `rollouts_per_example` from `[tool.verifiers.eval]` of an environment.

    The pyproject.toml is read from the environment's folder, or from the environment's wheel, which has it beside the
    module. The environment is not imported. Return `{}` if there is none.
    """
    folder = path_of(env_id) or _example_folder(env_id)
    if folder is not None:
        try:
            source = source_at(folder)
        except EnvironmentNotFound:
            return {}  # loading reports the error
        return {} if source.path == source.file else _suggested(read_pyproject(source.path))
    try:
        spec = importlib.util.find_spec(module_name(env_id))
    except (ImportError, ValueError):
        return {}
    if spec is None or not spec.origin:
        return {}
    origin = Path(spec.origin).parent
    folders = [origin, origin.parent] if spec.submodule_search_locations else [origin]
    for folder in folders:
        carried = folder / f"{module_name(env_id)}.pyproject.toml"
        if carried.is_file():
            return _suggested(_toml(carried))
        try:
            pyproject = read_pyproject(folder)
        except ConfigError:
            continue  # a broken pyproject.toml of another package in site-packages
        own = re.sub(r"[-.]", "_", str(pyproject.get("project", {}).get("name", ""))).lower()
        if own not in ("", module_name(env_id)):
            continue  # wheels of other environments put their pyproject.toml at the same place
        if chosen := _suggested(pyproject):
            return chosen
    return {}


def _suggested(pyproject: Mapping[str, Any]) -> dict[str, Any]:
    chosen = pyproject.get("tool", {}).get("verifiers", {}).get("eval", {})
    return {k: chosen[k] for k in ("num_examples", "rollouts_per_example") if k in chosen}


def _import_file(source: EnvironmentFiles) -> ModuleType:
    name, file = source.module, source.file
    is_package = file.name == "__init__.py"
    root = str(file.parent.parent if is_package else file.parent)
    if root not in sys.path:  # for the environment's own sibling modules
        sys.path.insert(len(sys.path) if source.is_behind else 0, root)
    locations = [str(file.parent)] if is_package else None
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise EnvironmentLoadError(f"{file} is not a Python source file.")
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    _stamps[name] = _stamp(file)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
        if isinstance(error, (Error, MissingKeyError)) or not isinstance(
            error, (Exception, SystemExit)
        ):
            raise
        _refuse_taskset(name.replace("_", "-"), file, error)
        raise EnvironmentLoadError(
            f"{file} failed while it was imported: {_described(error, file.parent)}"
        ) from error
    return module


def _build(
    module: ModuleType,
    env_id: str,
    env_args: Mapping[str, Any],
    started: float,
    path: Path | None = None,
) -> Loaded:
    from verifiers.envs.environment import Environment

    file = _file_of(module)
    function = getattr(module, "load_environment", None)
    if not callable(function):
        _refuse_taskset(env_id, file, None)
        raise EnvironmentLoadError(
            _without_function(module, env_id) if path is None else _file_without_function(module)
        )
    check_arguments(function, env_args, f"load_environment of {env_id!r}")
    try:
        environment = function(**env_args)
    except (Error, MissingKeyError):
        raise
    except (Exception, SystemExit) as error:
        _refuse_taskset(env_id, file, error)
        raise EnvironmentLoadError(
            f"load_environment of {env_id!r} raised {_described(error, file and file.parent)} "
            f"(arguments: {dict(env_args)})"
        ) from error
    if not isinstance(environment, Environment):
        _refuse_taskset(env_id, file, None)
        raise EnvironmentLoadError(
            f"load_environment of {env_id!r} returned {type(environment).__name__}, not a verifiers Environment."
        )
    environment.env_id = env_id
    environment.env_args = dict(env_args)
    return Loaded(environment, module, time.perf_counter() - started)


def _without_function(module: ModuleType, env_id: str) -> str:
    where = getattr(module, "__file__", "built in")
    hint = _near_hint(env_id) or " If another package has the same name, rename the environment."
    return (
        f"The module {module.__name__} ({where}) has no load_environment(), so it is not the environment "
        f"{env_id!r}.{hint}"
    )


def _file_without_function(module: ModuleType) -> str:
    functions = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    near = get_close_matches("load_environment", functions, n=1)
    hint = f" Rename {near[0]}() to load_environment()." if near else ""
    return (
        f"{module.__file__} has no load_environment(), so the file is not an environment.{hint} Define "
        "`def load_environment(): ...`, which returns the environment."
    )


_TASKSET = re.compile(
    r"verifiers\.v1\b|\bfrom verifiers import v1\b|^\s*(async )?def (load_taskset|load_harness)\b"
    r"|\b(vf|verifiers)\.(Taskset|Harness|Toolset|Env)\b"
    r"|^from verifiers import .*\b(Taskset|Harness|Toolset|Env)\b",
    re.MULTILINE,
)
"""Pattern of code for the API of verifiers 0.4 and later."""


def _refuse_taskset(env_id: str, source: Path | None, error: BaseException | None) -> None:
    """Raise EnvironmentLoadError if code that failed to load was written for the API of verifiers 0.4."""
    found = next(
        (match[0].strip() for match in map(_TASKSET.search, _texts(source)) if match), None
    )
    if found is None:
        return
    raise EnvironmentLoadError(
        f"{env_id!r} is a taskset for verifiers 0.4 or later (its code has {found!r}), which this package cannot run. "
        "This package runs environments for verifiers 0.1.8 to 0.3.1: modules whose load_environment() returns an "
        "Environment. Install an older release of the taskset that has load_environment(), or write that function "
        'around its rows and reward functions (docs/migrating.md, "From v1 back").'
    ) from error


def _texts(source: Path | None) -> list[str]:
    """Return the text of a module; of every file, for a package."""
    if source is None:
        return []
    files = sorted(source.parent.rglob("*.py")) if source.name == "__init__.py" else [source]
    texts: list[str] = []
    for file in [source, *files][:200]:
        with suppress(OSError, UnicodeDecodeError):
            texts.append(file.read_text(encoding="utf-8"))
    return texts


def _source_of(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> None:
    """Raise ConfigError with the nearest name if `function` does not accept these arguments."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # builtins without a signature check their arguments themselves
    kinds = inspect.Parameter
    named = {
        n: p
        for n, p in parameters.items()
        if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    }
    takes_any = any(p.kind is kinds.VAR_KEYWORD for p in parameters.values())
    if not takes_any:
        for name in arguments:
            if name not in named:
                near = get_close_matches(name, named, n=1)
                hint = f"Did you mean {near[0]!r}? " if near else ""
                legal = f"It takes: {', '.join(named)}." if named else "It takes none."
                raise ConfigError(f"{what} has no argument {name!r}. {hint}{legal}")
    missing = [n for n, p in named.items() if p.default is kinds.empty and n not in arguments]
    if missing:
        raise ConfigError(
            f"{what} needs the argument{'s' if len(missing) > 1 else ''} {', '.join(missing)}."
        )


def _not_found_message(env_id: str, name: str) -> str:
    installed = installed_environments()
    wanted = name.replace("_", "-")
    hint = _near_hint(env_id)
    local = Path("environments") / name
    if environment_source(local) is not None:
        advice = f"./{local} is not installed: `vf-install {wanted}` installs it."
    elif "/" in env_id:
        advice = f"Install it: vf-install {env_id}"
    elif here := [one for one in (f"./{name}.py", f"./{env_id}") if _is_environment_path(one)]:
        advice = f"{here[0]} is an environment here: write {here[0]}, which needs no installation."
    else:
        advice = f"`vf-init {wanted}` starts a new one."
    listed = f"Installed: {', '.join(installed)}." if installed else "No environment is installed."
    examples = f"The package brings {', '.join(example_environments())}."
    return f"No environment {env_id!r} is installed.{hint} {listed} {examples} {advice}"


def _is_environment_path(path: str) -> bool:
    try:
        source_at(path)
    except (EnvironmentNotFound, ConfigError):
        return False
    return True


def _near_hint(env_id: str) -> str:
    """Return a hint with the nearest environment, installed or in ./environments; "" if no name is near."""
    wanted = env_id.rpartition("/")[2].partition("@")[0].replace("_", "-")
    loadable = {*installed_environments(), *example_environments()} - {wanted}
    if near := get_close_matches(wanted, sorted(loadable), n=1):
        return f" Did you mean {near[0]!r}?"
    local: dict[str, Path] = {}
    for folder in sorted(Path("environments").glob("*/")):
        with suppress(ConfigError):  # another environment's pyproject.toml is broken
            if environment_source(folder) is not None:
                local[folder_module_name(folder).replace("_", "-")] = folder
    local.pop(wanted, None)
    if near := get_close_matches(wanted, local, n=1):
        return f" Did you mean {near[0]!r}? `vf-install {near[0]}` installs it from ./{local[near[0]]}."
    return ""


def _described(error: BaseException, folder: Path | None) -> str:
    """Return type and text of an error, with the line of the author's file that raised it."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    place = _place(error, folder)
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"{described} ({place})" if place else described


def _place(error: BaseException, folder: Path | None) -> str:
    """Return `file:line` of the last frame in the author's folder; "" if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [] if folder is None else traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder or "/")]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def ensure_keys(keys: Iterable[str]) -> None:
    """Raise MissingKeyError with every environment variable of `keys` that is not set."""
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)

"""Find an environment by its id and build it: `my-env` is the installed module `my_env`, its `load_environment()`.

Only installed modules are found by id. A folder that is not installed is loaded when it is asked for by its path.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import time
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


class EnvironmentLoadError(EnvironmentCodeError, RuntimeError):
    """An environment's module could not be imported, or its `load_environment` raised."""


class Loaded(NamedTuple):
    """An environment with what was seen while loading it."""

    environment: Environment
    module: ModuleType
    load_s: float
    """Seconds from before the import of its module until the environment was built."""


def load_environment(env_id: str, **env_args: Any) -> Environment:
    """The environment with this id, built by its module's `load_environment(**env_args)`.

    `env_id` is `my-env`, `owner/my-env` or `owner/my-env@version` (owner and version are for reading: what is
    installed is what loads). Sets `env_id` and `env_args` of the environment.

    Raises EnvironmentNotFound, ConfigError for arguments it does not take, and EnvironmentLoadError when the
    environment's own code raises; errors of this library and MissingKeyError pass unchanged.
    """
    return load(env_id, env_args).environment


def load(env_id: str, env_args: Mapping[str, Any]) -> Loaded:
    """`load_environment`, with the module and the time it took."""
    started = time.perf_counter()
    return _build(import_environment_module(env_id), env_id, env_args, started)


def load_folder(folder: str | Path, env_args: Mapping[str, Any] | None = None) -> Loaded:
    """The environment in a folder, installed or not; its module is imported from there.

    Raises EnvironmentNotFound when the folder has no module of that name, and otherwise as `load_environment`.
    """
    started = time.perf_counter()
    source = require_folder(folder)
    name = folder_module_name(Path(folder).resolve())
    module = sys.modules.get(name)
    if module is None or Path(getattr(module, "__file__", None) or "").resolve() != source:
        module = _import_file(name, source)
    return _build(module, name.replace("_", "-"), env_args or {}, started)


def require_folder(folder: str | Path) -> Path:
    """The file that defines the environment of a folder; EnvironmentNotFound when it has none."""
    folder = Path(folder).resolve()
    source = environment_source(folder)
    if source is None:
        name = folder_module_name(folder)
        raise EnvironmentNotFound(
            f"{folder} holds no environment: expected {name}.py or {name}/__init__.py in it. "
            f"`vf-init {name.replace('_', '-')}` makes one."
        )
    return source


def require_installed(env_id: str) -> None:
    """Raise EnvironmentNotFound when no module of this id is installed; none is imported to find out."""
    name = module_name(env_id)
    importlib.invalidate_caches()
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        raise EnvironmentNotFound(_not_found_message(env_id, name))


def module_name(env_id: str) -> str:
    """The module of an id: `owner/my-env@1.2` → `my_env`."""
    name = env_id.rpartition("/")[2].partition("@")[0].replace("-", "_")
    if not name.isidentifier() or env_id.startswith((".", "/")):
        folder = (
            f" A folder is loaded by verifiers.loading.load_folder({env_id!r})."
            if "/" in env_id
            else ""
        )
        raise EnvironmentNotFound(
            f"{env_id!r} is not an environment id: write it as my-env, owner/my-env or owner/my-env@version.{folder}"
        )
    return name


def import_environment_module(env_id: str) -> ModuleType:
    """The installed module of an id; EnvironmentNotFound when there is none."""
    name = module_name(env_id)
    importlib.invalidate_caches()  # the environment may have been installed by this very process
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise EnvironmentLoadError(
                f"Environment {env_id!r} needs the module {error.name!r}, which is not installed. "
                f"Install the environment with its dependencies: vf-install {env_id}"
            ) from error
        raise EnvironmentNotFound(_not_found_message(env_id, name)) from None
    except (Error, MissingKeyError):
        raise
    except Exception as error:
        raise EnvironmentLoadError(
            f"Environment {env_id!r} failed while its module {name} was imported: {_described(error)}"
        ) from error


def installed_environments() -> list[str]:
    """Ids of installed packages that depend on `verifiers` and look like environments, sorted.

    A package counts when a top-level module has the package's own name; none is imported to find out.
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
    """The module a folder's environment has: the project name of its pyproject.toml, else the folder's name."""
    project = read_pyproject(folder).get("project", {})
    name = project.get("name", folder.name) if isinstance(project, dict) else folder.name
    return re.sub(r"[-.]", "_", str(name)).lower()


def environment_source(folder: Path) -> Path | None:
    """The file that defines the environment of a folder, in any of the layouts packages use; None when absent."""
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
    """The pyproject.toml of a folder, `{}` when there is none; ConfigError when it is not TOML."""
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
    """`num_examples` and `rollouts_per_example` an environment suggests, from `[tool.verifiers.eval]`.

    Read from the pyproject.toml that its wheel carries beside the module (or that stands beside an editable one),
    without importing the environment. `{}` when there is none.
    """
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
            continue  # a broken pyproject.toml that some other package left in site-packages
        own = re.sub(r"[-.]", "_", str(pyproject.get("project", {}).get("name", ""))).lower()
        if own not in ("", module_name(env_id)):
            continue  # wheels of other environments put their pyproject.toml at the same place
        if chosen := _suggested(pyproject):
            return chosen
    return {}


def folder_evaluation_defaults(folder: Path) -> dict[str, Any]:
    """`evaluation_defaults` of an environment's folder."""
    return _suggested(read_pyproject(folder))


def _suggested(pyproject: Mapping[str, Any]) -> dict[str, Any]:
    chosen = pyproject.get("tool", {}).get("verifiers", {}).get("eval", {})
    return {k: chosen[k] for k in ("num_examples", "rollouts_per_example") if k in chosen}


def _import_file(name: str, source: Path) -> ModuleType:
    root = source.parent.parent if source.name == "__init__.py" else source.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # for the environment's own sibling modules
    locations = [str(source.parent)] if source.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(
        name, source, submodule_search_locations=locations
    )
    if spec is None or spec.loader is None:
        raise EnvironmentLoadError(f"{source} is not a Python source file.")
    module = importlib.util.module_from_spec(spec)
    previous = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if previous is None:
            del sys.modules[name]
        else:
            sys.modules[name] = previous
        if isinstance(error, Error | MissingKeyError) or not isinstance(error, Exception):
            raise
        raise EnvironmentLoadError(
            f"{source} failed while it was imported: {_described(error)}"
        ) from error
    return module


def _build(module: ModuleType, env_id: str, env_args: Mapping[str, Any], started: float) -> Loaded:
    from verifiers.envs.environment import Environment

    function = getattr(module, "load_environment", None)
    if not callable(function):
        raise EnvironmentLoadError(
            f"The module {module.__name__} ({getattr(module, '__file__', 'built in')}) has no load_environment(), so "
            f"it is not the environment {env_id!r}."
            + (
                _near_hint(env_id)
                or " If another package has the same name, rename the environment."
            )
        )
    check_arguments(function, env_args, f"load_environment of {env_id!r}")
    try:
        environment = function(**env_args)
    except (Error, MissingKeyError):
        raise
    except Exception as error:
        raise EnvironmentLoadError(
            f"load_environment of {env_id!r} raised {_described(error)} (arguments: {dict(env_args)})"
        ) from error
    if not isinstance(environment, Environment):
        raise EnvironmentLoadError(
            f"load_environment of {env_id!r} returned {type(environment).__name__}, not a verifiers Environment."
        )
    environment.env_id = env_id
    environment.env_args = dict(env_args)
    return Loaded(environment, module, time.perf_counter() - started)


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any], what: str) -> None:
    """Raise ConfigError, naming the nearest right name, when `function` cannot take these arguments."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # builtins without a signature check themselves
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
    else:
        advice = f"`vf-init {wanted}` starts a new one."
    listed = f"Installed: {', '.join(installed)}." if installed else "No environment is installed."
    return f"No environment {env_id!r} is installed.{hint} {listed} {advice}"


def _near_hint(env_id: str) -> str:
    """Which environment was meant, of those installed and those in ./environments; "" when none has a near name."""
    wanted = env_id.rpartition("/")[2].partition("@")[0].replace("_", "-")
    installed = [name for name in installed_environments() if name != wanted]
    if near := get_close_matches(wanted, installed, n=1):
        return f" Did you mean {near[0]!r}?"
    local: dict[str, Path] = {}
    for folder in sorted(Path("environments").glob("*/")):
        with suppress(ConfigError):  # some other environment's pyproject.toml is broken
            if environment_source(folder) is not None:
                local[folder_module_name(folder).replace("_", "-")] = folder
    local.pop(wanted, None)
    if near := get_close_matches(wanted, local, n=1):
        return f" Did you mean {near[0]!r}? `vf-install {near[0]}` installs it from ./{local[near[0]]}."
    return ""


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__

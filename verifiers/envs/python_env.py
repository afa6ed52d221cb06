"""`PythonEnv`: the model has a Python interpreter that keeps its variables between calls."""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verifiers.envs.sandbox_env import SandboxEnv, SandboxState
from verifiers.envs.sandbox_request import IMAGELESS_BACKENDS
from verifiers.errors import ConfigError, SandboxError
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import CellResult, SandboxDead, SandboxSpec
from verifiers.sandboxes.open import default_backend_name
from verifiers.state import State
from verifiers.types import Messages


class PythonWorkerState(TypedDict):
    """The interpreter part of a rollout's state, stored under `python_state`."""

    ready: bool
    execution_count: int
    """Number of cells run so far. The value of the next cell is shown as `Out[execution_count + 1]`."""
    ready_wait_time: float
    """Seconds that the first cell waited for the interpreter."""


class PythonWorkerNotReadyError(SandboxError):
    """The interpreter did not start."""


class PythonWorkerRequestError(SandboxError):
    """A cell could not be sent to the interpreter."""


class PythonWorkerDeadError(SandboxError):
    """The interpreter ended and could not be restarted."""


class PythonMonitorRubric(Rubric):
    """Metrics of the interpreter, with weight 0."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.python_ready_wait_time)

    async def python_ready_wait_time(self, state: State) -> float:
        """Return how many seconds the rollout waited for its interpreter."""
        return float((state.get("python_state") or {}).get("ready_wait_time", 0.0))


class PythonEnv(SandboxEnv):
    """Offers a tool `python` instead of `bash`. A time limit interrupts the cell and keeps the variables.

    `pip_install_packages` lists the packages that the code may import besides the standard library. They must be
    installed in `packages` ("host" for the running environment, or the path of a virtual environment). They are
    imported once in advance, so that rollouts do not pay for the import.

    "host" shows all installed packages, including other environments with their answers. If that matters, use a
    virtual environment that contains the libraries only. With `pip_install_packages=""` only the standard library
    is available.
    """

    def __init__(
        self,
        pip_install_packages: str = "numpy sympy scipy",
        max_startup_wait_seconds: int = 30,
        *,
        packages: str | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.pip_install_packages = pip_install_packages
        self.max_startup_wait_seconds = max_startup_wait_seconds
        spec = SandboxSpec.model_validate(sandbox_spec or {})
        wanted = requirements(pip_install_packages)
        packages = packages or spec.packages or ("host" if wanted else None)
        backend = kwargs.get("backend") or default_backend_name()
        name = backend if isinstance(backend, str) else backend.name
        preload = spec.preload
        if wanted and packages is not None and name in IMAGELESS_BACKENDS:
            preload = tuple(dict.fromkeys((*preload, *installed_modules(wanted, packages))))
        spec = spec.model_copy(update={"packages": packages, "preload": preload})
        super().__init__(**{"sandbox_name": "python-env", "sandbox_spec": spec, **kwargs})
        self.add_rubric(PythonMonitorRubric())
        self.remove_tool(self.bash)
        self.add_tool(self.python, args_to_skip=["sandbox_id", "sandbox_state", "python_state"])

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Start to create a sandbox and an interpreter in it. Returns before they are ready."""
        state = await super().setup_state(state, **kwargs)
        state["python_state"] = PythonWorkerState(
            ready=False, execution_count=0, ready_wait_time=0.0
        )
        self.sandbox_client.begin_python(state["sandbox_id"])
        return state

    def update_tool_args(
        self,
        tool_name: str,
        tool_args: dict[str, Any],
        messages: Messages,
        state: State,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Add the sandbox and the interpreter of the rollout to the arguments of `python`."""
        if tool_name == "python":
            return {
                **tool_args,
                "sandbox_id": state["sandbox_id"],
                "sandbox_state": state["sandbox_state"],
                "python_state": state["python_state"],
            }
        return super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)

    async def python(
        self,
        code: str,
        sandbox_id: str,
        sandbox_state: SandboxState,
        python_state: PythonWorkerState,
    ) -> str:
        """Execute `code` inside persistent Python REPL."""
        limit_s = self.timeout_per_command_seconds
        await self._ensure_ready(sandbox_state, sandbox_id)
        if not python_state["ready"]:
            await self._wait_for_worker_ready(sandbox_id, sandbox_state, python_state)
        started = time.perf_counter()
        try:
            session = await self.sandbox_client.python(sandbox_id)
            result = await session.run(code, timeout_s=limit_s)
        except SandboxDead as error:
            python_state["ready"] = False
            return await self._after_death(error, sandbox_id, sandbox_state)
        sandbox_state["command_execution_times"].append(time.perf_counter() - started)
        return self._format_response(python_state, response_of(result, limit_s))

    async def _wait_for_worker_ready(
        self, sandbox_id: str, sandbox_state: SandboxState, python_state: PythonWorkerState
    ) -> None:
        started = time.perf_counter()
        await self.sandbox_client.python(sandbox_id)
        python_state["ready_wait_time"] += time.perf_counter() - started
        python_state["ready"] = True

    def _format_response(
        self, python_state: PythonWorkerState, sandbox_response: dict[str, Any]
    ) -> str:
        """Return the text that the model sees for a cell: output, errors, value or traceback.

        The response has the keys `status` ("ok" or "error"), `stdout`, `stderr` and `result`.
        """
        python_state["execution_count"] += 1
        parts = []
        if stdout := (sandbox_response.get("stdout") or "").rstrip():
            parts.append(stdout)
        if stderr := (sandbox_response.get("stderr") or "").rstrip():
            parts.append(f"stderr:\n{stderr}")
        result = sandbox_response.get("result")
        if sandbox_response.get("status") == "error":
            parts.append((result or "").rstrip())
        elif result is not None:
            parts.append(f"Out[{python_state['execution_count']}]: {result}")
        return "\n".join(parts) if parts else "(no output)"


def response_of(cell: CellResult, limit_s: float) -> dict[str, Any]:
    """Return the result of a cell in the form that `_format_response` reads."""
    problem = cell.error.traceback if cell.error is not None else None
    consequence = (
        "it was restarted, and all variables are gone" if cell.restarted else "variables are kept"
    )
    if cell.timed_out:
        problem = f"Error: Execution timed out after {limit_s:g}s. The interpreter was interrupted; {consequence}."
    elif cell.output_limit_hit:
        problem = f"Error: Too much output. The interpreter was stopped; {consequence}."
    elif cell.oom:
        problem = f"Error: Out of memory. The interpreter was stopped; {consequence}."
    elif cell.restarted:
        problem = f"Error: The code ended the interpreter; {consequence}."
    return {
        "status": "ok" if problem is None else "error",
        "stdout": cell.text,
        "stderr": cell.stderr.decode("utf-8", "replace"),
        "result": cell.value if problem is None else problem,
    }


def requirements(text: str) -> list[Requirement]:
    """Return the requirements in a text such as `"numpy sympy>=1.12"`. Options of pip (`-q`, `--pre`) are skipped.
    Raises ConfigError.
    """
    parsed = []
    for word in text.split():
        if word.startswith("-"):
            continue
        try:
            parsed.append(Requirement(word))
        except InvalidRequirement as error:
            raise ConfigError(
                f"pip_install_packages: {word!r} is not a valid requirement ({error}). Write names with optional "
                "versions, separated by spaces, as in 'numpy sympy>=1.12'."
            ) from None
    return parsed


def installed_modules(required: Iterable[Requirement], packages: str) -> tuple[str, ...]:
    """Return the importable modules of packages in the running environment ("host") or a virtual environment.

    Raises ConfigError that lists all packages that are missing or have the wrong version.
    """
    folders = _site_packages(packages)
    distributions = {
        canonicalize_name(distribution.name): distribution
        for distribution in reversed(list(importlib.metadata.distributions(path=folders)))
        if distribution.name
    }
    modules: list[str] = []
    missing: list[str] = []
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        distribution = distributions.get(canonicalize_name(requirement.name))
        if distribution is None:
            missing.append(str(requirement))
        elif not requirement.specifier.contains(distribution.version, prereleases=True):
            missing.append(f"{requirement} ({distribution.version} is installed)")
        else:
            modules += top_level_modules(distribution)
    if missing:
        names = " ".join(f"'{name.partition(' (')[0]}'" for name in missing)
        where = "the running environment" if packages == "host" else packages
        raise ConfigError(
            f"Not installed in {where}: {', '.join(missing)}. Sandboxes download nothing. Install them there with "
            f"`pip install {names}`, or pass the packages that the code needs as pip_install_packages=, or pass "
            "packages='/path/to/a/virtual/environment' that has them."
        )
    return tuple(dict.fromkeys(modules))


def top_level_modules(distribution: importlib.metadata.Distribution) -> list[str]:
    """Return the names by which a distribution is imported, without private ones."""
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
    folders = sorted(Path(packages).glob("lib/python3*/site-packages"))
    if not folders:
        raise ConfigError(
            f"packages={packages!r} is not a virtual environment: it has no lib/python3*/site-packages."
        )
    return [str(folder) for folder in folders]

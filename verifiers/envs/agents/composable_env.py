"""`ComposableEnv`: any agent on any tasks. A `TaskSet` says what to do and how to score it, a `Harness` how to run the
agent.

    env = ComposableEnv(taskset, harness, keep_sandbox_for_scoring=True, timeout_seconds=1800)

Each rollout: create the sandbox of the task → `taskset.setup` → upload instruction, system prompt and folders →
install the agent → run it → keep its logs and metrics → score with the rubric of the taskset.
"""

from __future__ import annotations

import asyncio
import json
import os
import posixpath
import shlex
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from verifiers.envs.agents.harness import Harness
from verifiers.envs.agents.task_sets import Folder, SandboxSpec, TaskSet, info_of
from verifiers.envs.cli_agent_env import CliAgentEnv
from verifiers.envs.file_locks import open_locked, sibling_lock_path
from verifiers.envs.git_checkouts import IN_USE_SUFFIX
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.envs.sandbox_request import is_python_image
from verifiers.errors import ConfigError, SandboxError
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.rubrics.tool_rubric import ToolMonitorRubric
from verifiers.state import State
from verifiers.types import TrajectoryStep

_SHOWN_CHARACTERS = 500
_NOT_UPLOADED = frozenset(
    [
        ".git",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".tox",
        ".uv-cache",
        ".venv",
        "__pycache__",
        "node_modules",
        "venv",
    ]
)
_NOT_UPLOADED_SUFFIXES = (".pyc", ".pyo", IN_USE_SUFFIX)


class HarnessMetricsRubricGroup(RubricGroup):
    """Rubrics of a rollout whose agent writes metrics: they join the metrics of the rollout after scoring."""

    async def cleanup(self, state: Any) -> None:
        """Clean up in every rubric, then add the metrics of the agent."""
        await super().cleanup(state)
        if metrics := state.get("_harness_metrics"):
            state["metrics"] = {**(state.get("metrics") or {}), **metrics}


class ComposableEnv(CliAgentEnv):
    """Runs the agent of a `Harness` on the tasks of a `TaskSet`, in one sandbox per rollout.

    The rows and, unless `rubric` is given, the rubric come from the taskset. The sandbox is that of the task, else that
    of the harness, else that of the other arguments, which are those of `CliAgentEnv`. `install_env` holds environment
    variables of the two install scripts. A rubric that uses the sandbox needs `keep_sandbox_for_scoring=True`; it finds
    `sandbox_client`, `sandbox_id` and `test_timeout` in the state.
    """

    def __init__(
        self,
        taskset: TaskSet,
        harness: Harness,
        *,
        install_env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        self.taskset = taskset
        self.harness = harness
        self.install_env = dict(install_env) if install_env else None
        rubric = kwargs.pop("rubric", None)
        kwargs |= {
            "run_command": harness.run_command,
            "dataset": taskset.get_dataset,
            "rubric": taskset.get_rubric() if rubric is None else rubric,
        }
        super().__init__(**kwargs)
        if harness.tool_names:
            self.add_rubric(ToolMonitorRubric(harness.tool_names))
        if harness.metrics_path:
            self.rubric = self._own_group = HarnessMetricsRubricGroup(
                self.rubric.rubrics if isinstance(self.rubric, RubricGroup) else [self.rubric],
                parser=self.rubric.parser,
            )

    # ------------------------------------------------------------------------------------------------ the sandbox

    def _spec_of(self, state: MutableMapping[str, Any]) -> SandboxSpec | None:
        """Return the sandbox that the task asks for. The taskset is asked once per rollout."""
        if "_sandbox_spec" not in state:
            state["_sandbox_spec"] = self.taskset.get_sandbox_spec(info_of(state))
        return state["_sandbox_spec"] or self.harness.sandbox_spec

    async def get_docker_image(self, state: Any) -> str:
        """Return the image of the task, else of the harness, else of the environment."""
        spec = self._spec_of(state)
        return await super().get_docker_image(state) if spec is None else spec.image

    def get_sandbox_resources(self, state: Any) -> dict[str, Any]:
        """Return the size of the sandbox of the task, else of the harness, else of the environment."""
        spec = self._spec_of(state)
        if spec is None:
            return super().get_sandbox_resources(state)
        return {
            "cpu_cores": spec.cpu_cores,
            "memory_gb": spec.memory_gb,
            "disk_size_gb": spec.disk_size_gb,
            "gpu_count": spec.gpu_count,
            "gpu_type": spec.gpu_type,
            "vm": spec.gpu_count > 0,
            "timeout_minutes": spec.timeout_minutes or self.compute_sandbox_timeout_minutes(),
        }

    async def build_env_vars(self, state: Any) -> dict[str, str]:
        """Return the variables of an agent, of the harness and of the taskset, and the directory of the task.

        Raises ConfigError if harness or taskset set a variable that leads the agent to the model.
        """
        own = {
            "Harness.environment_vars": (
                self.harness.environment_vars(state) if self.harness.environment_vars else None
            ),
            "TaskSet.get_env_vars()": self.taskset.get_env_vars(),
        }
        env = await super().build_env_vars(state)
        for source, variables in own.items():
            protected = {*self.PROTECTED_ENV_VARS, "AGENT_WORKDIR"} & set(variables or {})
            if protected:
                raise ConfigError(
                    f"{source} must not override protected keys: {', '.join(sorted(protected))}. "
                    "The environment sets them for each rollout."
                )
            env |= variables or {}
        return {**env, "AGENT_WORKDIR": self.taskset.get_workdir(info_of(state))}

    async def create_sandbox(self, state: Any, request: Any) -> str:
        """See `SandboxMixin.create_sandbox`. The sandbox has the directories that harness and task use."""
        if isinstance(self.sandbox_client, SandboxClient):
            folders = self._folders(state, request.docker_image)
            request = request.model_copy(update={"folders": (*request.folders, *folders)})
        return await super().create_sandbox(state, request)

    def _folders(self, state: Any, image: str | None) -> Iterator[str]:
        harness = self.harness
        files = [harness.instruction_path, *(harness.post_install_uploads or {})]
        files += [harness.system_prompt_path] if harness.system_prompt else []
        files += [harness.log_path] if harness.log_path else []
        yield from (posixpath.dirname(path) for path in files if path.startswith("/"))
        yield from (harness.get_effective_upload_dir_mapping() or {}).values()
        if is_python_image(
            image
        ):  # other images contain the directories of the task, with its files
            yield self.taskset.get_workdir(info_of(state))
            yield from self.taskset.get_folders(info_of(state))

    # ------------------------------------------------------------------------------------------- before the agent

    async def post_sandbox_setup(self, state: Any) -> None:
        """Prepare the task, upload instruction, system prompt and folders, and install the agent."""
        sandbox_id = state["sandbox_id"]
        self._populate_sandbox_context(state)
        await call_hook(self.taskset.setup, state)
        await self._create_harness_input_dirs(sandbox_id)
        await self._upload_harness_inputs(sandbox_id, state)
        await self._after_harness_inputs_uploaded(state)
        await self._install_agent(sandbox_id)
        await self._run_post_install(sandbox_id)

    def _populate_sandbox_context(self, state: MutableMapping[str, Any]) -> None:
        spec = self._spec_of(state)
        minutes = spec.timeout_minutes if spec is not None else None
        state["sandbox_client"] = self.sandbox_client
        state["test_timeout"] = int((minutes or self.compute_sandbox_timeout_minutes()) * 60)

    async def _create_harness_input_dirs(self, sandbox_id: str) -> None:
        harness = self.harness
        paths = [harness.instruction_path]
        paths += [harness.system_prompt_path] if harness.system_prompt else []
        folders = sorted({posixpath.dirname(path) or "." for path in paths})
        await self.sandbox_client.execute_command(
            sandbox_id, f"mkdir -p {shlex.join(folders)}", timeout=self.timeouts.mkdir
        )

    async def _upload_harness_inputs(self, sandbox_id: str, state: Any) -> None:
        harness = self.harness
        instruction = self.taskset.get_instruction(info_of(state))
        if instruction.strip():
            await self.upload_content(sandbox_id, instruction, harness.instruction_path)
        if harness.system_prompt:
            await self.upload_content(sandbox_id, harness.system_prompt, harness.system_prompt_path)

    async def _after_harness_inputs_uploaded(self, state: Any) -> None:
        """Upload the folders for which the harness has a path."""
        mapping = self.harness.get_effective_upload_dir_mapping()
        if mapping is None:
            return
        for name, folder in (await asyncio.to_thread(self._get_upload_dirs)).items():
            if name in mapping:
                await self._upload_dir(state["sandbox_id"], folder, mapping[name])

    def _get_upload_dirs(self) -> dict[str, Folder]:
        """Return the folders of taskset and harness. Blocks: a harness may fetch its folder on first use."""
        of_task = self.taskset.get_upload_dirs() or {}
        ask_harness = self.harness.get_upload_dirs
        of_harness = (ask_harness() if ask_harness else None) or {}
        if twice := sorted(set(of_task) & set(of_harness)):
            raise ConfigError(
                "Upload directory names must be unique across task and harness; both have "
                f"{', '.join(map(repr, twice))}."
            )
        return {**of_task, **of_harness}

    async def _upload_dir(self, sandbox_id: str, local_source: Folder, remote_dest: str) -> None:
        archive = await asyncio.to_thread(self._build_dir_archive, local_source, remote_dest)
        remote = f"/tmp/_upload_{remote_dest.strip('/').replace('/', '_')}.tar.gz"
        try:
            await self.upload_file(sandbox_id, remote, str(archive))
        finally:
            archive.unlink(missing_ok=True)
        parent, packed = shlex.quote(posixpath.dirname(remote_dest) or "/"), shlex.quote(remote)
        done = await self.sandbox_client.execute_command(
            sandbox_id,
            f"mkdir -p {parent} && tar -xzf {packed} -C / && rm -f {packed}",
            timeout=self.timeouts.extract,
        )
        _check_exit(done, "Upload dir extract failed")

    def _build_dir_archive(self, local_source: Folder, remote_dest: str) -> Path:
        """Return a new gzipped tar file with a folder under its path in the sandbox. Blocks.

        Git data, virtual environments and caches are left out. No process removes a shared checkout meanwhile.
        """
        descriptor, name = tempfile.mkstemp(suffix=".tar.gz")
        path = Path(name)
        try:
            with (
                _in_use(local_source),
                open(descriptor, "wb") as file,
                tarfile.open(fileobj=file, mode="w:gz") as archive,
            ):
                _add_folder(archive, local_source, remote_dest.strip("/"))
        except BaseException:
            path.unlink()
            raise
        return path

    async def _install_agent(self, sandbox_id: str) -> None:
        if script := self.harness.install_script:
            await self._run_script(sandbox_id, script, "Agent install failed")

    async def _run_post_install(self, sandbox_id: str) -> None:
        for path, text in (self.harness.post_install_uploads or {}).items():
            await self.upload_content(sandbox_id, text, path)
        if script := self.harness.post_install_script:
            await self._run_script(sandbox_id, script, "Post-install failed")

    async def _run_script(self, sandbox_id: str, script: str, failure: str) -> None:
        limit_s = self.harness.install_timeout
        env: dict[str, Any] = {"env": self.install_env} if self.install_env else {}
        try:
            done = await self.sandbox_client.execute_command(
                sandbox_id, script, timeout=limit_s, **env
            )
        except timeout_errors() as error:
            raise SandboxError(
                f"{failure}: the script took longer than {limit_s:g} s. Set Harness.install_timeout."
            ) from error
        _check_exit(done, failure)

    # --------------------------------------------------------------------------------------------------- turns

    async def add_trajectory_step(self, state: Any, trajectory_step: TrajectoryStep) -> None:
        """Append a step to the trajectory, unless the harness leaves it out."""
        keep = self.harness.keep_trajectory_step
        if keep is not None:
            headers = state.get("_last_request_headers") or {}
            if not keep(trajectory_step, state, headers):
                return
        await super().add_trajectory_step(state, trajectory_step)

    async def render_completion(self, state: State) -> None:
        """Set the completion: as the harness does, else all messages after the prompt."""
        if self.harness.render_completion is None:
            await super().render_completion(state)
        else:
            await call_hook(self.harness.render_completion, state)

    # --------------------------------------------------------------------------------------------- after the agent

    async def post_rollout(self, state: Any) -> None:
        """Store the logs and the metrics of the agent. A failure is logged."""
        sandbox_id = state.get("sandbox_id")
        if not sandbox_id:
            return
        if self.harness.log_path and "agent_logs" not in state:
            try:
                state["agent_logs"] = await self._read_logs(sandbox_id)
            except Exception as error:  # noqa: BLE001 - the rollout counts without its logs
                self.logger.warning("The logs of the agent could not be read: %r", error)
        if self.harness.metrics_path:
            try:
                await self._collect_harness_metrics(sandbox_id, state)
            except Exception as error:  # noqa: BLE001 - the rollout counts without the metrics of its agent
                self.logger.warning("Failed to collect harness metrics: %r", error)

    async def _read_logs(self, sandbox_id: str) -> str:
        path = shlex.quote(self.harness.log_path or "")
        done = await self.sandbox_client.execute_command(
            sandbox_id, f"cat {path} 2>/dev/null || echo '<no logs>'", working_dir=None
        )
        return (done.stdout or "").strip()

    async def _collect_harness_metrics(self, sandbox_id: str, state: Any) -> None:
        harness = self.harness
        workdir = self.taskset.get_workdir(info_of(state))
        pattern = (harness.metrics_path or "").replace("{workdir}", workdir)
        done = await self.sandbox_client.execute_command(
            sandbox_id,
            f'f=$(ls {pattern} 2>/dev/null | head -1) && cat "$f" || echo "{{}}"',
            working_dir=None,
        )
        metrics = json.loads((done.stdout or "").strip() or "{}")
        if harness.metrics_key:
            metrics = metrics.get(harness.metrics_key) or {}
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            if harness.metrics_keys is not None and name not in harness.metrics_keys:
                continue
            key = f"{harness.metrics_prefix}{name}"
            state[key] = value
            if isinstance(value, int | float):
                numbers[key] = float(value)
        state["_harness_metrics"] = numbers


def _check_exit(done: Any, failure: str) -> None:
    if done.exit_code != 0:
        output = (done.stdout or "") + (done.stderr or "")
        raise SandboxError(f"{failure} (exit={done.exit_code}): {output[:_SHOWN_CHARACTERS]}")


@contextmanager
def _in_use(folder: Folder) -> Iterator[None]:
    """Hold the shared lock that keeps a checkout from being removed."""
    lock: Any = nullcontext()
    if isinstance(folder, Path):
        try:
            lock = open_locked(sibling_lock_path(folder, IN_USE_SUFFIX), is_shared=True)
        except OSError:
            pass  # a folder that this program cannot write, such as an installed package, and cannot remove either
    with lock:
        yield


def _add_folder(archive: tarfile.TarFile, folder: Folder, arcname: str) -> None:
    """Add a folder with the files in it, owned by root. Links stay links."""
    archive.addfile(_entry(folder, arcname, tarfile.DIRTYPE))
    for inner in sorted(folder.iterdir(), key=lambda each: each.name):
        if inner.name in _NOT_UPLOADED or inner.name.endswith(_NOT_UPLOADED_SUFFIXES):
            continue
        name = f"{arcname}/{inner.name}"
        if isinstance(inner, Path) and inner.is_symlink():
            link = _entry(inner, name, tarfile.SYMTYPE)
            link.linkname = os.readlink(inner)
            archive.addfile(link)
        elif inner.is_dir():
            _add_folder(archive, inner, name)
        elif inner.is_file():
            data = _entry(inner, name, tarfile.REGTYPE)
            with inner.open("rb") as file:
                data.size = file.seek(0, os.SEEK_END)
                file.seek(0)
                archive.addfile(data, file)


def _entry(path: Folder, name: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    found = os.lstat(path) if isinstance(path, Path) else None
    is_program = kind == tarfile.DIRTYPE or (found is not None and found.st_mode & 0o111)
    entry.type, entry.mode = kind, 0o755 if is_program else 0o644
    entry.mtime = time.time() if found is None else found.st_mtime
    return entry


__all__ = ["ComposableEnv", "HarnessMetricsRubricGroup"]

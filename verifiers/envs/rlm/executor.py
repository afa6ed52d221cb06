"""`RLMExecutor`: the sandboxes of `RLMEnv`, and the workers that run code in them.

`RLMEnv` calls, in this order: `create_rollout_dirs`, `prepare_filesystem`, `setup`, then `execute` per tool call, and
`cleanup`. Authors replace single methods on the instance, so each of them does its own part only.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Protocol

from verifiers.envs.hooks import call_hook
from verifiers.envs.python_env import installed_modules, requirements
from verifiers.envs.rlm.prompts import ReplLanguage
from verifiers.envs.rlm.repl_process import ReplProcess, WorkerEnded, worker_script
from verifiers.envs.rlm.session import (
    RLMCodeExecutionTimeout,
    RLMExecResult,
    RLMSandboxCommandTimeout,
    RLMSessionError,
    RLMSetupError,
    RLMWorkerError,
    RLMWorkerPaths,
    RLMWorkerRecoveryError,
    SandboxRLMReplSession,
)
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.envs.sandbox_mixin import SandboxMixin, note_death
from verifiers.envs.sandbox_request import IMAGELESS_BACKENDS
from verifiers.errors import ConfigError, Error
from verifiers.interception.doorway import Doorway
from verifiers.interception.server import InterceptionServer
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import SandboxBackend, SandboxSpec
from verifiers.sandboxes.open import BackendName, default_backend_name


class RLMOptions(Protocol):
    """The environment, as far as the executor reads it."""

    logger: logging.Logger
    rubric: Rubric
    repl_language: ReplLanguage
    pip_install_packages: str
    max_output_length: int
    max_startup_wait_seconds: float
    code_execution_timeout: float
    retain_filesystem_after_rollout: bool
    sandbox_transfer_max_retries: int

    def get_sandbox_request(self, state: Any) -> Any: ...
    async def on_sandbox_ready(self, state: Any, sandbox_id: str) -> None: ...
    def customize_worker_script(self, script: str, state: Any) -> str: ...
    def _build_worker_env_vars(self, state: Any) -> dict[str, str]: ...
    def _require_interception_server(self) -> InterceptionServer: ...
    def with_retry_on_read_errors(self, function: Callable[..., Any]) -> Callable[..., Any]: ...


class RLMExecutor(SandboxMixin):
    """See the module. `sandbox_client` is the client of its sandboxes."""

    score_rollouts = False
    """The sandbox ends with the rollout: reward functions read `final_answer`, or the folder that was kept."""
    timeout_seconds = None

    def __init__(
        self,
        env: RLMOptions,
        backend: SandboxBackend | BackendName | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
    ) -> None:
        self._env = env
        self.logger = env.logger
        self.rubric = env.rubric
        self._cleanup_handlers = []
        self._sessions: dict[str, SandboxRLMReplSession] = {}
        self._missing_packages: ConfigError | None = None
        chosen = backend or default_backend_name()
        self._backend_name = chosen if isinstance(chosen, str) else chosen.name
        spec = self._with_packages(SandboxSpec.model_validate(sandbox_spec or {}))
        self.init_sandbox_client(
            max_retries=env.sandbox_transfer_max_retries, backend=backend, sandbox_spec=spec
        )

    def _with_packages(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the specification with the packages that the code needs.

        Missing packages are reported by the first rollout, because constructing an environment must not fail for them.
        """
        if (
            not self._env.pip_install_packages.split()
            or self._backend_name not in IMAGELESS_BACKENDS
        ):
            return spec
        packages = spec.packages or "host"
        try:
            wanted = requirements(self._env.pip_install_packages)
            modules = installed_modules(wanted, packages)
        except ConfigError as error:
            self._missing_packages = error
            self.logger.warning("Every rollout will fail: %s", error)
            return spec
        preload = modules if self._env.repl_language == "python" else ()
        preload = tuple(dict.fromkeys((*spec.preload, *preload)))
        return spec.model_copy(update={"packages": packages, "preload": preload})

    # ------------------------------------------------------------------------------------------------ sessions

    def _get_session(self, state: Mapping[str, Any]) -> SandboxRLMReplSession:
        """Return the session of a rollout. Raises RLMSessionError if it has none."""
        session = self._sessions.get(str(state.get("rollout_id")))
        if session is None:
            raise RLMSessionError(
                f"The rollout {state.get('rollout_id')!r} has no REPL: it was never set up, or it has ended."
            )
        return session

    def _get_or_create_session(self, state: MutableMapping[str, Any]) -> SandboxRLMReplSession:
        rollout_id = str(state["rollout_id"])
        session = self._sessions.get(rollout_id)
        if session is None:
            paths = [
                state.get(f"rlm_{name}", "") for name in ("rollout_dir", "fs_root", "control_dir")
            ]
            session = self._sessions[rollout_id] = SandboxRLMReplSession(rollout_id, *paths)
        base = _base_folder(rollout_id)
        session.sandbox_fs_root = state.get("rlm_fs_root_remote") or f"{base}/rlm_fs"
        control_dir = state.get("rlm_control_dir_remote") or f"{base}/rlm_control"
        session.sandbox_control_dir = control_dir
        session.paths = RLMWorkerPaths.below(control_dir)
        return session

    def _sandbox_of(self, session: SandboxRLMReplSession) -> str:
        if session.sandbox_id is None:
            raise RLMSessionError(f"The rollout {session.rollout_id!r} has no sandbox.")
        return session.sandbox_id

    # --------------------------------------------------------------------------------------------------- begin

    def create_rollout_dirs(self, state: MutableMapping[str, Any]) -> None:
        """Create the folders of a rollout on this machine and store their paths in the state."""
        folder = Path(tempfile.mkdtemp(prefix=f"rlm_rollout_{state['rollout_id']}_"))
        state["rlm_rollout_dir"] = str(folder)
        for name, key in (("rlm_fs", "rlm_fs_root"), ("rlm_control", "rlm_control_dir")):
            (folder / name).mkdir()
            state[key] = str(folder / name)
        state["rlm_paths"] = RLMWorkerPaths.below(state["rlm_control_dir"]).to_dict()

    async def prepare_filesystem(self, state: Any) -> None:
        """Create the sandbox and upload the data."""
        session = self._get_or_create_session(state)
        await self._ensure_sandbox(session, state)
        if session.local_fs_root and os.listdir(session.local_fs_root):
            upload = self._env.with_retry_on_read_errors(self._upload_directory)
            sandbox_id = self._sandbox_of(session)
            await upload(sandbox_id, session.local_fs_root, session.sandbox_fs_root)

    async def _ensure_sandbox(self, session: SandboxRLMReplSession, state: Any) -> None:
        if session.sandbox_id is not None:
            return
        if self._missing_packages is not None:
            raise self._missing_packages
        request = await call_hook(self._build_sandbox_request, state)
        try:
            session.sandbox_id = await self.create_sandbox(state, request)
        finally:
            session.sandbox_id = session.sandbox_id or state.get("sandbox_id")

    def _build_sandbox_request(self, state: Any) -> Any:
        return self._env.get_sandbox_request(state)

    async def post_sandbox_setup(self, state: Any) -> None:
        """Run `on_sandbox_ready` of the environment. Its exceptions become RLMSetupError."""
        sandbox_id = state["sandbox_id"]
        try:
            await call_hook(self._env.on_sandbox_ready, state, sandbox_id)
        except Error:
            raise
        except Exception as error:
            raise RLMSetupError(
                f"on_sandbox_ready failed in sandbox {sandbox_id}: {type(error).__name__}: {error}"
            ) from error

    async def setup(self, state: Any) -> None:
        """Open the port to this program and start the worker. Raises RLMSetupError or RLMWorkerError."""
        session = self._get_or_create_session(state)
        await self._ensure_sandbox(session, state)
        if not isinstance(self.sandbox_client, SandboxClient):
            raise RLMSetupError(
                "RLMEnv starts its worker through verifiers' own SandboxClient; sandbox_client is a "
                f"{type(self.sandbox_client).__name__}. Use backend='prime' for sandboxes of that service."
            )
        await self._install_packages(session)
        await asyncio.gather(
            self._open_doorway(session, state), self._start_first_worker(session, state)
        )

    async def _open_doorway(self, session: SandboxRLMReplSession, state: Any) -> None:
        """Open the port at which code finds the interception server, if the URL in the state leads there."""
        port = state.get("rlm_port")
        if port is None:
            return
        sandbox = self.sandbox_client.sandbox(self._sandbox_of(session))
        server = self._env._require_interception_server()
        session.doorway = Doorway(sandbox, server.open_connection, port)
        await session.doorway.open()

    async def _install_packages(self, session: SandboxRLMReplSession) -> None:
        """Install `pip_install_packages` on back ends with images. Raises RLMSetupError."""
        packages = self._env.pip_install_packages
        if not packages.split() or self._backend_name in IMAGELESS_BACKENDS:
            return
        names = " ".join(map(shlex.quote, packages.split()))
        command = f"python3 -m pip install -q --disable-pip-version-check {names}"
        limit_s = self._env.max_startup_wait_seconds
        result = await self._execute_sandbox_command(
            self._sandbox_of(session), command, timeout=int(limit_s)
        )
        self._raise_on_command_error(result, f"Installing {packages!r} failed")

    def _raise_on_command_error(self, result: Any, context: str) -> None:
        if result.exit_code:
            words = (result.stderr or result.stdout or "").strip()[-2000:]
            raise RLMSetupError(f"{context} (exit code {result.exit_code}): {words}")

    async def _start_first_worker(self, session: SandboxRLMReplSession, state: Any) -> None:
        script = await call_hook(self._env.customize_worker_script, worker_script(), state)
        if not isinstance(script, str):
            raise ConfigError(
                f"customize_worker_script must return the script as text; it returned {type(script).__name__}."
            )
        assert session.paths is not None
        settings = {
            "repl_language": self._env.repl_language,
            "fs_root": session.sandbox_fs_root,
            "control_dir": session.sandbox_control_dir,
            "answer_file": session.paths.answer_file,
            "max_output_length": self._env.max_output_length,
        }
        variables = await call_hook(self._env._build_worker_env_vars, state)
        env = {**variables, **(state.get("_rlm_api_variables") or {})}
        session.start = {"script": script, "settings": settings, "env": env}
        await self._start_worker(session, state)

    async def _start_worker(self, session: SandboxRLMReplSession, state: Any) -> None:
        """Start the worker and wait until it is ready. Raises RLMWorkerError."""
        limit_s = self._env.max_startup_wait_seconds
        sandbox = self.sandbox_client.sandbox(self._sandbox_of(session))
        try:
            session.worker = await ReplProcess.start(sandbox, **session.start, limit_s=limit_s)
        except TimeoutError:
            raise RLMWorkerError(
                f"The REPL worker was not ready after max_startup_wait_seconds={limit_s:g}."
            ) from None
        except WorkerEnded as error:
            raise RLMWorkerError(f"The REPL worker did not start: {error}") from error

    async def _stop_worker(self, session: SandboxRLMReplSession) -> None:
        worker, session.worker = session.worker, None
        if worker is not None:
            await worker.kill()

    # ----------------------------------------------------------------------------------------------- executions

    async def write_history(self, state: Any, text: str) -> None:
        """Write `.messages` in the working directory before the next execution."""
        session = self._sessions.get(str(state.get("rollout_id")))
        if session is not None and session.worker is not None:
            await session.worker.send({"history": text})

    async def execute(self, payload: dict[str, Any], state: Any) -> RLMExecResult:
        """Send `{"code", "seq"}` to the worker and return its reply. A worker that ends meanwhile is started again.

        Raises RLMCodeExecutionTimeout, RLMWorkerRecoveryError and RLMSessionError.
        """
        session = self._get_session(state)
        if session.worker is None:
            raise RLMSessionError(f"The rollout {session.rollout_id!r} has no running worker.")
        limit_s = self._env.code_execution_timeout
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return RLMExecResult(await session.worker.ask(payload), "", 0)
        except TimeoutError:
            if not limit.expired():
                raise
            raise RLMCodeExecutionTimeout(
                f"The code ran longer than {limit_s:g} seconds."
            ) from None
        except WorkerEnded as error:
            await self._restart(session, state)
            return RLMExecResult(json.dumps(_ended_reply(payload, str(error))), "", 0)

    async def recover_from_timeout(self, state: Any) -> bool:
        """Kill the code that runs and start a new worker. Return whether this worked."""
        try:
            await self._restart(self._get_session(state), state)
        except (RLMWorkerRecoveryError, RLMSessionError) as error:
            self.logger.warning("The REPL worker could not be restarted: %s", error)
            return False
        return True

    async def _restart(self, session: SandboxRLMReplSession, state: Any) -> None:
        try:
            await self._stop_worker(session)
            await self._start_worker(session, state)
        except Error as error:
            note_death(state, error)
            raise RLMWorkerRecoveryError(
                f"The REPL worker could not be restarted: {error}"
            ) from error

    async def read_answer(self, state: Any) -> str:
        """Return the content that the code has stored in its answer; "" if there is none."""
        session = self._get_session(state)
        assert session.paths is not None
        try:
            sandbox = self.sandbox_client.sandbox(self._sandbox_of(session))
            answer = json.loads(await sandbox.read(session.paths.answer_file))
        except (Error, ValueError, OSError) as error:
            self.logger.debug("No answer in %s: %s", session.rollout_id, error)
            return ""
        return str(answer.get("content", "")) if isinstance(answer, dict) else ""

    async def _execute_sandbox_command(
        self, sandbox_id: str, command: str, *, working_dir: str | None = None, timeout: int = 30
    ) -> Any:
        """Run a command of the environment. Return `stdout`, `stderr` and `exit_code`.

        Raises RLMSandboxCommandTimeout.
        """
        try:
            return await self.sandbox_client.execute_command(
                sandbox_id, command, working_dir=working_dir, timeout=timeout
            )
        except timeout_errors() as error:
            raise RLMSandboxCommandTimeout(
                f"A command ran longer than {timeout:g} s in sandbox {sandbox_id}: {command:.200}"
            ) from error

    async def _upload_directory(self, sandbox_id: str, local_dir: str, remote_dir: str) -> None:
        """Copy the content of a directory of this machine into the sandbox."""
        await self.sandbox_client.upload_file(sandbox_id, remote_dir, local_dir)

    async def _download_directory(self, sandbox_id: str, remote_dir: str, local_dir: str) -> None:
        """Copy a directory of the sandbox to this machine, without links that lead outside."""
        await self.sandbox_client.download_file(sandbox_id, remote_dir, local_dir)

    # ----------------------------------------------------------------------------------------------------- end

    async def cleanup(self, state: Any) -> None:
        """Stop the worker, keep the working directory if asked, and delete sandbox and folders."""
        session = self._sessions.pop(str(state.get("rollout_id")), None)
        if session is not None:
            await self._end_session(session)
        folder = state.get("rlm_rollout_dir")
        if folder and not self._env.retain_filesystem_after_rollout:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _end_session(self, session: SandboxRLMReplSession) -> None:
        sandbox_id = session.sandbox_id
        try:
            await self._stop_worker(session)
            if session.doorway is not None:
                await session.doorway.aclose()
            if sandbox_id is not None and self._env.retain_filesystem_after_rollout:
                await self._keep_filesystem(session, sandbox_id)
        except Error as error:
            self.logger.warning("The REPL of %s did not end cleanly: %s", session.rollout_id, error)
        finally:
            if sandbox_id in self.active_sandboxes:
                await self.delete_sandbox(sandbox_id)
            if (
                self._backend_name == "unsafe-local"
            ):  # these sandboxes share the files of this machine
                folder = _base_folder(session.rollout_id)
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _keep_filesystem(self, session: SandboxRLMReplSession, sandbox_id: str) -> None:
        """Replace the folder on this machine by the working directory of the sandbox."""
        folder = session.local_fs_root
        try:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            download = self._env.with_retry_on_read_errors(self._download_directory)
            await download(sandbox_id, session.sandbox_fs_root, folder)
        except Error as error:
            self.logger.warning(
                "The working directory of %s was not kept: %s", session.rollout_id, error
            )
        finally:
            await asyncio.to_thread(os.makedirs, folder, exist_ok=True)

    async def teardown(self) -> None:
        """Delete everything that is left, and close the client."""
        for session in list(self._sessions.values()):
            self._sessions.pop(session.rollout_id, None)
            await self._end_session(session)
        await self.teardown_mixin_sandboxes()
        await self.teardown_mixin_sandbox_client()


def _base_folder(rollout_id: str) -> str:
    """Return the folder of a rollout in its sandbox."""
    return f"/tmp/rlm_{rollout_id}"


def _ended_reply(payload: Mapping[str, Any], reason: str) -> dict[str, Any]:
    return {
        "status": "error",
        "stdout": "",
        "stderr": "",
        "result": f"The code ended the REPL ({reason.rstrip('.')}). A new one was started: its variables are gone, "
        "the files are still there.",
        "execution_count": 0,
        "seq": payload.get("seq"),
        "answer": {"ready": False, "content": ""},
    }


__all__ = ["RLMExecutor"]

"""The sandboxes of a Harbor task: which image, services, size and network each of them has.

Docker and Podman run a task as Harbor does: in a writable copy of its image, which they pull or build, with the
services of its Compose file beside it. Other back ends run tasks whose image they have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from verifiers.envs.harbor.images import (
    ENGINES,
    ImageBuilder,
    check_context,
    is_plain_python,
    refuse_build,
)
from verifiers.envs.harbor.task_config import Environment, NetworkMode
from verifiers.envs.harbor.task_files import HarborTask
from verifiers.envs.sandbox_client import SandboxClient
from verifiers.envs.sandbox_mixin import SandboxMixin
from verifiers.errors import DatasetError
from verifiers.sandboxes.containers import ContainerBackend
from verifiers.sandboxes.spec import ComposeProject

DEFAULT_IMAGE = "python:3.11-slim"
DEFAULT_WORKDIR = "/app"
DEFAULT_SIZES = {"cpu_cores": 1, "memory_gb": 2, "disk_size_gb": 5}
"""Sizes of an agent's sandbox that its author did not choose."""
LOGS = ("agent", "artifacts", "verifier")
_SECRET_PLACES = "/tests /solution /oracle"
_NETWORKS: dict[NetworkMode, str] = {"public": "full", "no-network": "none"}


class TaskPlace(NamedTuple):
    """Where a phase of a task runs."""

    image: str
    """"host" with a Compose file that names the image of its service `main`."""
    workdir: str
    spec_fields: dict[str, Any]
    """Fields of the SandboxSpec."""


class HarborSandboxMixin(SandboxMixin):
    """Prepares images and requests for the sandboxes of tasks."""

    docker_image: str
    agent_workdir: str
    _builders: dict[str, ImageBuilder]
    _network_is_chosen: bool
    """Whether the author of the environment has chosen a network, which then replaces that of tasks."""

    async def _place_of(
        self,
        task: HarborTask,
        environment: Environment,
        context: Path,
        network: NetworkMode | None,
        *,
        secrets: tuple[Path, ...] = (),
    ) -> TaskPlace:
        """Return where a phase runs; build or pull its image. `secrets` are folders that the image must not contain.

        Raises ConfigError if this back end cannot build the image, SandboxImageError if the build fails, and
        DatasetError if the image would contain secrets.
        """
        backend, own_image = self._backend_name(), environment.docker_image
        if environment.os != "linux":
            raise DatasetError(
                f"The task {task.name!r} needs {environment.os}; sandboxes run Linux."
            )
        compose, dockerfile = task.compose_file(context), task.dockerfile(context)
        is_chosen = self.docker_image != DEFAULT_IMAGE
        if backend not in ENGINES:
            if own_image is None and not is_chosen:
                if compose is not None:
                    raise refuse_build(task.name, f"{context.name}/{compose.name}", backend)
                if dockerfile is not None and not is_plain_python(dockerfile):
                    raise refuse_build(task.name, f"{context.name}/Dockerfile", backend)
            fields = self._network_fields(environment, network, is_engine=False)
            workdir = environment.workdir or self.agent_workdir
            return TaskPlace(own_image or self.docker_image, workdir, fields)
        fields: dict[str, Any] = {
            "writable_image": True,
            "folders": (),
            **self._network_fields(environment, network, is_engine=True),
        }
        if dockerfile is not None or compose is not None:
            check_context(task.name, context, secrets)
        image, workdir, builder = "host", None, self._builder()
        if own_image is not None:
            image, workdir = await builder.pull(own_image)
        elif compose is None and (is_chosen or dockerfile is None):
            image, workdir = await builder.pull(self.docker_image)
        elif compose is None:
            image, workdir = await builder.build(task.name, context, environment.build_timeout_sec)
        if compose is not None:
            fields["compose"] = _compose_project(compose, environment, image)
        if self.agent_workdir != DEFAULT_WORKDIR:
            workdir = self.agent_workdir
        workdir = environment.workdir or workdir or self.agent_workdir
        fields["workdir"] = workdir if workdir != "/" else self.agent_workdir
        return TaskPlace(image, fields["workdir"], fields)

    def _backend_name(self) -> str:
        client = self.sandbox_client
        return client.backends.name if isinstance(client, SandboxClient) else type(client).__name__

    def _builder(self) -> ImageBuilder:
        backend = self.sandbox_client.backends.here()
        assert isinstance(backend, ContainerBackend), backend
        engine = backend.config.engine
        return self._builders.setdefault(engine, ImageBuilder(engine, backend.config.program))

    def _network_fields(
        self, environment: Environment, network: NetworkMode | None, *, is_engine: bool
    ) -> dict[str, Any]:
        """Return the network of a sandbox. Harbor's default, the internet, holds on Docker and Podman only."""
        mode = network or environment.network_mode or ("public" if is_engine else None)
        if self._network_is_chosen or mode is None or (mode == "public" and not is_engine):
            return {}
        if mode == "allowlist":
            return {"network": {"allow": tuple(environment.allowed_hosts or ())}}
        return {"network": _NETWORKS[mode]}

    def _request_changes(
        self, environment: Environment, place: TaskPlace, request: Any
    ) -> dict[str, Any]:
        """Return the values of a request that a task defines. Sizes that the author chose are kept."""
        sizes = {
            "cpu_cores": environment.cpus,
            "memory_gb": environment.memory_mb and environment.memory_mb / 1024,
            "disk_size_gb": environment.storage_mb and environment.storage_mb / 1024,
        }
        changes: dict[str, Any] = {
            name: size
            for name, size in sizes.items()
            if size and getattr(request, name) == DEFAULT_SIZES[name]
        }
        if environment.gpus and not request.gpu_count:
            changes["gpu_count"] = environment.gpus
        if not place.spec_fields.get("writable_image"):
            changes["folders"] = (*request.folders, place.workdir)
        return {
            **changes,
            "docker_image": place.image,
            "spec_fields": {**request.spec_fields, **place.spec_fields},
        }

    async def _refuse_secrets(self, sandbox_id: str, task: HarborTask) -> None:
        """Raise DatasetError if the image of an agent's sandbox contains tests or a solution."""
        client = self.sandbox_client
        if not (
            isinstance(client, SandboxClient) and client.sandbox(sandbox_id).spec.writable_image
        ):
            return
        found = await client.execute_command(
            sandbox_id, f"find {_SECRET_PLACES} -type f 2>/dev/null | head -n 3"
        )
        if found.stdout.strip():
            names = ", ".join(found.stdout.split())
            raise DatasetError(
                f"The image of the task {task.name!r} contains {names}, which the agent could read. Remove "
                "the tests and the solution from the image; they are uploaded when the agent has ended."
            )


def _compose_project(file: Path, environment: Environment, image: str) -> ComposeProject:
    """Return the Compose file with the variables that Harbor defines for it."""
    context = file.parent
    variables = {
        "CPUS": f"{environment.cpus or 1:g}",
        "MEMORY": f"{environment.memory_mb or 2048}M",
        "TEST_DIR": "/tests",
        "CONTEXT_DIR": str(context),
        "MAIN_IMAGE_NAME": f"vf-harbor-{context.parent.name.lower()}",
        "PREBUILT_IMAGE_NAME": "" if image == "host" else image,
    }
    for name in LOGS:
        variable = "ARTIFACTS_PATH" if name == "artifacts" else f"{name.upper()}_LOGS_PATH"
        variables[f"ENV_{variable}"] = f"/logs/{name}"
        variables[f"HOST_{variable}"] = f"logs-{name}"  # a volume of the project
    has_dockerfile = image == "host" and (context / "Dockerfile").is_file()
    return ComposeProject(
        file=str(file),
        variables=tuple(variables.items()),
        start_timeout_s=environment.build_timeout_sec,
        build_main=str(context) if has_dockerfile else None,
        volumes=tuple(f"logs-{name}" for name in LOGS),
    )

"""An environment whose rollouts run in processes of their own: `start_server`, and runs that go through `env_client`.

What runs such a process lies in a layer above this one, so it is looked up by name, when the first server is started.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifiers.envs.early_stop import EarlyStop
from verifiers.envs.options import GenerateOptions
from verifiers.envs.run_record import RunRecord, Task
from verifiers.errors import AuthenticationError, ConfigError, Error, RewardError
from verifiers.rollouts.schedule import Limits, Schedule
from verifiers.runs.output import output_from_state
from verifiers.types import RolloutOutput, SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

logger = logging.getLogger(__name__)

SERVER_MODULE = "verifiers.serve.server_process"


class HasServer:
    """What `Environment` offers about running in processes of its own."""

    env_client: Any = None
    """A client of an environment server; when set, `generate` and `evaluate` run there."""
    _server: Any = None

    async def start_server(self, *args: Any, **kwargs: Any) -> None:
        """Run this environment's rollouts in `num_workers` other processes from now on: `(address=None,
        extra_env_kwargs=None, num_workers=1, log_level=None, log_dir=None, console_logging=True,
        health_check_interval=1.0, startup_timeout=600.0, recovery_timeout=600.0)`, times in seconds, and by name
        `python` (the workers' interpreter) and the further options of `ZMQEnvServer`.

        The workers load the environment by its id, or by the path that it was loaded from. They end with `stop_server`,
        or with this process.
        """
        await self.stop_server()
        start = importlib.import_module(SERVER_MODULE).start_server
        self._server, self.env_client = await start(self, *args, **kwargs)

    async def stop_server(self) -> None:
        """End the processes of `start_server`; nothing if there are none."""
        server, self._server = self._server, None
        if server is not None:
            self.env_client = None
            await server.stop()


def remote_schedule(
    env: Environment,
    client: Any,
    model: str,
    sampling_args: SamplingArgs,
    options: GenerateOptions,
    record: RunRecord,
    early_stop: EarlyStop,
) -> tuple[Schedule[list[Task], list[RolloutOutput]], bool]:
    """The schedule of a run on `env.env_client`, and whether it takes whole groups or single rollouts."""
    in_groups = not options.independent_scoring and (
        env.requires_group_rollouts
        or env.provides_advantages
        or "advantage" in options.state_columns
    )
    settings = {"max_retries": options.max_retries, "state_columns": options.state_columns}
    if (limits := options.rollout_limits(model).as_request()) is not None:
        settings["limits"] = limits

    async def play(tasks: list[Task]) -> list[RolloutOutput]:
        remote = env.env_client
        rows = [task.row for task in tasks]
        await early_stop.wait()
        try:
            if in_groups:
                outputs = await remote.run_group(rows, client, model, sampling_args, **settings)
            else:
                outputs = [
                    await remote.run_rollout(rows[0], client, model, sampling_args, **settings)
                ]
        except (AuthenticationError, ConfigError):
            raise
        except Error as error:
            outputs = [await _failed(env, row, client, model, sampling_args, error) for row in rows]
        for task, output in zip(tasks, outputs, strict=True):
            early_stop.played(output)
            early_stop.scored(output)
            if options.strict and output.get("errors"):
                raise RewardError(output["errors"][0]["message"])
            output["rollout_index"] = task.rollout_index
        return outputs

    async def score(_: list[list[RolloutOutput]]) -> None:
        """The server has scored."""

    async def deliver(index: int, outputs: list[list[RolloutOutput]]) -> None:
        new = [output for part in outputs for output in part]
        await record.add(new, [output.get("trajectory") for output in new])

    _warn_if_clipped(env.env_client, options)
    return Schedule(play, score, deliver, Limits(options.max_concurrent)), in_groups


def _warn_if_clipped(remote: Any, options: GenerateOptions) -> None:
    """Say that the client of an environment server takes fewer requests than the run asks for."""
    limit = getattr(remote, "max_in_flight", None)
    if limit is not None and options.max_concurrent > limit:
        logger.warning(
            "max_concurrent is %d, but the client of the environment server sends at most %d requests at once. "
            "Start the server with max_in_flight_per_worker=%d, or give ZMQEnvClient(max_in_flight=%d).",
            options.max_concurrent,
            limit,
            options.max_concurrent,
            options.max_concurrent,
        )


async def _failed(
    env: Environment,
    row: Mapping[str, Any],
    client: Any,
    model: str,
    sampling_args: SamplingArgs,
    error: Error,
) -> RolloutOutput:
    """The output of a rollout that the server could not carry out."""
    state = await env.init_state(row, client, model, sampling_args)
    state.error = error
    state.completion = []
    state.is_completed = True
    state.stop_condition = "has_error"
    return output_from_state(state)


def as_units(groups: Sequence[list[Task]], *, in_groups: bool) -> list[list[list[Task]]]:
    """The groups of a run as what is sent at once: a whole group, or each of its rollouts."""
    return [[group] if in_groups else [[task] for task in group] for group in groups]

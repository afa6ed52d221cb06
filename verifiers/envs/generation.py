"""A run, from rows to saved outputs: the work of `Environment.generate` and `evaluate`.

`run_rows` is the entry. A schedule plays and scores in this process (`_schedule`) or in workers (`_remote_schedule`),
and `RunRecord` saves and counts finished groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from verifiers.envs.options import GenerateOptions, merged_sampling_args
from verifiers.envs.play import play, score
from verifiers.envs.preflight import EarlyStop, endpoint_count
from verifiers.envs.protocol import RunnableEnvironment
from verifiers.envs.run_clients import RunClients, clients_of_run, shares_endpoints
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    DatasetError,
    Error,
    RewardError,
    error_info,
    note_error,
)
from verifiers.rollouts.garbage import fewer_collections
from verifiers.rollouts.limits import run_limits
from verifiers.rollouts.schedule import Limits, Schedule
from verifiers.runs.description import RunDescription, endpoint_url, get_version_info, provenance
from verifiers.runs.folders import is_run_folder, new_run_folder
from verifiers.runs.output import StateColumns, output_from_state
from verifiers.runs.resume import continue_run, validate_resume_metadata
from verifiers.runs.run_tokens import RunTokens
from verifiers.runs.store import RunStore
from verifiers.runs.summary import RunningSummary
from verifiers.state import State
from verifiers.tasks import Row, TaskSource, input_key, is_arrow, is_rows
from verifiers.types import GenerateMetadata, GenerateOutputs, RolloutOutput, SamplingArgs

logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """One rollout to play."""

    row: Row
    rollout_index: int


# -------------------------------------------------------------------------------------------------- the run


async def run_rows(
    env: RunnableEnvironment,
    rows: list[Row],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None,
    options: GenerateOptions,
) -> GenerateOutputs:
    """Play, score, save and summarise every input."""
    async with clients_of_run(env, client) as clients:
        return await _run(env, rows, clients, model, sampling_args, options)


async def _run(
    env: RunnableEnvironment,
    rows: list[Row],
    clients: RunClients,
    model: str,
    sampling_args: SamplingArgs | None,
    options: GenerateOptions,
) -> GenerateOutputs:
    sampling_args = merged_sampling_args(env.sampling_args, sampling_args)
    if options.scoring_timeout_s is not None:
        env.rubric.set_scoring_timeout_s(options.scoring_timeout_s)
    with run_limits(options.rollout_limits(model)):
        suspects = env._check_before_run(rows)
    early_stop = EarlyStop(suspects, endpoint_count(clients.described))
    record = RunRecord.start(env, rows, clients.described, model, sampling_args, options)
    try:
        groups = record.missing(_grouped(rows))
        if options.on_start is not None:
            flat = [task.row for group in groups for task in group]
            options.on_start(
                rows, flat if options.independent_scoring else [[t.row for t in g] for g in groups]
            )
        schedule: Schedule[Any, Any]
        if env.env_client is None:
            schedule = _schedule(env, clients, model, sampling_args, options, record, early_stop)
        else:
            schedule, in_groups = _remote_schedule(
                env, clients, model, sampling_args, options, record, early_stop
            )
            groups = _as_units(groups, in_groups=in_groups)
        watcher = _stop_when(options.stop, schedule)
        try:
            with run_limits(options.rollout_limits(model)), fewer_collections():
                await schedule.run(groups)
        finally:
            if watcher is not None:
                watcher.cancel()
        outputs = record.finish(interrupted=schedule.stopped)
    except Exception as error:
        record.failed(error)
        raise
    finally:
        record.close()
    if options.save_to_hf_hub:
        from verifiers.runs.publish import push_results_to_hf_hub

        await asyncio.to_thread(push_results_to_hf_hub, outputs, options.hf_hub_dataset_name)
    return outputs


def _schedule(
    env: RunnableEnvironment,
    clients: RunClients,
    model: str,
    sampling_args: SamplingArgs,
    options: GenerateOptions,
    record: RunRecord,
    early_stop: EarlyStop,
) -> Schedule[Task, State]:
    async def play_task(task: Task) -> State:
        await early_stop.wait()

        state = await play(
            env,
            task.row,
            clients.of(task.row),
            model,
            sampling_args,
            max_retries=options.max_retries,
            on_retry=options.on_retry,
        )
        early_stop.played(state)
        state["rollout_index"] = task.rollout_index
        return state

    async def score_group(states: list[State]) -> None:
        await score(env, states, alone=options.independent_scoring)
        for state in states:
            early_stop.scored(state)
        if options.strict:
            for state in states:
                if state.reward_errors:
                    raise RewardError(state.reward_errors[0]["message"])

    async def deliver(index: int, states: list[State]) -> None:
        new = [output_from_state(state, options.state_columns) for state in states]
        await record.add(new, [state.get("trajectory") for state in states], states)

    limits = Limits(options.max_concurrent, options.max_concurrent_scoring)
    return Schedule(play_task, score_group, deliver, limits)


def _stop_when(
    stop: asyncio.Event | None, schedule: Schedule[Any, Any]
) -> asyncio.Task[None] | None:
    if stop is None:
        return None

    async def watch() -> None:
        await stop.wait()
        schedule.stop()

    return asyncio.create_task(watch())


def _remote_schedule(
    env: RunnableEnvironment,
    clients: RunClients,
    model: str,
    sampling_args: SamplingArgs,
    options: GenerateOptions,
    record: RunRecord,
    early_stop: EarlyStop,
) -> tuple[Schedule[list[Task], list[RolloutOutput]], bool]:
    """Return the schedule of a run on `env.env_client`, and whether its unit is a group or a single rollout."""
    remote = env.env_client
    in_groups = not options.independent_scoring and (
        env.requires_group_rollouts
        or env.provides_advantages
        or "advantage" in options.state_columns
        or not shares_endpoints(remote)
    )
    others = (options.max_retries, list(options.state_columns) or None)
    limits = options.rollout_limits(model).as_request()
    named = {} if limits is None else {"limits": limits}

    async def play_tasks(tasks: list[Task]) -> list[RolloutOutput]:
        rows = [task.row for task in tasks]
        config = clients.next()
        await early_stop.wait()
        try:
            if in_groups:
                outputs = await remote.run_group(
                    rows, config, model, sampling_args, *others, **named
                )
            else:
                [row] = rows
                outputs = [
                    await remote.run_rollout(row, config, model, sampling_args, *others, **named)
                ]
        except (AuthenticationError, ConfigError):
            raise
        except Error as error:
            outputs = [await _failed(env, row, config, model, sampling_args, error) for row in rows]
        for task, output in zip(tasks, outputs, strict=True):
            early_stop.played(output)
            early_stop.scored(output)
            if options.strict and output.get("errors"):
                raise RewardError(output["errors"][0]["message"])
            output["rollout_index"] = task.rollout_index
        return outputs

    async def scored(_: list[list[RolloutOutput]]) -> None:
        """Do nothing: the server has scored."""

    async def deliver(index: int, outputs: list[list[RolloutOutput]]) -> None:
        new = [output for part in outputs for output in part]
        await record.add(new, [output.get("trajectory") for output in new])

    _warn_if_clipped(remote, options)
    return Schedule(play_tasks, scored, deliver, Limits(options.max_concurrent)), in_groups


def _warn_if_clipped(remote: Any, options: GenerateOptions) -> None:
    """Warn if the client of an environment server accepts fewer requests than the run's concurrency."""
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
    env: RunnableEnvironment,
    row: Mapping[str, Any],
    client: Any,
    model: str,
    sampling_args: SamplingArgs,
    error: Error,
) -> RolloutOutput:
    """Return the output of a rollout that the server failed to run."""
    state = await env.init_state(row, client, model, sampling_args)
    state.completion = []
    note_error(state, error)
    return output_from_state(state)


def _as_units(groups: Sequence[list[Task]], *, in_groups: bool) -> list[list[list[Task]]]:
    """Split the groups of a run into requests: a whole group each, or one rollout each."""
    return [[group] if in_groups else [[task] for task in group] for group in groups]


# -------------------------------------------------------------------------------------------------- inputs


def as_rows(env: RunnableEnvironment, inputs: Any) -> list[Row]:
    """Return the inputs of `generate` as rows: a `datasets.Dataset`, a list of rows, or v0's columns (a dict or
    `GenerateInputs`).
    """
    if hasattr(inputs, "model_dump"):
        inputs = inputs.model_dump(exclude_none=True)
    if isinstance(inputs, Mapping):
        if "prompt" in inputs and isinstance(inputs["prompt"], list) and "example_id" not in inputs:
            count = len(inputs["prompt"])
            columns = {name: values for name, values in inputs.items() if len(values) == count}
            inputs = [{name: values[i] for name, values in columns.items()} for i in range(count)]
        elif all(isinstance(values, list) for values in inputs.values()):
            inputs = [
                dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)
            ]
        else:
            inputs = [inputs]
    if not (is_rows(inputs) or is_arrow(inputs)):
        raise DatasetError(
            f"generate accepts a Dataset or a list of rows; got {type(inputs).__name__}: {inputs!r:.200}"
        )
    return TaskSource(inputs, env.row_format).inputs()


def _grouped(rows: Sequence[Row]) -> list[list[Task]]:
    groups: dict[Any, list[Task]] = {}
    for row in rows:
        group = groups.setdefault(row["example_id"], [])
        group.append(Task(row, len(group)))
    return list(groups.values())


# ------------------------------------------------------------------------------------- what a run keeps while it goes


class RunRecord:
    """Saves, counts and reports finished groups, in this order."""

    def __init__(
        self,
        env: RunnableEnvironment,
        description: RunDescription,
        options: GenerateOptions,
        model: str,
    ) -> None:
        price = options.prices.price_of(model) if options.prices is not None else None
        self._options = options
        self._whole_groups = env.requires_group_rollouts and not options.independent_scoring
        self._description = description
        self._running = RunningSummary(env.pass_threshold, price=price)
        self._tools = env.tool_defs
        self._columns = StateColumns(options.state_columns)
        self._store: RunStore | None = None
        self._tokens: RunTokens | None = None
        self._keys: dict[Any, str] = {}
        self._order: dict[Any, int] = {}
        self._outputs: list[RolloutOutput] = []
        self._started = time.monotonic()

    @classmethod
    def start(
        cls,
        env: RunnableEnvironment,
        rows: Sequence[Row],
        client: Any,
        model: str,
        sampling_args: SamplingArgs,
        options: GenerateOptions,
    ) -> Self:
        """Return the record of a new run, or of a run that is continued because its folder exists."""
        unique = {row["example_id"]: row for row in rows}
        keys = {example: input_key(row) for example, row in unique.items()} if options.saves else {}
        folder = _folder(env, model, options)
        rollouts_per_example = max(1, len(rows) // max(1, len(unique)))
        description = RunDescription(
            env_id=env.env_id,
            env_args=env.env_args,
            model=model,
            base_url=endpoint_url(client),
            num_examples=len(unique),
            rollouts_per_example=rollouts_per_example,
            sampling_args=sampling_args,
            state_columns=options.state_columns,
            path_to_save=folder,
            pass_threshold=env.pass_threshold,
            version_info=get_version_info(env.env_id, env.loaded_from),
            provenance=provenance(
                env_id=env.env_id,
                client=client,
                sampling_args=sampling_args,
                system_prompt=env.system_prompt,
                tools=env.tool_defs,
                input_keys=keys.values(),
                source=env.loaded_from,
            )
            if options.saves
            else None,
        )
        record = cls(env, description, options, model)
        record._keys = keys
        record._order = {example: index for index, example in enumerate(unique)}
        if folder is not None:
            record._open(folder)
        return record

    def _open(self, folder: Path) -> None:
        wanted = self._description
        if is_run_folder(folder):
            validate_resume_metadata(
                folder,
                wanted.env_id,
                wanted.model,
                wanted.num_examples,
                wanted.rollouts_per_example,
                env_args=wanted.env_args,
                sampling_args=wanted.sampling_args,
            )
        self._store = RunStore.create_or_open(folder, self.metadata())
        self._tokens = RunTokens(self._store.folder)

    def missing(self, groups: list[list[Task]]) -> list[list[Task]]:
        """Return the rollouts that are still missing. Saved rollouts become results of this run."""
        if self._store is None:
            return groups
        options = self._options
        run = continue_run(
            self._store,
            [group[0].row for group in groups],
            self._keys,
            max(map(len, groups), default=1),
            whole_groups=self._whole_groups,
            retry_failed=options.retry_failed,
            on_changed="rerun" if options.accept_changed_rows else options.on_changed,
        )
        if run is None:
            return groups
        self._outputs += run.kept
        self._running.add(run.kept)
        self._columns.saw(run.kept, None)
        return [[Task(row, index) for index in indices] for row, indices in run.missing]

    async def add(
        self,
        new: list[RolloutOutput],
        trajectories: Sequence[Any],
        states: Sequence[State] | None = None,
    ) -> None:
        """Save and count a finished group; its tokens are saved first.

        `states` are the states of the outputs, if the rollouts ran in this process.
        """
        if self._store is not None and self._tokens is not None:
            for output in new:
                output["input_key"] = self._keys[output["example_id"]]
            await self._tokens.add(new, trajectories)
            await self._store.append(new)
        self._outputs += new
        self._running.add(new)
        self._columns.saw(new, states)
        self._options.report(self._outputs, new, self.metadata)

    def metadata(self) -> GenerateMetadata:
        """Return the metadata of the finished rollouts."""
        elapsed_s = time.monotonic() - self._started
        return self._description.metadata(
            self._running.summary(wall_time_s=elapsed_s), time_s=elapsed_s, tools=self._tools
        )

    def finish(self, *, interrupted: bool) -> GenerateOutputs:
        """Return the results in the order of the inputs, and write the metadata of a saved run."""
        metadata = self.metadata()
        if interrupted:
            metadata["interrupted"] = True
        if self._store is not None:
            self._store.write_metadata(metadata)
        self._columns.report()
        last = len(self._order)
        self._outputs.sort(
            key=lambda output: (
                self._order.get(output["example_id"], last),
                output.get("rollout_index", 0),
            )
        )
        return GenerateOutputs(outputs=self._outputs, metadata=metadata)

    def failed(self, error: BaseException) -> None:
        """Save the error that ended the run; `metadata.json` keeps it as `failure`."""
        if self._store is None:
            return
        metadata = self.metadata()
        metadata["failure"] = error_info(error)
        try:
            self._store.write_metadata(metadata)
        except OSError:  # a full or broken disk may be the error itself
            logger.debug("The failure of the run could not be saved.", exc_info=True)

    def close(self) -> None:
        """Close the run folder."""
        if self._tokens is not None:
            self._tokens.close()
        if self._store is not None:
            self._store.close()


def _folder(env: RunnableEnvironment, model: str, options: GenerateOptions) -> Path | None:
    if options.results_path is not None:
        return options.results_path
    return new_run_folder(env.env_id, model) if options.save_results else None

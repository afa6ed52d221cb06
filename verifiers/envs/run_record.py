"""What a run keeps while it goes: outputs in memory, the run folder if it is saved, the summary so far."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from verifiers.envs.options import GenerateOptions
from verifiers.errors import error_info
from verifiers.runs.description import RunDescription, endpoint_url, get_version_info, provenance
from verifiers.runs.folders import is_run_folder, new_run_folder
from verifiers.runs.output import StateColumns
from verifiers.runs.resume import (
    ResumePlan,
    failed_by_infrastructure,
    plan,
    validate_resume_metadata,
)
from verifiers.runs.run_tokens import RunTokens
from verifiers.runs.store import RunStore
from verifiers.runs.summary import RunningSummary
from verifiers.state import State
from verifiers.tasks import Row, input_key
from verifiers.types import GenerateMetadata, GenerateOutputs, RolloutOutput, SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """One rollout to play."""

    row: Row
    rollout_index: int


class RunRecord:
    """Takes finished groups over: on disk first, then counted, then reported."""

    def __init__(
        self, env: Environment, description: RunDescription, options: GenerateOptions, model: str
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
        env: Environment,
        rows: Sequence[Row],
        client: Any,
        model: str,
        sampling_args: SamplingArgs,
        options: GenerateOptions,
    ) -> Self:
        """The record of a new run, or of one that is continued because its folder exists."""
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
        """The rollouts still to play; those that are saved already are taken into the results."""
        store = self._store
        if store is None:
            return groups
        saved = list(store.outputs())
        if not saved:
            return groups
        rows = [
            {**group[0].row, "input_key": self._keys[group[0].row["example_id"]]}
            for group in groups
        ]
        found = self._plan(rows, max(len(group) for group in groups), saved)
        logger.info("Continuing %s: %s", store.folder, found)
        if found.superseded:
            store.supersede(found.superseded)
        kept = [saved[position] for position in found.kept]
        self._outputs += kept
        self._running.add(kept)
        self._columns.saw(kept, None)
        by_id = {group[0].row["example_id"]: group[0].row for group in groups}
        return [
            [Task(by_id[row["example_id"]], index) for index in indices]
            for row, indices in found.groups()
        ]

    def _plan(
        self, rows: list[Row], rollouts_per_example: int, saved: list[RolloutOutput]
    ) -> ResumePlan:
        return plan(
            rows,
            rollouts_per_example,
            saved,
            whole_groups=self._whole_groups,
            is_retryable=failed_by_infrastructure if self._options.retry_failed else None,
            on_changed="rerun" if self._options.accept_changed_rows else self._options.on_changed,
        )

    async def add(
        self,
        new: list[RolloutOutput],
        trajectories: Sequence[Any],
        states: Sequence[State] | None = None,
    ) -> None:
        """Take over a finished group: saved before it is counted, its tokens before the rest.

        `states` are those the outputs were made from, when they were made in this process.
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
        """The metadata of what is finished so far."""
        elapsed_s = time.monotonic() - self._started
        return self._description.metadata(
            self._running.summary(wall_time_s=elapsed_s), time_s=elapsed_s, tools=self._tools
        )

    def finish(self, *, interrupted: bool) -> GenerateOutputs:
        """The results, in the order of the inputs; the metadata of a saved run is written."""
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
        """Save why the run ended before its end; `metadata.json` keeps the error as `failure`."""
        if self._store is None:
            return
        metadata = self.metadata()
        metadata["failure"] = error_info(error)
        try:
            self._store.write_metadata(metadata)
        except OSError:  # the disk may be what failed
            logger.debug("The failure of the run could not be saved.", exc_info=True)

    def close(self) -> None:
        """Let go of the run folder."""
        if self._tokens is not None:
            self._tokens.close()
        if self._store is not None:
            self._store.close()


def _folder(env: Environment, model: str, options: GenerateOptions) -> Path | None:
    if options.results_path is not None:
        return options.results_path
    return new_run_folder(env.env_id, model) if options.save_results else None

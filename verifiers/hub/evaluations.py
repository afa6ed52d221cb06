"""A saved run on the hub: one evaluation, whose samples are the rollouts.

Rollouts are read from the run folder in batches, so a run of any size can be pushed. Each is identified by its
example and its number among the rollouts of the example, so that a second push after an interruption adds no
duplicates.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.errors import ConfigError, is_void, without_traceback
from verifiers.hub.client import HubClient, OnProgress, body_of, data_of, member
from verifiers.hub.errors import HubError, HubNotFound
from verifiers.hub.installation import details_of
from verifiers.hub.origin import known_hub_id
from verifiers.hub.wire import (
    MAX_BATCH_VALUES,
    MAX_SAMPLE_BYTES,
    EvaluationPatch,
    EvaluationRequest,
    value_count,
)
from verifiers.packages.published import is_hub_env, parse_hub_id
from verifiers.runs.description import RunDescription
from verifiers.runs.folders import RESULTS_FILE, is_run_folder
from verifiers.runs.output import encode_line
from verifiers.runs.store import DamagedLine, iterate_outputs, load_metadata
from verifiers.runs.summary import RunningSummary

logger = logging.getLogger(__name__)

MAX_BATCH_BYTES = 20 * 1024**2
"""Hubs accept 25 MiB per request."""
MAX_BATCH_ROWS = 2000
CONCURRENT_BATCHES = 4


class PushedRun(NamedTuple):
    """A run that is on the hub."""

    evaluation_id: str
    environment: str
    samples: int
    damaged: list[DamagedLine]
    """Lines of the run that could not be read and were left out."""
    too_large: int
    """Number of rollouts above the maximum size of a request, which were left out."""
    url: str


class RunPush(NamedTuple):
    """How to push a run, in addition to the content of its folder."""

    environment: str | None = None
    """`owner/name[@version]`; None means the environment that the run names."""
    name: str | None = None
    run_id: str | None = None
    """Id of a training run that the run belongs to."""
    evaluation_id: str | None = None
    """Add to this evaluation instead of opening a new one."""
    is_public: bool = False


class InterruptedPush(HubError):
    """A part of a run is on the hub; `evaluation_id` continues it."""

    def __init__(self, message: str, evaluation_id: str) -> None:
        super().__init__(message, evaluation_id)
        self.evaluation_id = evaluation_id

    def __str__(self) -> str:
        return str(self.args[0])


def published_id(env_id: str) -> str | None:
    """Return `owner/name[@version]` of an evaluated environment: from its id, or from its folder if that was pushed."""
    if is_hub_env(env_id):
        return env_id
    return known_hub_id(env_id) if env_id else None


def environment_of_run(folder: Path, metadata: Mapping[str, Any], given: str | None = None) -> str:
    """Return `owner/name` of a run's environment: as given, from the metadata, or from the environment's folder.

    Raises ConfigError with the option that names the environment if it is unknown.
    """
    if given:
        parse_hub_id(given)
        return given
    named = str(metadata.get("env_id") or metadata.get("env") or "")
    if is_hub_env(named):
        parse_hub_id(named)
        return named
    for place in folder.resolve().parents:
        if place.name == "outputs" and (found := known_hub_id(str(place.parent))):
            return found
    if (found := published_id(named)) is not None:
        return found
    raise ConfigError(
        f"The run {folder} is of {named or 'an unnamed environment'}, whose owner is unknown. Name the published "
        "environment: --env owner/name. (`prime env push` publishes one.)"
    )


async def push_run(
    hub: HubClient,
    folder: Path,
    options: RunPush | None = None,
    on_progress: OnProgress | None = None,
) -> PushedRun:
    """Upload a run folder as an evaluation. `on_progress` receives the uploaded and total bytes of `results.jsonl`.

    Raises ConfigError, RunNotFound, HubError; InterruptedPush after a part of the run is on the hub.
    """
    options = options or RunPush()
    hub.require_key()
    metadata = load_metadata(folder)
    if not metadata.get("model"):
        raise ConfigError(f"{folder} has a metadata.json without `model`; it is not an evaluation.")
    environment = environment_of_run(folder, metadata, options.environment)
    evaluation_id = await _open(hub, metadata, environment, options)
    damaged: list[DamagedLine] = []
    counts = Counter[str]()
    summary = RunningSummary(float(metadata.get("pass_threshold") or 0.5))
    try:
        async with asyncio.TaskGroup() as group:
            free = asyncio.Semaphore(CONCURRENT_BATCHES)
            batches = _batches(folder, damaged, counts, summary, is_public=options.is_public)
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                await free.acquire()
                sending = _send(hub, evaluation_id, batch, free, counts, on_progress, _size(folder))
                group.create_task(sending)
        metrics = metrics_of({**metadata, **_numbers_of(metadata, summary)})
        await hub.post(f"/evaluations/{evaluation_id}/finalize", {"metrics": metrics}, is_slow=True)
    except (HubError, asyncio.CancelledError, BaseExceptionGroup) as error:
        reason = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        interrupted = _interrupted(folder, environment, evaluation_id, counts, reason)
        task = asyncio.current_task()
        # An upload that fails at the moment of the cancellation must not replace it.
        if isinstance(error, asyncio.CancelledError) or (task is not None and task.cancelling()):
            logger.warning("%s", interrupted)
            raise asyncio.CancelledError from error
        raise interrupted from reason
    return PushedRun(
        evaluation_id,
        environment,
        counts["samples"],
        damaged,
        counts["too large"],
        f"{hub.settings.frontend_url}/dashboard/evaluations/{evaluation_id}",
    )


def metrics_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a run: `avg_reward` as `reward`, every metric under its name, and the standard error."""
    metrics: dict[str, Any] = {}
    for key, value in metadata.items():
        if key == "avg_metrics" and isinstance(value, Mapping):
            metrics.update({str(name): number for name, number in value.items()})
        elif key.startswith("avg_"):
            metrics[key.removeprefix("avg_")] = value
        elif key in ("reward_stderr", "num_errors", "num_failed", "pass_at_k"):
            metrics[key] = value
    return {key: value for key, value in metrics.items() if not _is_nan(value)}


def _numbers_of(metadata: Mapping[str, Any], summary: RunningSummary) -> dict[str, Any]:
    """Return the numbers of the saved rollouts under the names of `metadata.json`.

    The file may be older than the rollouts (a killed run), or count crashes like an older version.
    """
    if not summary.rollouts:
        return {}
    description = RunDescription(
        env_id=str(metadata.get("env_id")),
        model=str(metadata["model"]),
        num_examples=0,
        rollouts_per_example=1,
        pass_threshold=summary.pass_threshold,
    )
    found = description.metadata(summary.summary())
    numbers = {name: value for name, value in found.items() if name in _NUMBERS}
    numbers["avg_metrics"] = {**(metadata.get("avg_metrics") or {}), **found.get("avg_metrics", {})}
    return numbers


_NUMBERS = frozenset(
    (
        "avg_error",
        "avg_reward",
        "avg_reward_error_free",
        "num_errors",
        "num_failed",
        "pass_at_k",
        "reward_stderr",
    )
)
"""Keys of `metadata.json` that are computed from the rollouts."""


async def _open(
    hub: HubClient, metadata: Mapping[str, Any], environment: str, options: RunPush
) -> str:
    """Return the id of the evaluation that receives the samples."""
    reference = await _reference(hub, environment, metadata)
    plain = environment.partition("@")[0]
    described = {
        "name": (options.name or f"{plain.rpartition('/')[2]}-{metadata['model']}")[:300],
        "model_name": str(metadata["model"]),
        "dataset": plain.rpartition("/")[2],
        "framework": "verifiers",
        "tags": [],
        "metadata": {
            key: value
            for key, value in metadata.items()
            if not key.startswith("avg_")
            and key not in ("path_to_save", "tools")
            and not _is_nan(value)
        },
    }
    if options.evaluation_id is not None:
        path = f"/evaluations/{options.evaluation_id}"
        await hub.get(path)
        await hub.request("PUT", path, body=body_of(EvaluationPatch, **described))
        return options.evaluation_id
    body = body_of(
        EvaluationRequest,
        **described,
        environments=[reference],
        is_public=options.is_public,
        run_id=options.run_id,
        team_id=hub.settings.team_id,
    )
    answer = await hub.post("/evaluations/", body, is_repeatable=False)
    return str(member(answer, "evaluation_id"))


async def _reference(
    hub: HubClient, environment: str, metadata: Mapping[str, Any]
) -> dict[str, str]:
    """Return the published environment, with the version that ran if the version is known and on the hub."""
    target = parse_hub_id(environment)
    ran = (metadata.get("version_info") or {}).get("env_version")
    version = target.version or (str(ran) if ran else None)
    if version is not None:
        try:
            details = await details_of(hub, target._replace(version=version))
            reference = {"id": str(member(details, "id"))}
            if details.get("version_id"):
                reference["version_id"] = str(details["version_id"])
            return reference
        except HubNotFound:
            if target.version is not None:
                raise
            logger.warning(
                "The hub has no version %s of %s, which the run used; the evaluation names no version.",
                ran,
                environment,
            )
    return {"id": await lookup_id(hub, environment)}


class _SampleBatch(NamedTuple):
    body: bytes
    rows: int
    read_bytes: int
    """Number of bytes of `results.jsonl` in the batch."""


def _batches(
    folder: Path,
    damaged: list[DamagedLine],
    counts: Counter[str],
    summary: RunningSummary,
    *,
    is_public: bool,
) -> Iterator[_SampleBatch]:
    """Yield the rollouts of a run in batches. `summary` counts each.

    Public rollouts have no tracebacks, because a traceback names folders of the author's machine.
    """
    rows: list[bytes] = []
    size = values = 0
    seen: Counter[str] = Counter()
    for output in iterate_outputs(folder, damaged):
        summary.add([output])
        if is_void(output):
            output["reward"] = 0.0
        if is_public:
            output = without_traceback(output)
        row = encode_line(_sample(dict(output), seen)).rstrip(b"\n")
        its_values = value_count(row) + 1
        if len(row) > min(MAX_SAMPLE_BYTES, MAX_BATCH_BYTES) or its_values > MAX_BATCH_VALUES - 2:
            counts["too large"] += 1
            continue
        is_full = size + len(row) > MAX_BATCH_BYTES or len(rows) >= MAX_BATCH_ROWS
        if rows and (is_full or values + its_values > MAX_BATCH_VALUES - 2):
            yield _SampleBatch(b'{"samples":[%s]}' % b",".join(rows), len(rows), size)
            rows, size, values = [], 0, 0
        rows.append(row)
        size += len(row) + 1
        values += its_values
    if rows:
        yield _SampleBatch(b'{"samples":[%s]}' % b",".join(rows), len(rows), size)


def _sample(output: dict[str, Any], seen: Counter[str]) -> dict[str, Any]:
    """Return a rollout with `example_id` and its number among the rollouts of the example."""
    output.setdefault("example_id", output.get("id", 0))
    key = json.dumps(output["example_id"], default=str)
    output.setdefault("rollout_number", seen[key])
    seen[key] += 1
    return output


async def _send(
    hub: HubClient,
    evaluation_id: str,
    batch: _SampleBatch,
    free: asyncio.Semaphore,
    counts: Counter[str],
    on_progress: OnProgress | None,
    total_bytes: int,
) -> None:
    try:
        await hub.request(
            "POST", f"/evaluations/{evaluation_id}/samples", content=batch.body, is_slow=True
        )
    finally:
        free.release()
    counts["samples"] += batch.rows
    counts["bytes"] += batch.read_bytes
    if on_progress is not None:
        on_progress(min(counts["bytes"], total_bytes), total_bytes)


def _interrupted(
    folder: Path,
    environment: str,
    evaluation_id: str,
    counts: Counter[str],
    reason: BaseException,
) -> InterruptedPush:
    message = str(reason) or "Interrupted."
    return InterruptedPush(
        f"{message} {counts['samples']} rollouts are on the hub. Continue with: "
        f"prime eval push {folder} --env {environment} --eval {evaluation_id}",
        evaluation_id,
    )


def _size(folder: Path) -> int:
    return (folder / RESULTS_FILE).stat().st_size


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def saved_runs_here(folder: Path) -> list[Path]:
    """Return the run folders to push by default: this folder, else those in `outputs/evals` and of environments."""
    if is_run_folder(folder):
        return [folder]
    patterns = ("outputs/evals/**/metadata.json", "environments/*/outputs/evals/**/metadata.json")
    found = {path.parent for pattern in patterns for path in folder.glob(pattern)}
    return sorted(path for path in found if is_run_folder(path))


async def lookup_id(hub: HubClient, environment: str) -> str:
    """Return the id of `owner/name`."""
    return str(member(data_of(await details_of(hub, parse_hub_id(environment))), "id"))

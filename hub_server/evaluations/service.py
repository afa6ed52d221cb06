"""Evaluations: opening, filling, closing, reading."""

import hashlib
import zlib
from typing import Any, NamedTuple

import orjson
from sqlalchemy import ColumnElement, and_, exists, false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.authorisation import Action, Principal, require_account, require_owner
from hub_server.accounts.service import owner_by_id
from hub_server.changes.service import record_audit
from hub_server.database import inserter, utc_now
from hub_server.environments.models import Environment, Version
from hub_server.environments.names import normalized
from hub_server.environments.service import find_by_id, readable_by
from hub_server.environments.versions import canonical
from hub_server.errors import BadRequest, Conflict, NotFound
from hub_server.evaluations.models import (
    EvaluatedEnvironment,
    Evaluation,
    Sample,
    SampleBatch,
)
from verifiers.hub.wire import EvaluationPatch, EvaluationRequest

OPEN = ("PENDING", "RUNNING")
_DETAILS = ("dataset", "framework", "task_type", "description", "tags")
_ROWS_AT_ONCE = 500


class Subject(NamedTuple):
    """An environment that was evaluated, and at which version; None when nobody said."""

    id: str
    name: str
    """`owner/name`."""
    version_id: str | None
    version: str | None


class Row(NamedTuple):
    """An evaluation with the environments that the caller may see."""

    evaluation: Evaluation
    environments: list[Subject]


def _readable(caller: Principal) -> ColumnElement[bool]:
    """Own and team evaluations, and public ones whose environments the caller may all see."""
    mine: ColumnElement[bool] = false()
    if Action.READ in caller.actions:
        mine = Evaluation.owner_id.in_(caller.readable_owners())
    hidden = exists().where(
        EvaluatedEnvironment.evaluation_id == Evaluation.id,
        EvaluatedEnvironment.environment_id == Environment.id,
        ~readable_by(caller),
    )
    open_to_all = and_(Evaluation.is_public.is_(True), ~hidden)
    if not (caller.sees_public or caller.is_known):
        open_to_all = false()
    if caller.is_unlimited_admin:
        return Evaluation.id.is_not(None)
    # A token for some environments sees only evaluations of those, even its owner's.
    in_scope = and_(mine, ~hidden) if not caller.is_everywhere else mine
    return or_(in_scope, open_to_all)


async def create(session: AsyncSession, caller: Principal, wanted: EvaluationRequest) -> Evaluation:
    """Open an evaluation. Raises NotFound for an environment the caller cannot see."""
    require_account(caller, Action.EVALUATE)
    if not wanted.environments and not wanted.run_id:
        raise BadRequest("An evaluation needs environments, or a run_id.")
    owner_id = wanted.team_id or caller.user_id or ""
    if owner_id != caller.user_id:
        owner = await owner_by_id(session, owner_id)
        if owner is None:
            raise NotFound(f"Team {owner_id[:60]} not found.")
        require_owner(caller, Action.EVALUATE, owner_id, owner.slug)
    evaluation = Evaluation(
        owner_id=owner_id,
        created_by=caller.user_id or "",
        name=wanted.name,
        is_public=bool(wanted.is_public),
        model_name=wanted.model_name,
        run_id=wanted.run_id,
        suite_id=wanted.suite_id,
        details={key: getattr(wanted, key) for key in _DETAILS},
        run_metadata=wanted.metadata or {},
        metrics=wanted.metrics or {},
    )
    session.add(evaluation)
    await session.flush()
    for reference in {item.id: item for item in wanted.environments or []}.values():
        found = await find_by_id(session, caller, reference.id)
        version_id = await _version_id(session, found.environment, reference.version_id)
        session.add(
            EvaluatedEnvironment(
                evaluation_id=evaluation.id,
                environment_id=found.environment.id,
                version_id=version_id,
            )
        )
    record_audit(session, caller, "evaluation.create", evaluation.id, name=wanted.name)
    return evaluation


async def _version_id(
    session: AsyncSession, environment: Environment, wanted: str | None
) -> str | None:
    """The version that was evaluated, or None: the newest one need not be the one that ran."""
    if wanted is None:
        return None
    query = select(Version.id).where(
        Version.environment_id == environment.id,
        Version.deleted_at.is_(None),
        Version.id == wanted,
    )
    found = await session.scalar(query)
    if found is None:
        raise NotFound(f"Version {wanted[:60]} of {environment.full_name} not found.")
    return found


async def find(session: AsyncSession, caller: Principal, evaluation_id: str) -> Row:
    """An evaluation that the caller may read."""
    query = select(Evaluation).where(Evaluation.id == evaluation_id, _readable(caller))
    evaluation = await session.scalar(query)
    if evaluation is None:
        raise NotFound(f"Evaluation {evaluation_id[:60]} not found.")
    subjects = await _subjects(session, caller, [evaluation.id])
    return Row(evaluation, subjects.get(evaluation.id, []))


async def find_own(session: AsyncSession, caller: Principal, evaluation_id: str) -> Row:
    """An evaluation that the caller may change, locked. Raises NotFound, Forbidden."""
    row = await find(session, caller, evaluation_id)
    owner = await owner_by_id(session, row.evaluation.owner_id)
    require_owner(
        caller, Action.EVALUATE, row.evaluation.owner_id, owner.slug if owner else "its owner"
    )
    await session.refresh(row.evaluation, with_for_update=True)
    return row


async def _subjects(
    session: AsyncSession, caller: Principal, evaluation_ids: list[str]
) -> dict[str, list[Subject]]:
    query = (
        select(
            EvaluatedEnvironment.evaluation_id,
            Environment.id,
            Environment.full_name,
            Version.id,
            Version.version,
        )
        .join(Environment, Environment.id == EvaluatedEnvironment.environment_id)
        .outerjoin(Version, Version.id == EvaluatedEnvironment.version_id)
        .where(EvaluatedEnvironment.evaluation_id.in_(evaluation_ids), readable_by(caller))
        .order_by(Environment.full_name)
    )
    subjects: dict[str, list[Subject]] = {}
    for evaluation_id, *subject in await session.execute(query):
        subjects.setdefault(evaluation_id, []).append(Subject(*subject))
    return subjects


def _is_about(caller: Principal, reference: str) -> ColumnElement[bool]:
    """The condition of evaluations of `name`, `owner/name` or either with `@version`."""
    full_name, _, version = reference.partition("@")
    owner, _, name = full_name.rpartition("/")
    fits = [Environment.normalized_name == normalized(name)]
    if owner:
        fits.append(Environment.full_name.startswith(f"{owner}/", autoescape=True))
    if version:
        is_version = and_(
            Version.id == EvaluatedEnvironment.version_id,
            Version.canonical_version == canonical(version),
        )
        fits.append(exists().where(is_version))
    return exists().where(
        EvaluatedEnvironment.evaluation_id == Evaluation.id,
        EvaluatedEnvironment.environment_id == Environment.id,
        readable_by(caller),
        *fits,
    )


async def page(
    session: AsyncSession,
    caller: Principal,
    *,
    skip: int,
    limit: int,
    environment_name: str | None,
    suite_id: str | None,
    team_id: str | None,
) -> tuple[list[Row], int]:
    """A page of readable evaluations, newest first, and how many there are."""
    conditions = [_readable(caller)]
    if environment_name:
        conditions.append(_is_about(caller, environment_name))
    if suite_id:
        conditions.append(Evaluation.suite_id == suite_id)
    if team_id:
        conditions.append(Evaluation.owner_id == team_id)
    count = select(func.count()).select_from(Evaluation).where(*conditions)
    query = (
        select(Evaluation)
        .where(*conditions)
        .order_by(Evaluation.created_at.desc(), Evaluation.id)
        .offset(skip)
        .limit(limit)
    )
    evaluations = list(await session.scalars(query))
    subjects = await _subjects(session, caller, [evaluation.id for evaluation in evaluations])
    rows = [Row(evaluation, subjects.get(evaluation.id, [])) for evaluation in evaluations]
    return rows, await session.scalar(count) or 0


class Batch(NamedTuple):
    """Samples as they will be stored."""

    sha256: str
    rows: list[tuple[str, bytes]]
    """Key and compressed JSON."""


def read_batch(body: bytes) -> Batch:
    """The samples of a request body. Pure; call it from a thread, bodies are large.

    A sample is known by `sample_id`, or by example and rollout number; one without either is known by
    its place in its batch, since two rollouts may well be equal to the last character.
    """
    try:
        samples = orjson.loads(body)["samples"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise BadRequest('Send {"samples": [...]}: the body is not JSON of this form.') from error
    if not isinstance(samples, list) or not all(isinstance(s, dict) for s in samples):
        raise BadRequest("`samples` must be a list of objects.")
    digest = hashlib.sha256(body).hexdigest()
    rows = {
        _sample_key(sample, f"{digest[:32]}:{place}"): zlib.compress(orjson.dumps(sample), 3)
        for place, sample in enumerate(samples)
    }
    return Batch(digest, list(rows.items()))


def _sample_key(sample: dict[str, Any], otherwise: str) -> str:
    if sample.get("sample_id") not in (None, ""):
        return f"id:{str(sample['sample_id'])[:190]}"
    example, rollout = sample.get("example_id"), sample.get("rollout_number")
    if example is not None and rollout is not None:
        return f"ex:{str(example)[:90]}:{str(rollout)[:90]}"
    return otherwise


async def add_samples(
    session: AsyncSession, caller: Principal, evaluation_id: str, batch: Batch
) -> int:
    """Store a batch; how many of its samples are new. The same batch again adds nothing."""
    row = await find_own(session, caller, evaluation_id)
    if row.evaluation.status in ("FAILED", "CANCELLED"):
        raise Conflict(f"The evaluation is {row.evaluation.status}; it takes no more samples.")
    insert = inserter(session)
    seen = await session.get(SampleBatch, (evaluation_id, batch.sha256))
    if seen is not None:
        return 0
    session.add(SampleBatch(evaluation_id=evaluation_id, sha256=batch.sha256))
    before = await _count(session, evaluation_id)
    for start in range(0, len(batch.rows), _ROWS_AT_ONCE):
        values = [
            {"evaluation_id": evaluation_id, "key": key, "body": body}
            for key, body in batch.rows[start : start + _ROWS_AT_ONCE]
        ]
        await session.execute(
            insert(Sample)
            .values(values)
            .on_conflict_do_nothing(index_elements=["evaluation_id", "key"])
        )
    row.evaluation.sample_count = await _count(session, evaluation_id)
    row.evaluation.updated_at = utc_now()
    return row.evaluation.sample_count - before


async def _count(session: AsyncSession, evaluation_id: str) -> int:
    query = select(func.count()).select_from(Sample).where(Sample.evaluation_id == evaluation_id)
    return await session.scalar(query) or 0


async def samples(
    session: AsyncSession, evaluation_id: str, page_number: int, limit: int
) -> list[bytes]:
    """A page (from 1) of samples in the order they came, as JSON."""
    query = (
        select(Sample.body)
        .where(Sample.evaluation_id == evaluation_id)
        .order_by(Sample.id)
        .offset((page_number - 1) * limit)
        .limit(limit)
    )
    return [zlib.decompress(body) for body in await session.scalars(query)]


async def change(
    session: AsyncSession, caller: Principal, evaluation_id: str, wanted: EvaluationPatch
) -> Row:
    """Change an evaluation. Raises Conflict when its status would change after it was closed."""
    row = await find_own(session, caller, evaluation_id)
    evaluation = row.evaluation
    given = wanted.model_dump(exclude_none=True)
    if not given.get("tags"):
        given.pop("tags", None)  # clients send [] when they mean nothing
    status = given.pop("status", None)
    if status is not None and status != evaluation.status and evaluation.status not in OPEN:
        raise Conflict(f"The evaluation is closed as {evaluation.status}.")
    evaluation.status = status or evaluation.status
    evaluation.details = {**evaluation.details, **{k: given[k] for k in _DETAILS if k in given}}
    if "metadata" in given:
        evaluation.run_metadata = {**evaluation.run_metadata, **given["metadata"]}
    if "metrics" in given:
        evaluation.metrics = {**evaluation.metrics, **given["metrics"]}
    for field in ("name", "model_name", "is_public", "error_message"):
        if field in given:
            setattr(evaluation, field, given[field])
    evaluation.updated_at = utc_now()
    return row


async def finalize(
    session: AsyncSession, caller: Principal, evaluation_id: str, metrics: dict[str, Any] | None
) -> Row:
    """Close an evaluation as completed; repeating it is harmless."""
    row = await find_own(session, caller, evaluation_id)
    evaluation = row.evaluation
    if evaluation.status in ("FAILED", "CANCELLED"):
        raise Conflict(f"The evaluation is closed as {evaluation.status}.")
    evaluation.status = "COMPLETED"
    evaluation.metrics = {**evaluation.metrics, **(metrics or {})}
    evaluation.finalized_at = evaluation.finalized_at or utc_now()
    evaluation.updated_at = utc_now()
    return row

"""Evaluations: opening, closing, reading, deleting. Their rollouts are in `samples`."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Text, and_, cast, exists, false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server import stored
from hub_server.accounts.authorisation import (
    ROLE_ACTIONS,
    Action,
    Principal,
    require_account,
    require_owner,
)
from hub_server.accounts.service import owner_by_id
from hub_server.changes.service import record_audit
from hub_server.database import utc_now
from hub_server.environments.models import Environment, Version
from hub_server.environments.names import canonical, normalized
from hub_server.environments.service import covered_by, find_by_id, readable_by
from hub_server.errors import BadRequest, Conflict, Forbidden, NotFound, TooLarge
from hub_server.evaluations.models import EvaluatedEnvironment, Evaluation
from hub_server.limits import check_quota
from hub_server.settings import Settings
from verifiers.hub.wire import EvaluationPatch, EvaluationRequest

OPEN = ("PENDING", "RUNNING")
_DETAILS = ("dataset", "framework", "task_type", "description", "tags")
_LOADED_WHEN_ASKED = ("details", "metrics", "run_metadata")
ROW_BYTES = 1024
"""Bytes of the quota that an empty evaluation uses."""
_MAX_SHOWN_METRICS = 20


class Subject(NamedTuple):
    """An evaluated environment and its version; None for an unknown version."""

    id: str
    name: str
    """`owner/name`."""
    version_id: str | None
    version: str | None


class Row(NamedTuple):
    """An evaluation with its environments, as far as the caller may see them."""

    evaluation: Evaluation
    environments: list[Subject]


def _readable(caller: Principal) -> ColumnElement[bool]:
    """Return the condition of readable evaluations: own and team ones, and public ones of visible environments."""
    alive = Evaluation.deleted_at.is_(None)
    if caller.is_unlimited_admin:
        return and_(alive, _in_token(caller))
    mine: ColumnElement[bool] = false()
    if Action.READ in caller.actions:
        mine = and_(Evaluation.owner_id.in_(caller.readable_owners()), _in_token(caller))
    hidden = exists().where(
        EvaluatedEnvironment.evaluation_id == Evaluation.id,
        EvaluatedEnvironment.environment_id == Environment.id,
        ~readable_by(caller),
    )
    open_to_all = and_(Evaluation.is_public.is_(True), ~hidden)
    if not (caller.sees_public or caller.is_known):
        open_to_all = false()
    return and_(alive, or_(mine, open_to_all))


def _in_token(caller: Principal) -> ColumnElement[bool]:
    """Return the condition of evaluations whose environments are all covered by the caller's token."""
    if caller.is_everywhere:
        return Evaluation.id.is_not(None)
    of = EvaluatedEnvironment.evaluation_id == Evaluation.id
    other = exists().where(
        of, EvaluatedEnvironment.environment_id == Environment.id, ~covered_by(caller)
    )
    return and_(exists().where(of), ~other)


async def create(
    session: AsyncSession, caller: Principal, requested: EvaluationRequest, settings: Settings
) -> Row:
    """Open an evaluation. Raises NotFound for an environment that the caller cannot see."""
    require_account(caller, Action.EVALUATE)
    if not requested.environments and not requested.run_id:
        raise BadRequest("An evaluation needs environments or a run_id.")
    owner_id = requested.team_id or caller.user_id or ""
    if owner_id != caller.user_id:
        owner = await owner_by_id(session, owner_id)
        if owner is None:
            raise NotFound(f"Team {owner_id[:60]} not found.")
        require_owner(caller, Action.EVALUATE, owner_id, owner.slug)
    await _check_count(session, owner_id, settings.max_evaluations)
    evaluation = Evaluation(
        owner_id=owner_id,
        created_by=caller.user_id or "",
        name=requested.name,
        is_public=bool(requested.is_public),
        model_name=requested.model_name,
        run_id=requested.run_id,
        suite_id=requested.suite_id,
        stored_bytes=0,
        metadata_bytes=0,
        details={},
        run_metadata={},
        metrics={},
    )
    session.add(evaluation)
    details = {key: getattr(requested, key) for key in _DETAILS}
    await _describe(
        session, evaluation, details, requested.metadata or {}, requested.metrics or {}, settings
    )
    await session.flush()
    for reference in {item.id: item for item in requested.environments or []}.values():
        found = await find_by_id(session, caller, reference.id)
        if not caller.covers(found.environment.full_name):
            raise Forbidden(f"This token does not cover {found.environment.full_name}.")
        version_id = await _version_id(session, found.environment, reference.version_id)
        session.add(
            EvaluatedEnvironment(
                evaluation_id=evaluation.id,
                environment_id=found.environment.id,
                version_id=version_id,
            )
        )
    if not requested.environments and not caller.is_everywhere:
        raise Forbidden(
            "This token is bound to environments; name the environments that were evaluated."
        )
    record_audit(session, caller, "evaluation.create", evaluation.id, name=requested.name)
    await session.flush()
    subjects = await _subjects(session, caller, [evaluation.id])
    return Row(evaluation, subjects.get(evaluation.id, []))


async def _check_count(session: AsyncSession, owner_id: str, most: int) -> None:
    query = select(func.count()).where(
        Evaluation.owner_id == owner_id, Evaluation.deleted_at.is_(None)
    )
    if (await session.scalar(query) or 0) >= most:
        raise TooLarge(f"The owner has {most} evaluations, the maximum. Delete some first.")


async def _describe(
    session: AsyncSession,
    evaluation: Evaluation,
    details: dict[str, Any],
    metadata: dict[str, Any],
    metrics: dict[str, Any],
    settings: Settings,
) -> None:
    """Set the description of an evaluation, within its limits and the owner's quota. Raises TooLarge, BadRequest."""
    most = settings.max_metadata_bytes
    before = await _described_bytes(session, evaluation)
    metadata_bytes = len(stored.encoded(metadata, "The metadata", most))
    others = stored.encoded(metrics, "The metrics", most // 4), stored.encoded(details, "The rest")
    added = ROW_BYTES + metadata_bytes + sum(map(len, others)) - before
    if added > 0:
        owner = await owner_by_id(session, evaluation.owner_id)
        slug = owner.slug if owner else "The owner"
        await check_quota(session, evaluation.owner_id, slug, added, settings.owner_quota_bytes)
    evaluation.details, evaluation.run_metadata, evaluation.metrics = details, metadata, metrics
    evaluation.metadata_bytes = metadata_bytes
    evaluation.stored_bytes = max(0, evaluation.stored_bytes + added)
    evaluation.summary = summary_of(details, metadata, metrics)


async def _described_bytes(session: AsyncSession, evaluation: Evaluation) -> int:
    """Return the bytes of the quota that the description uses now; 0 before it is counted for the first time."""
    if evaluation.stored_bytes == 0:
        return 0
    values = (evaluation.details, evaluation.run_metadata, evaluation.metrics)
    return ROW_BYTES + sum(len(stored.encoded(stored.mended(value), "It")) for value in values)


def summary_of(
    details: Mapping[str, Any], metadata: Mapping[str, Any], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that a list shows: short texts and numbers only."""
    counts = {key: _number(metadata.get(key)) for key in ("num_examples", "rollouts_per_example")}
    shown = {str(key)[:100]: value for key, value in metrics.items() if _number(value) is not None}
    texts = {key: details[key][:200] for key in _DETAILS[:3] if isinstance(details.get(key), str)}
    tags = [tag[:64] for tag in details.get("tags") or [] if isinstance(tag, str)]
    return {
        **dict.fromkeys(_DETAILS[:3]),
        **texts,
        "tags": tags[:10],
        "metadata": counts,
        "metrics": dict(list(shown.items())[:_MAX_SHOWN_METRICS]),
    }


def _number(value: Any) -> int | float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < 2**63
    return value if is_number else None


async def _version_id(
    session: AsyncSession, environment: Environment, requested: str | None
) -> str | None:
    """Return the version that was evaluated, or None if it is unknown: the newest version need not be the one that
    ran.
    """
    if requested is None:
        return None
    query = select(Version.id).where(
        Version.environment_id == environment.id,
        Version.deleted_at.is_(None),
        Version.id == requested,
    )
    found = await session.scalar(query)
    if found is None:
        raise NotFound(f"Version {requested[:60]} of {environment.full_name} not found.")
    return found


async def find(
    session: AsyncSession, caller: Principal, evaluation_id: str, *, lock: bool = False
) -> Row:
    """Return an evaluation that the caller may read."""
    query = select(Evaluation).where(Evaluation.id == evaluation_id, _readable(caller))
    evaluation = await session.scalar(query.with_for_update() if lock else query)
    if evaluation is None:
        raise NotFound(f"Evaluation {evaluation_id[:60]} not found.")
    subjects = await _subjects(session, caller, [evaluation.id])
    return Row(evaluation, subjects.get(evaluation.id, []))


async def find_own(session: AsyncSession, caller: Principal, evaluation_id: str) -> Row:
    """Return an evaluation that the caller may change, locked. Raises NotFound, Forbidden."""
    row = await find(session, caller, evaluation_id, lock=True)
    owner = await owner_by_id(session, row.evaluation.owner_id)
    require_owner(
        caller, Action.EVALUATE, row.evaluation.owner_id, owner.slug if owner else "its owner"
    )
    in_token = select(Evaluation.id).where(Evaluation.id == evaluation_id, _in_token(caller))
    if await session.scalar(in_token) is None:
        raise Forbidden("This token does not cover the environments of this evaluation.")
    return row


async def load(session: AsyncSession, evaluation: Evaluation, max_metadata_bytes: int) -> bool:
    """Load the fields that lists omit. Returns False without metadata above the limit, of an earlier release."""
    await session.flush()  # refreshing would discard unwritten changes
    is_whole = evaluation.metadata_bytes <= max_metadata_bytes
    await session.refresh(evaluation, _LOADED_WHEN_ASKED if is_whole else _LOADED_WHEN_ASKED[:2])
    return is_whole


async def metadata_text(session: AsyncSession, evaluation_id: str) -> str:
    """Return the metadata as the JSON text in the database."""
    query = select(cast(Evaluation.run_metadata, Text)).where(Evaluation.id == evaluation_id)
    return await session.scalar(query) or "{}"


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
    """Return the condition of evaluations of `name`, `owner/name`, or either with `@version`."""
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
    """Return a page of readable evaluations, newest first, and their total number."""
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


async def change(
    session: AsyncSession,
    caller: Principal,
    evaluation_id: str,
    requested: EvaluationPatch,
    settings: Settings,
) -> Row:
    """Change an evaluation. Raises Conflict for a new status after it was closed."""
    row = await find_own(session, caller, evaluation_id)
    evaluation = row.evaluation
    given = requested.model_dump(exclude_none=True)
    if not given.get("tags"):
        given.pop("tags", None)  # clients send [] when they have no tags to set
    status = given.pop("status", None)
    if status is not None and status != evaluation.status and evaluation.status not in OPEN:
        raise Conflict(f"The evaluation is closed as {evaluation.status}.")
    evaluation.status = status or evaluation.status
    details = {key: given[key] for key in _DETAILS if key in given}
    await _add(session, evaluation, details, given.get("metadata"), given.get("metrics"), settings)
    for field in ("name", "model_name", "is_public", "error_message"):
        if field in given:
            setattr(evaluation, field, given[field])
    evaluation.updated_at = utc_now()
    return row


async def _add(
    session: AsyncSession,
    evaluation: Evaluation,
    details: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    metrics: Mapping[str, Any] | None,
    settings: Settings,
) -> None:
    """Add to the description of an evaluation. Given keys replace existing ones."""
    if not (details or metadata or metrics):
        return
    await session.refresh(evaluation, _LOADED_WHEN_ASKED)
    await _describe(
        session,
        evaluation,
        {**evaluation.details, **details},
        {**evaluation.run_metadata, **(metadata or {})},
        {**evaluation.metrics, **(metrics or {})},
        settings,
    )


async def finalize(
    session: AsyncSession,
    caller: Principal,
    evaluation_id: str,
    metrics: dict[str, Any] | None,
    settings: Settings,
) -> Row:
    """Close an evaluation as completed. Repeating it has no effect."""
    row = await find_own(session, caller, evaluation_id)
    evaluation = row.evaluation
    if evaluation.status in ("FAILED", "CANCELLED"):
        raise Conflict(f"The evaluation is closed as {evaluation.status}.")
    evaluation.status = "COMPLETED"
    await _add(session, evaluation, {}, None, metrics, settings)
    evaluation.finalized_at = evaluation.finalized_at or utc_now()
    evaluation.updated_at = utc_now()
    return row


async def delete(session: AsyncSession, caller: Principal, evaluation_id: str) -> None:
    """Delete an evaluation: it is hidden at once, and `samples.purge` removes its rows.

    Allowed are the person who opened it, and those who may manage the owner's environments.
    """
    row = await find_own(session, caller, evaluation_id)
    evaluation = row.evaluation
    role = caller.roles.get(evaluation.owner_id, "")
    is_manager = Action.MANAGE in ROLE_ACTIONS.get(role, ()) or caller.is_unlimited_admin
    if evaluation.created_by != caller.user_id and not is_manager:
        raise Forbidden(
            "Only the member who opened an evaluation, or an admin of the team, may delete it."
        )
    evaluation.deleted_at = utc_now()
    evaluation.stored_bytes = 0
    record_audit(session, caller, "evaluation.delete", evaluation.id, name=evaluation.name)

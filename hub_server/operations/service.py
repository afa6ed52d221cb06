"""Counters and gauges of the whole hub, and queries for fsck and gc. Their commands are in `backup`."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import delete, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from hub_server.accounts.models import Owner, Token, User
from hub_server.changes.service import hold_blobs
from hub_server.database import Database, utc_now
from hub_server.environments.models import Environment, File, Version
from hub_server.evaluations.models import Evaluation
from hub_server.publishing.models import Upload


async def check(database: Database) -> None:
    """Raise Unavailable if the database does not answer."""
    async with database.read() as session:
        await session.execute(text("SELECT 1"))


async def totals(session: AsyncSession) -> dict[str, float]:
    """Return the number of users, environments, versions and evaluations, and the stored bytes, by metric name."""
    counts: dict[str, float] = {}
    for name, model in (
        ("users", User),
        ("environments", Environment),
        ("versions", Version),
        ("evaluations", Evaluation),
    ):
        counts[name] = await session.scalar(select(func.count()).select_from(model)) or 0
    stored = select(func.coalesce(func.sum(Environment.stored_bytes), 0))
    counts["stored_bytes"] = await session.scalar(stored) or 0
    return counts


class StoredFile(NamedTuple):
    """A file that must have a blob."""

    environment: str
    filename: str
    sha256: str
    size_bytes: int


async def stored_files(session: AsyncSession) -> AsyncIterator[StoredFile]:
    """Yield every file that is not deleted."""
    query = (
        select(Environment.full_name, File.filename, File.sha256, File.size_bytes)
        .join(Environment, Environment.id == File.environment_id)
        .where(File.deleted_at.is_(None))
        .order_by(Environment.full_name, File.filename)
    )
    async for row in await session.stream(query):
        yield StoredFile(*row)


async def referenced_blobs(session: AsyncSession) -> set[str]:
    """Return the hashes that files, or unfinished uploads, refer to."""
    files = await session.scalars(select(File.sha256).where(File.deleted_at.is_(None)).distinct())
    uploads = await session.scalars(
        select(Upload.received_sha256).where(
            Upload.received_sha256.is_not(None), Upload.version_id.is_(None)
        )
    )
    return {sha256 for sha256 in (*files, *uploads) if sha256}


async def is_referenced(session: AsyncSession, sha256: str) -> bool:
    """Return whether the blob is needed. This is checked again just before deleting it."""
    await hold_blobs(session, to_delete=True)
    file = select(File.id).where(File.sha256 == sha256, File.deleted_at.is_(None)).limit(1)
    upload = select(Upload.id).where(Upload.received_sha256 == sha256, Upload.version_id.is_(None))
    return (
        await session.scalar(file) is not None or await session.scalar(upload.limit(1)) is not None
    )


async def forget_old_uploads(session: AsyncSession, age: timedelta) -> int:
    """Remove reservations that ended long ago and return their number."""
    old = utc_now() - age
    rows = list(await session.scalars(select(Upload).where(Upload.expires_at < old)))
    for row in rows:
        await session.delete(row)
    return len(rows)


async def forget_expired_tokens(session: AsyncSession, age: timedelta) -> int:
    """Remove tokens that ended long ago and return their number."""
    before = utc_now() - age
    ended = (or_(Token.expires_at < before, Token.revoked_at < before),)
    count = await session.scalar(select(func.count()).select_from(Token).where(*ended))
    await session.execute(delete(Token).where(*ended))
    return count or 0


async def exported(session: AsyncSession) -> AsyncIterator[tuple[Owner, Environment]]:
    """Yield every public environment that has something to install."""
    query = (
        select(Owner, Environment)
        .join(Environment, Environment.owner_id == Owner.id)
        .where(
            Environment.visibility == "PUBLIC",
            Environment.deleted_at.is_(None),
            Environment.status != "quarantined",
            Environment.latest_version.is_not(None),
        )
        .order_by(Environment.full_name)
    )
    for owner, environment in await session.execute(query):
        yield owner, environment


BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class RequestMetrics:
    """Counters of one worker since its start. Labels are routes, never user text."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._buckets: Counter[tuple[str, float]] = Counter()

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self._requests[route, status] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]  # a Counter holds floats too
        for bucket_s in BUCKETS_S:
            if seconds <= bucket_s:
                self._buckets[route, bucket_s] += 1
                break

    def render(self, gauges: dict[str, float]) -> str:
        """Return all counters and the given gauges as text for Prometheus."""
        lines = ["# TYPE vf_hub_requests_total counter"]
        totals: Counter[str] = Counter()
        for (route, status), count in sorted(self._requests.items()):
            totals[route] += count
            lines.append(f'vf_hub_requests_total{{route="{route}",status="{status}"}} {count}')
        lines.append("# TYPE vf_hub_request_seconds histogram")
        for route, total in sorted(totals.items()):
            below = 0
            for bucket_s in BUCKETS_S:
                below += self._buckets[route, bucket_s]
                lines.append(
                    f'vf_hub_request_seconds_bucket{{route="{route}",le="{bucket_s}"}} {below}'
                )
            lines.append(f'vf_hub_request_seconds_bucket{{route="{route}",le="+Inf"}} {total}')
            seconds = self._seconds[route]
            lines.append(f'vf_hub_request_seconds_sum{{route="{route}"}} {seconds:.6f}')
            lines.append(f'vf_hub_request_seconds_count{{route="{route}"}} {total}')
        for name, value in sorted(gauges.items()):
            lines += [f"# TYPE vf_hub_{name} gauge", f"vf_hub_{name} {value:g}"]
        return "\n".join(lines) + "\n"

"""Moments in UTC. Apart from `database`, so that what starts the hub need not import SQLAlchemy."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Now, to the microsecond, in UTC."""
    return datetime.now(UTC)


def iso(moment: datetime) -> str:
    """`2026-01-31T12:00:00.000000Z`, which pip, uv and all clients parse."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

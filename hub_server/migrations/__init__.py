"""The history of the tables, and updates of a database.

A migration is one new file in `versions`. Its name starts with its revision: four digits, one higher than the last.
`hub_server.process` takes `HEAD` from the names of the files.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from hub_server.accounts import models as accounts
from hub_server.changes import models as changes
from hub_server.database import Base
from hub_server.environments import models as environments
from hub_server.errors import SettingsError
from hub_server.evaluations import models as evaluations
from hub_server.logins import models as logins
from hub_server.process import HEAD as HEAD
from hub_server.publishing import models as publishing
from hub_server.secrets import models as secrets

if TYPE_CHECKING:
    from alembic.config import Config

# Alembic is imported where it is used: it takes 12 MiB, and a serving process only checks the revision.

FEATURES = (accounts, changes, environments, evaluations, logins, publishing, secrets)
"""Imported so that `Base.metadata` has all tables."""
ALL_TABLES = tuple(Base.metadata.sorted_tables)
_LOCK_KEY = 0x7666_6875
"""Any constant: workers that start together take this PostgreSQL lock one after the other."""


def alembic_config() -> "Config":
    """Return the configuration that Alembic would read from a file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config


async def upgrade(engine: AsyncEngine, revision: str = "head") -> None:
    """Update the database to the revision, in one transaction. Raises SettingsError for a newer program's database."""
    async with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})"))
        await connection.run_sync(_check_known)
        await connection.run_sync(_run, "upgrade", revision)


async def downgrade(engine: AsyncEngine, revision: str) -> None:
    """Take the database back to the revision."""
    async with engine.begin() as connection:
        await connection.run_sync(_run, "downgrade", revision)


async def check_current(engine: AsyncEngine) -> None:
    """Raise SettingsError with the next step if the database lacks a migration."""
    async with engine.connect() as connection:
        await connection.run_sync(_check_known)
        current = await connection.run_sync(_current_revision)
    if current != HEAD:
        raise SettingsError(
            f"The database is at revision {current}; this program needs {HEAD}."
            " Make a backup, then run `vf-hub migrate`."
        )


def _check_known(connection: Connection) -> None:
    from alembic.script import ScriptDirectory

    current = _current_revision(connection)
    known = {s.revision for s in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if current is not None and current not in known:
        raise SettingsError(
            f"The database is at revision {current}, which this program does not support: a newer release created it."
            " Install that release, or restore a backup from before the upgrade."
        )


def _current_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.scalar(text("SELECT version_num FROM alembic_version"))


def offline_sql() -> str:
    """Return the statements of all migrations for PostgreSQL, for people who run them by hand."""
    import io

    from alembic import command

    config, out = alembic_config(), io.StringIO()
    config.output_buffer = out
    config.attributes["url"] = "postgresql+asyncpg://"
    command.upgrade(config, "head", sql=True)
    return out.getvalue()


def _run(connection: Connection, direction: str, revision: str) -> None:
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    getattr(command, direction)(config, revision)

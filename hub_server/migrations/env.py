"""Alembic's entry point: runs migrations on the given connection, or prints them."""

from alembic import context

from hub_server.database import Base
from hub_server.migrations import ALL_TABLES

assert ALL_TABLES

connection = context.config.attributes.get("connection")
if connection is None:
    context.configure(
        url=context.config.attributes["url"],
        target_metadata=Base.metadata,
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
    context.run_migrations()
else:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    context.run_migrations()

"""Evaluations with a summary, sizes and an end; limits of approved logins; visibilities corrected."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

from hub_server.evaluations.samples import SAMPLE_BYTES
from hub_server.evaluations.service import ROW_BYTES, summary_of
from hub_server.stored import encoded, mended

revision = "0002"
down_revision = "0001"

LARGE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MAX_TEXT = 300
"""Characters that PostgreSQL allowed in these columns and SQLite did not count."""


def upgrade() -> None:
    for name in ("granted_actions", "granted_environments"):
        op.add_column("login_challenges", sa.Column(name, sa.JSON(), nullable=True))
    op.add_column(
        "login_challenges", sa.Column("granted_until", sa.DateTime(timezone=True), nullable=True)
    )
    summary = sa.Column("summary", sa.JSON(), nullable=False, server_default="{}")
    op.add_column("evaluations", summary)
    for name, kind in (("metadata_bytes", sa.Integer()), ("stored_bytes", LARGE)):
        op.add_column("evaluations", sa.Column(name, kind, nullable=False, server_default="0"))
    op.add_column("evaluations", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("samples", sa.Column("size_bytes", sa.Integer(), nullable=True))
    op.create_index("ix_samples_page", "samples", ["evaluation_id", "id"], unique=False)
    if op.get_context().dialect.name == "postgresql":
        op.alter_column("environments", "stored_bytes", type_=sa.BigInteger())
    op.execute(
        "UPDATE environments SET visibility = 'PRIVATE' WHERE visibility NOT IN ('PUBLIC', 'PRIVATE')"
    )
    op.execute(
        "UPDATE evaluations SET metadata_bytes = length(CAST(run_metadata AS TEXT)),"
        f" stored_bytes = {ROW_BYTES} + length(CAST(run_metadata AS TEXT)) + length(CAST(details AS TEXT))"
        " + length(CAST(metrics AS TEXT)) + coalesce((SELECT sum(length(samples.body) +"
        f" {SAMPLE_BYTES}) FROM samples WHERE samples.evaluation_id = evaluations.id), 0)"
    )
    for name in ("name", "model_name", "run_id", "suite_id"):
        op.execute(
            f"UPDATE evaluations SET {name} = substr({name}, 1, {MAX_TEXT})"
            f" WHERE length({name}) > {MAX_TEXT}"
        )
    if not op.get_context().as_sql:  # statements alone cannot do it; lists work without it
        _mend_evaluations(op.get_bind())


def _mend_evaluations(connection: sa.Connection) -> None:
    """Write the summaries, and replace JSON that cannot be sent by what remains of it."""
    columns = ("details", "run_metadata", "metrics")
    texts = ", ".join(f"CAST({name} AS TEXT)" for name in columns)
    ids = [row[0] for row in connection.execute(sa.text("SELECT id FROM evaluations"))]
    for evaluation_id in ids:
        key = {"id": evaluation_id}
        row = connection.execute(
            sa.text(f"SELECT {texts} FROM evaluations WHERE id = :id"), key
        ).one()
        values = details, metadata, metrics = tuple(_readable(text) for text in row)
        changed = {
            name: encoded(value, name).decode()
            for name, value, text in zip(columns, values, row, strict=True)
            if not _is_good(text)
        }
        summary = summary_of(details, metadata, metrics)
        changed["summary"] = encoded(summary, "summary").decode()
        assignments = ", ".join(f"{name} = CAST(:{name} AS JSON)" for name in changed)
        if connection.dialect.name == "sqlite":  # whose cast to JSON makes a number of it
            assignments = ", ".join(f"{name} = :{name}" for name in changed)
        connection.execute(
            sa.text(f"UPDATE evaluations SET {assignments} WHERE id = :id"), {**changed, **key}
        )


def _is_good(text: str | None) -> bool:
    try:
        value = json.loads(text or "")
        return isinstance(value, dict) and value == mended(value)
    except (ValueError, RecursionError):
        return False


def _readable(text: str | None) -> dict[str, Any]:
    try:
        value = mended(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.alter_column("environments", "stored_bytes", type_=sa.Integer())
    op.drop_index("ix_samples_page", table_name="samples")
    op.drop_column("samples", "size_bytes")
    for name in ("deleted_at", "stored_bytes", "metadata_bytes", "summary"):
        op.drop_column("evaluations", name)
    for name in ("granted_until", "granted_environments", "granted_actions"):
        op.drop_column("login_challenges", name)

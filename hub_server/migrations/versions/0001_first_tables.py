"""The first tables, and the search index."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor_id", sa.String(length=25), nullable=True),
        sa.Column("token_id", sa.String(length=25), nullable=True),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("subject", sa.String(length=300), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_actor", "audit_log", ["actor_id", "id"], unique=False)
    op.create_table(
        "changes",
        sa.Column("serial", SERIAL, autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("owner", sa.String(length=30), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("version", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("serial"),
    )
    op.create_index(op.f("ix_changes_environment_id"), "changes", ["environment_id"], unique=False)
    op.create_table(
        "owners",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("slug", sa.String(length=30), nullable=False),
        sa.Column("skeleton", sa.String(length=30), nullable=False),
        sa.Column("kind", sa.String(length=4), nullable=False),
        sa.Column("display_name", sa.String(length=128), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("skeleton"),
        sa.UniqueConstraint("slug"),
    )
    op.create_table(
        "setup_tokens",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "environments",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("owner_id", sa.String(length=25), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("normalized_name", sa.String(length=128), nullable=False),
        sa.Column("full_name", sa.String(length=160), nullable=False),
        sa.Column("visibility", sa.String(length=8), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("status_reason", sa.String(length=1000), nullable=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("latest_version", sa.String(length=128), nullable=True),
        sa.Column("stars", sa.Integer(), nullable=False),
        sa.Column("downloads", sa.Integer(), nullable=False),
        sa.Column("stored_bytes", sa.Integer(), nullable=False),
        sa.Column("indexed_sha256", sa.String(length=64), nullable=True),
        sa.Column("forked_from", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owners.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner_id", "normalized_name"),
    )
    op.create_index("ix_environments_created", "environments", ["created_at", "id"], unique=False)
    op.create_index("ix_environments_full_name", "environments", ["full_name"], unique=False)
    op.create_index("ix_environments_name", "environments", ["normalized_name", "id"], unique=False)
    op.create_index("ix_environments_stars", "environments", ["stars", "id"], unique=False)
    op.create_index("ix_environments_updated", "environments", ["updated_at", "id"], unique=False)
    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("owner_id", sa.String(length=25), nullable=False),
        sa.Column("created_by", sa.String(length=25), nullable=False),
        sa.Column("name", sa.String(length=300), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(length=12), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("model_name", sa.String(length=300), nullable=True),
        sa.Column("run_id", sa.String(length=300), nullable=True),
        sa.Column("suite_id", sa.String(length=300), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("run_metadata", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("sample_count", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finalized_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owners.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_evaluations_model_name"), "evaluations", ["model_name"], unique=False)
    op.create_index("ix_evaluations_owner", "evaluations", ["owner_id", "created_at"], unique=False)
    op.create_table(
        "former_names",
        sa.Column("slug", sa.String(length=30), nullable=False),
        sa.Column("skeleton", sa.String(length=30), nullable=False),
        sa.Column("owner_id", sa.String(length=25), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owners.id"],
        ),
        sa.PrimaryKeyConstraint("slug"),
    )
    op.create_index(op.f("ix_former_names_skeleton"), "former_names", ["skeleton"], unique=False)
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("email", sa.String(length=320), nullable=True),
        sa.Column("password_hash", sa.String(length=255), nullable=True),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("slug_chosen", sa.Boolean(), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["id"],
            ["owners.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("email"),
    )
    op.create_table(
        "environment_tags",
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.PrimaryKeyConstraint("environment_id", "tag"),
    )
    op.create_index("ix_environment_tags_tag", "environment_tags", ["tag"], unique=False)
    op.create_table(
        "login_challenges",
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("public_key_pem", sa.String(length=4096), nullable=True),
        sa.Column("client", sa.String(length=200), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("approved_by", sa.String(length=25), nullable=True),
        sa.Column("approved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_polled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["approved_by"],
            ["users.id"],
        ),
        sa.PrimaryKeyConstraint("code"),
        sa.UniqueConstraint("secret_sha256"),
    )
    op.create_table(
        "memberships",
        sa.Column("team_id", sa.String(length=25), nullable=False),
        sa.Column("user_id", sa.String(length=25), nullable=False),
        sa.Column("role", sa.String(length=8), nullable=False),
        sa.Column("joined_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["team_id"],
            ["owners.id"],
        ),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
        ),
        sa.PrimaryKeyConstraint("team_id", "user_id"),
    )
    op.create_index("ix_memberships_user", "memberships", ["user_id"], unique=False)
    op.create_table(
        "sample_batches",
        sa.Column("evaluation_id", sa.String(length=25), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
        ),
        sa.PrimaryKeyConstraint("evaluation_id", "sha256"),
    )
    op.create_table(
        "samples",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("evaluation_id", sa.String(length=25), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("evaluation_id", "key"),
    )
    op.create_table(
        "secrets",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("owner_id", sa.String(length=25), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=True),
        sa.Column("scope", sa.String(length=25), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("description", sa.String(length=1000), nullable=True),
        sa.Column("is_file", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.ForeignKeyConstraint(
            ["owner_id"],
            ["owners.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("scope", "kind", "name"),
    )
    op.create_table(
        "stars",
        sa.Column("user_id", sa.String(length=25), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
        ),
        sa.PrimaryKeyConstraint("user_id", "environment_id"),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("user_id", sa.String(length=25), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("prefix", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("actions", sa.JSON(), nullable=False),
        sa.Column("environments", sa.JSON(), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["user_id"],
            ["users.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_index("ix_tokens_user", "tokens", ["user_id"], unique=False)
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("user_id", sa.String(length=25), nullable=False),
        sa.Column("token_id", sa.String(length=25), nullable=True),
        sa.Column("kind", sa.String(length=6), nullable=False),
        sa.Column("filename", sa.String(length=240), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=True),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.Column("semantic_version", sa.String(length=128), nullable=True),
        sa.Column("runtime_hint", sa.String(length=64), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("received_sha256", sa.String(length=64), nullable=True),
        sa.Column("received_bytes", sa.Integer(), nullable=True),
        sa.Column("contents", sa.JSON(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
        sa.Column("version_id", sa.String(length=25), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finalized_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "ix_uploads_environment", "uploads", ["environment_id", "content_hash"], unique=False
    )
    op.create_index("ix_uploads_sha256", "uploads", ["received_sha256"], unique=False)
    op.create_table(
        "versions",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("version", sa.String(length=128), nullable=False),
        sa.Column("canonical_version", sa.String(length=128), nullable=False),
        sa.Column("content_hash", sa.String(length=64), nullable=True),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("readme", sa.Text(), nullable=False),
        sa.Column("runtime_hint", sa.String(length=64), nullable=True),
        sa.Column("published_by", sa.String(length=25), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("yanked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("yanked_reason", sa.String(length=1000), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("environment_id", "canonical_version"),
    )
    op.create_index(
        "ix_versions_content_hash", "versions", ["environment_id", "content_hash"], unique=False
    )
    op.create_table(
        "evaluated_environments",
        sa.Column("evaluation_id", sa.String(length=25), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("version_id", sa.String(length=25), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluations.id"],
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["versions.id"],
        ),
        sa.PrimaryKeyConstraint("evaluation_id", "environment_id"),
    )
    op.create_index(
        "ix_evaluated_environment", "evaluated_environments", ["environment_id"], unique=False
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("version_id", sa.String(length=25), nullable=False),
        sa.Column("kind", sa.String(length=6), nullable=False),
        sa.Column("filename", sa.String(length=240), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("uploaded_sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("metadata_text", sa.LargeBinary(), nullable=True),
        sa.Column("metadata_sha256", sa.String(length=64), nullable=True),
        sa.Column("requires_python", sa.String(length=200), nullable=True),
        sa.Column("members", sa.JSON(), nullable=True),
        sa.Column("uploaded_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["versions.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("environment_id", "filename"),
    )
    op.create_index("ix_files_sha256", "files", ["sha256"], unique=False)
    op.create_index("ix_files_version", "files", ["version_id"], unique=False)
    op.create_table(
        "secret_links",
        sa.Column("id", sa.String(length=25), nullable=False),
        sa.Column("environment_id", sa.String(length=25), nullable=False),
        sa.Column("secret_id", sa.String(length=25), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"],
            ["environments.id"],
        ),
        sa.ForeignKeyConstraint(["secret_id"], ["secrets.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("environment_id", "secret_id"),
    )
    if op.get_context().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE environment_search USING fts5("
            "environment_id UNINDEXED, name, tags, description, readme,"
            " tokenize = 'porter unicode61 remove_diacritics 2', prefix = '2 3')"
        )
        # FTS5 cannot look a row up by environment, so its row numbers are kept beside it.
        op.execute(
            "CREATE TABLE environment_rows (environment_id varchar(25) PRIMARY KEY,"
            " fts_rowid integer NOT NULL)"
        )
    else:
        op.execute(
            "CREATE TABLE environment_search (environment_id varchar(25) PRIMARY KEY"
            " REFERENCES environments (id), document tsvector NOT NULL)"
        )
        op.execute("CREATE INDEX ix_environment_search ON environment_search USING gin (document)")


def downgrade() -> None:
    op.execute("DROP TABLE environment_search")
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TABLE environment_rows")
    op.drop_table("secret_links")
    op.drop_index("ix_files_version", table_name="files")
    op.drop_index("ix_files_sha256", table_name="files")
    op.drop_table("files")
    op.drop_index("ix_evaluated_environment", table_name="evaluated_environments")
    op.drop_table("evaluated_environments")
    op.drop_index("ix_versions_content_hash", table_name="versions")
    op.drop_table("versions")
    op.drop_index("ix_uploads_sha256", table_name="uploads")
    op.drop_index("ix_uploads_environment", table_name="uploads")
    op.drop_table("uploads")
    op.drop_index("ix_tokens_user", table_name="tokens")
    op.drop_table("tokens")
    op.drop_table("stars")
    op.drop_table("secrets")
    op.drop_table("samples")
    op.drop_table("sample_batches")
    op.drop_index("ix_memberships_user", table_name="memberships")
    op.drop_table("memberships")
    op.drop_table("login_challenges")
    op.drop_index("ix_environment_tags_tag", table_name="environment_tags")
    op.drop_table("environment_tags")
    op.drop_table("users")
    op.drop_index(op.f("ix_former_names_skeleton"), table_name="former_names")
    op.drop_table("former_names")
    op.drop_index("ix_evaluations_owner", table_name="evaluations")
    op.drop_index(op.f("ix_evaluations_model_name"), table_name="evaluations")
    op.drop_table("evaluations")
    op.drop_index("ix_environments_updated", table_name="environments")
    op.drop_index("ix_environments_stars", table_name="environments")
    op.drop_index("ix_environments_name", table_name="environments")
    op.drop_index("ix_environments_full_name", table_name="environments")
    op.drop_index("ix_environments_created", table_name="environments")
    op.drop_table("environments")
    op.drop_table("setup_tokens")
    op.drop_table("owners")
    op.drop_index(op.f("ix_changes_environment_id"), table_name="changes")
    op.drop_table("changes")
    op.drop_index("ix_audit_actor", table_name="audit_log")
    op.drop_table("audit_log")

"""Tables of environments, their versions and files."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from hub_server.accounts.authorisation import Resource
from hub_server.changes.models import Serial as Large
from hub_server.database import Base, new_id, utc_now


class Environment(Base):
    """A name under an owner. A deleted environment keeps its row, so that its file names stay used."""

    __tablename__ = "environments"
    __table_args__ = (
        UniqueConstraint("owner_id", "normalized_name"),
        Index("ix_environments_full_name", "full_name"),
        Index("ix_environments_created", "created_at", "id"),
        Index("ix_environments_updated", "updated_at", "id"),
        Index("ix_environments_stars", "stars", "id"),
        Index("ix_environments_name", "normalized_name", "id"),
    )

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id"))
    name: Mapped[str] = mapped_column(String(128))
    """The name in its author's spelling."""
    normalized_name: Mapped[str] = mapped_column(String(128))
    full_name: Mapped[str] = mapped_column(String(160))
    """`owner/normalized-name`, updated when the owner is renamed."""
    visibility: Mapped[str] = mapped_column(String(8), default="PUBLIC")
    status: Mapped[str] = mapped_column(String(12), default="active")
    """`active`, `archived`, `deprecated` or `quarantined` (PEP 792)."""
    status_reason: Mapped[str | None] = mapped_column(String(1000))
    description: Mapped[str] = mapped_column(Text, default="")
    tags: Mapped[list[str]] = mapped_column(default=list)
    latest_version: Mapped[str | None] = mapped_column(String(128))
    stars: Mapped[int] = mapped_column(default=0)
    downloads: Mapped[int] = mapped_column(default=0)
    stored_bytes: Mapped[int] = mapped_column(Large, default=0)
    indexed_sha256: Mapped[str | None] = mapped_column(String(64))
    """Hash of the words in the search index, so that a version without new words leaves the index alone."""
    forked_from: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    deleted_at: Mapped[datetime | None]

    @property
    def resource(self) -> Resource:
        """The fields that decide about permissions."""
        return Resource(self.owner_id, self.full_name, self.visibility, self.is_open)

    @property
    def is_open(self) -> bool:
        """Whether everyone may see the environment if it is public."""
        return self.deleted_at is None and self.status != "quarantined"


class Version(Base):
    """One immutable version. A deleted version keeps its row, so that its number is never used again."""

    __tablename__ = "versions"
    __table_args__ = (
        UniqueConstraint("environment_id", "canonical_version"),
        Index("ix_versions_content_hash", "environment_id", "content_hash"),
    )

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environments.id"))
    version: Mapped[str] = mapped_column(String(128))
    canonical_version: Mapped[str] = mapped_column(String(128))
    """Without trailing zeros: `1.0` and `1.0.0` are one version."""
    content_hash: Mapped[str | None] = mapped_column(String(64))
    """The client's hash of its source tree. The hub does not interpret it, because clients compute it differently."""
    manifest: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The wheel's own metadata, without the README and METADATA text."""
    readme: Mapped[str] = mapped_column(Text, default="", deferred=True)
    runtime_hint: Mapped[str | None] = mapped_column(String(64))
    published_by: Mapped[str] = mapped_column(String(25))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    yanked_at: Mapped[datetime | None]
    yanked_reason: Mapped[str | None] = mapped_column(String(1000))
    deleted_at: Mapped[datetime | None]

    @property
    def is_yanked(self) -> bool:
        """Whether normal resolution skips the version."""
        return self.yanked_at is not None


class File(Base):
    """A wheel or source archive of a version. The row remains when the blob is deleted."""

    __tablename__ = "files"
    __table_args__ = (
        UniqueConstraint("environment_id", "filename"),
        Index("ix_files_sha256", "sha256"),
        Index("ix_files_version", "version_id"),
    )

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environments.id"))
    version_id: Mapped[str] = mapped_column(ForeignKey("versions.id"))
    kind: Mapped[str] = mapped_column(String(6))
    """`wheel` or `source`."""
    filename: Mapped[str] = mapped_column(String(240))
    sha256: Mapped[str] = mapped_column(String(64))
    """Hash of the stored bytes. The hub re-packs source archives."""
    uploaded_sha256: Mapped[str] = mapped_column(String(64))
    """Hash of the received bytes, by which a repeated upload is recognised."""
    size_bytes: Mapped[int]
    metadata_text: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    metadata_sha256: Mapped[str | None] = mapped_column(String(64))
    requires_python: Mapped[str | None] = mapped_column(String(200))
    members: Mapped[list[dict[str, Any]] | None] = mapped_column(deferred=True)
    """Paths, sizes and hashes inside a source archive."""
    uploaded_at: Mapped[datetime] = mapped_column(default=utc_now)
    deleted_at: Mapped[datetime | None]


class Star(Base):
    """A person's star on an environment."""

    __tablename__ = "stars"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class EnvironmentTag(Base):
    """A label of an environment, for filtering."""

    __tablename__ = "environment_tags"
    __table_args__ = (Index("ix_environment_tags_tag", "tag"),)

    environment_id: Mapped[str] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(64), primary_key=True)

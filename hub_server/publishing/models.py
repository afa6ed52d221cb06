"""The table of announced uploads. Short because tables import no service."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from hub_server.database import Base, new_id, utc_now


class Upload(Base):
    """One announced file: announced → received → published (or refused, or expired)."""

    __tablename__ = "uploads"
    __table_args__ = (
        Index("ix_uploads_environment", "environment_id", "content_hash"),
        Index("ix_uploads_sha256", "received_sha256"),
    )

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environments.id"))
    user_id: Mapped[str] = mapped_column(String(25))
    token_id: Mapped[str | None] = mapped_column(String(25))
    kind: Mapped[str] = mapped_column(String(6))
    filename: Mapped[str] = mapped_column(String(240))
    sha256: Mapped[str] = mapped_column(String(64))
    """The hash that the client announced."""
    size_bytes: Mapped[int | None]
    content_hash: Mapped[str | None] = mapped_column(String(64))
    semantic_version: Mapped[str | None] = mapped_column(String(128))
    runtime_hint: Mapped[str | None] = mapped_column(String(64))
    tags: Mapped[list[str]] = mapped_column(default=list)
    secret_sha256: Mapped[str] = mapped_column(String(64))
    """Hash of the secret in the upload address, which alone grants the permission."""
    received_sha256: Mapped[str | None] = mapped_column(String(64))
    """Hash of the stored blob. It differs from `sha256` for a source archive, which the hub re-packs."""
    received_bytes: Mapped[int | None]
    contents: Mapped[dict[str, Any] | None]
    """The wheel's manifest, or the members of the source archive."""
    refusal: Mapped[str | None] = mapped_column(Text)
    """Reason why the bytes were not accepted."""
    version_id: Mapped[str | None] = mapped_column(String(25))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]
    finalized_at: Mapped[datetime | None]

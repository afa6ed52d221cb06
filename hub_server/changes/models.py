"""The tables of changes and of the audit log. Short because tables import no service."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Index, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from hub_server.database import Base, utc_now

Serial = BigInteger().with_variant(Integer, "sqlite")


class Change(Base):
    """A change that index readers must see. Serials only grow, in the order of commits."""

    __tablename__ = "changes"

    serial: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    kind: Mapped[str] = mapped_column(String(24))
    environment_id: Mapped[str] = mapped_column(String(25), index=True)
    owner: Mapped[str] = mapped_column(String(30))
    name: Mapped[str] = mapped_column(String(128))
    version: Mapped[str | None] = mapped_column(String(128))


class AuditEntry(Base):
    """One action of one caller. Rows are only ever added."""

    __tablename__ = "audit_log"
    __table_args__ = (Index("ix_audit_actor", "actor_id", "id"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(default=utc_now)
    actor_id: Mapped[str | None] = mapped_column(String(25))
    token_id: Mapped[str | None] = mapped_column(String(25))
    action: Mapped[str] = mapped_column(String(40))
    subject: Mapped[str] = mapped_column(String(300))
    detail: Mapped[dict[str, Any]] = mapped_column(default=dict)

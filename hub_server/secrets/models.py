"""The tables of secrets and of their links to environments. Short because tables import no service."""

from datetime import datetime

from sqlalchemy import ForeignKey, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from hub_server.database import Base, new_id, utc_now


class Secret(Base):
    """A secret or variable of an owner, or of one environment."""

    __tablename__ = "secrets"
    __table_args__ = (UniqueConstraint("scope", "kind", "name"),)

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id"))
    environment_id: Mapped[str | None] = mapped_column(ForeignKey("environments.id"))
    scope: Mapped[str] = mapped_column(String(25))
    """The environment's id, or the owner's. Names are unique within it."""
    kind: Mapped[str] = mapped_column(String(8))
    """`secret` or `variable`."""
    name: Mapped[str] = mapped_column(String(128))
    value: Mapped[bytes] = mapped_column(LargeBinary)
    """Encrypted with the hub's key."""
    description: Mapped[str | None] = mapped_column(String(1000))
    is_file: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


class SecretLink(Base):
    """An owner's secret that an environment uses."""

    __tablename__ = "secret_links"
    __table_args__ = (UniqueConstraint("environment_id", "secret_id"),)

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environments.id"))
    secret_id: Mapped[str] = mapped_column(ForeignKey("secrets.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(default=utc_now)

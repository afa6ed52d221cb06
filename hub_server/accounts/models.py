"""Tables of people, teams and tokens."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from hub_server.database import Base, new_id, utc_now


class Owner(Base):
    """A name that can own environments: a person or a team.

    Rows are never deleted, so that a name that was used once cannot be taken over.
    """

    __tablename__ = "owners"

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    slug: Mapped[str] = mapped_column(String(30), unique=True)
    skeleton: Mapped[str] = mapped_column(String(30), unique=True)
    """The slug with equal spellings for look-alike characters; see `environments.names`."""
    kind: Mapped[str] = mapped_column(String(4))
    display_name: Mapped[str] = mapped_column(String(128), default="")
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class FormerName(Base):
    """An earlier name of an owner. It leads to the owner and is never given to anyone else."""

    __tablename__ = "former_names"

    slug: Mapped[str] = mapped_column(String(30), primary_key=True)
    skeleton: Mapped[str] = mapped_column(String(30), index=True)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id"))


class User(Base):
    """A person."""

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    email: Mapped[str | None] = mapped_column(String(320), unique=True)
    password_hash: Mapped[str | None] = mapped_column(String(255))
    is_admin: Mapped[bool] = mapped_column(default=False)
    slug_chosen: Mapped[bool] = mapped_column(default=True)
    disabled_at: Mapped[datetime | None]


class Membership(Base):
    """A person's role in a team."""

    __tablename__ = "memberships"
    __table_args__ = (Index("ix_memberships_user", "user_id"),)

    team_id: Mapped[str] = mapped_column(ForeignKey("owners.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"), primary_key=True)
    role: Mapped[str] = mapped_column(String(8))
    joined_at: Mapped[datetime] = mapped_column(default=utc_now)


class Token(Base):
    """An API token. Only its hash is stored."""

    __tablename__ = "tokens"
    __table_args__ = (UniqueConstraint("sha256"), Index("ix_tokens_user", "user_id"))

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    sha256: Mapped[str] = mapped_column(String(64))
    prefix: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(128))
    actions: Mapped[list[str]]
    environments: Mapped[list[str]]
    kind: Mapped[str] = mapped_column(String(8), default="api")
    """`api`, `install` (inside the addresses of a private environment) or `session`."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]

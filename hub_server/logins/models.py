"""Tables of waiting logins, and of the first administrator's token. Short because tables import no service."""

from datetime import datetime

from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from hub_server.database import Base, utc_now


class LoginChallenge(Base):
    """A client that waits for a person's approval."""

    __tablename__ = "login_challenges"

    code: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    """`rsa` for `prime login`, `device` for RFC 8628."""
    secret_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    """Hash of the secret with which the client polls."""
    public_key_pem: Mapped[str | None] = mapped_column(String(4096))
    client: Mapped[str] = mapped_column(String(200), default="")
    address: Mapped[str] = mapped_column(String(64), default="")
    approved_by: Mapped[str | None] = mapped_column(ForeignKey("users.id"))
    approved_at: Mapped[datetime | None]
    granted_actions: Mapped[list[str] | None]
    """Actions that the approving token allows to hand on. Null after a password, which can hand on everything."""
    granted_environments: Mapped[list[str] | None]
    granted_until: Mapped[datetime | None]
    delivered_at: Mapped[datetime | None]
    last_polled_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]


class SetupToken(Base):
    """The printed token that creates the first administrator. It works once."""

    __tablename__ = "setup_tokens"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    used_at: Mapped[datetime | None]

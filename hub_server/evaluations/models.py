"""Tables of evaluations and their samples."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from hub_server.changes.models import Serial as Large
from hub_server.database import Base, new_id, utc_now


class Evaluation(Base):
    """One run of a model on environments."""

    __tablename__ = "evaluations"
    __table_args__ = (Index("ix_evaluations_owner", "owner_id", "created_at"),)

    id: Mapped[str] = mapped_column(String(25), primary_key=True, default=new_id)
    owner_id: Mapped[str] = mapped_column(ForeignKey("owners.id"))
    created_by: Mapped[str] = mapped_column(String(25))
    name: Mapped[str] = mapped_column(String(300))
    is_public: Mapped[bool] = mapped_column(default=False)
    status: Mapped[str] = mapped_column(String(12), default="RUNNING")
    error_message: Mapped[str | None] = mapped_column(Text)
    model_name: Mapped[str | None] = mapped_column(String(300), index=True)
    run_id: Mapped[str | None] = mapped_column(String(300))
    suite_id: Mapped[str | None] = mapped_column(String(300))
    summary: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The part of the next three fields that a list shows. It is short even if the client sent long values."""
    details: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred=True)
    """Dataset, framework, task type, description and tags."""
    run_metadata: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred=True)
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred=True)
    metadata_bytes: Mapped[int] = mapped_column(default=0)
    """Size of `run_metadata` as JSON."""
    sample_count: Mapped[int] = mapped_column(default=0)
    stored_bytes: Mapped[int] = mapped_column(Large, default=0)
    """Bytes of the owner's quota that the evaluation uses, samples included."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    finalized_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    """When the evaluation was deleted. It is hidden from then on, and its samples are removed step by step."""


class EvaluatedEnvironment(Base):
    """The environment and version that an evaluation is about."""

    __tablename__ = "evaluated_environments"
    __table_args__ = (Index("ix_evaluated_environment", "environment_id"),)

    evaluation_id: Mapped[str] = mapped_column(ForeignKey("evaluations.id"), primary_key=True)
    environment_id: Mapped[str] = mapped_column(ForeignKey("environments.id"), primary_key=True)
    version_id: Mapped[str | None] = mapped_column(ForeignKey("versions.id"))


class SampleBatch(Base):
    """A stored batch. Sending the same batch again adds nothing."""

    __tablename__ = "sample_batches"

    evaluation_id: Mapped[str] = mapped_column(ForeignKey("evaluations.id"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    received_at: Mapped[datetime] = mapped_column(default=utc_now)


class Sample(Base):
    """One rollout, as the client sent it."""

    __tablename__ = "samples"
    __table_args__ = (
        UniqueConstraint("evaluation_id", "key"),
        Index("ix_samples_page", "evaluation_id", "id"),
    )

    id: Mapped[int] = mapped_column(Large, primary_key=True, autoincrement=True)
    evaluation_id: Mapped[str] = mapped_column(ForeignKey("evaluations.id"))
    key: Mapped[str] = mapped_column(String(200))
    """Identifies the sample when it is sent again."""
    body: Mapped[bytes] = mapped_column(LargeBinary)
    """Compressed JSON."""
    size_bytes: Mapped[int | None]
    """Size of the JSON; null for samples of releases that did not count it."""

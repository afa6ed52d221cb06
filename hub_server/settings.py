"""Everything an operator can set. Each field is also the variable `VF_HUB_<FIELD>`."""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from hub_server.errors import SettingsError
from verifiers.hub.wire import MAX_SAMPLE_BYTES


class Settings(BaseModel):
    """The configuration of one hub."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path = Path("hub-data")
    """Folder for the SQLite file, the blobs, files in transit and the key of the secrets."""
    database_url: str = ""
    """`postgresql+asyncpg://…`; empty is SQLite in `data_dir`."""
    storage_url: str = ""
    """`s3://bucket/prefix`; empty is a folder in `data_dir`."""
    s3_endpoint: str = ""
    """Address of an S3 server that is not Amazon's."""
    s3_region: str = "us-east-1"
    s3_access_key_id: str = ""
    s3_secret_access_key: str = ""
    s3_presign: bool = True
    """Let clients read and write S3 directly by signed addresses; false relays the bytes."""

    base_url: str = ""
    """Public address, as in `https://hub.example.org`; empty takes it from each request's Host."""
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    workers: int = Field(1, ge=1, le=64)
    trusted_proxies: str = "127.0.0.1"
    """Addresses whose X-Forwarded-* headers are believed, comma separated."""

    install_urls: Literal["wheel", "index"] = "wheel"
    """What `prime env install` is told: the wheel's address with its hash, which no other index can
    answer for, or the environment's index."""
    default_visibility: Literal["PUBLIC", "PRIVATE"] = "PUBLIC"
    """Visibility of a new environment whose author names none: PUBLIC or PRIVATE."""
    anonymous_read: bool = True
    """Whether public environments can be read without an account."""

    max_wheel_bytes: int = Field(100 * 1024**2, ge=1)
    max_source_bytes: int = Field(250 * 1024**2, ge=1)
    max_unpacked_bytes: int = Field(2 * 1024**3, ge=1)
    """Most bytes of a wheel or source archive, unpacked."""
    max_json_bytes: int = Field(4 * 1024**2, ge=1)
    """Largest JSON body, except batches of samples."""
    max_batch_bytes: int = Field(32 * 1024**2, ge=1)
    """Largest batch of samples, in bytes of JSON."""
    max_sample_bytes: int = Field(MAX_SAMPLE_BYTES, ge=1)
    """Largest sample, as JSON before it is packed."""
    max_samples_page_bytes: int = Field(8 * 1024**2, ge=1)
    """Largest page of samples; a single sample is always sent whole."""
    max_metadata_bytes: int = Field(1024**2, ge=1)
    """Largest metadata of one evaluation; its metrics have a quarter of that."""
    owner_quota_bytes: int = Field(10 * 1024**3, ge=1)
    """Most bytes of artifacts, samples and metadata of one owner."""
    max_evaluations: int = Field(10_000, ge=1)
    """Most evaluations of one owner."""
    max_samples: int = Field(200_000, ge=1)
    """Most samples of one evaluation."""
    max_teams: int = Field(10, ge=1)
    """Most teams that one person can found."""
    max_versions: int = Field(2_000, ge=1)
    """Most versions of one environment."""
    max_environments: int = Field(1_000, ge=1)
    """Most environments of one owner."""

    upload_lifetime_s: float = Field(900.0, gt=0)
    """How long an upload address can be used, in seconds."""
    release_window_s: float = Field(3600.0, ge=0)
    """How long after its first file a version takes further ones, in seconds."""
    install_token_lifetime_s: float = Field(3600.0, gt=0)
    """Life of the read-only token inside a private environment's addresses, in seconds."""
    header_timeout_s: float = Field(10.0, gt=0)
    """Longest a client may take to send the head of a request, in seconds."""
    body_idle_timeout_s: float = Field(20.0, gt=0)
    """Longest silence inside a request body, in seconds."""
    body_min_bytes_per_s: int = Field(1_000, ge=0)
    """Slowest body that is not dropped, measured after `body_idle_timeout_s`."""
    rate_limit_per_minute: int = Field(6_000, ge=1)
    """Requests per minute of one caller (a verified token, else an address), in each worker."""
    login_limit_per_minute: int = Field(10, ge=1)
    """Wrong passwords per minute for one account from one address, in each worker."""
    gc_grace_s: float = Field(86_400.0, ge=0)
    """Age in seconds at which a blob no version refers to may be removed."""

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if value.startswith(("postgres://", "postgresql://")):
            value = f"postgresql+asyncpg://{value.partition('://')[2]}"
        if value and not value.startswith(("postgresql+asyncpg://", "sqlite+aiosqlite:///")):
            raise ValueError(
                f"a database is postgresql+asyncpg://user:password@host/name, not {_scheme(value)}"
            )
        return value

    @field_validator("storage_url")
    @classmethod
    def _known_storage(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme != "s3" or not parts.netloc):
            raise ValueError(
                f"a storage is s3://bucket or s3://bucket/prefix, not {_scheme(value)}"
            )
        return value

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.netloc):
            raise ValueError(f"an address is https://hub.example.org, not {_scheme(value)}")
        return value

    @model_validator(mode="after")
    def _whole_key(self) -> Self:
        if bool(self.s3_access_key_id) != bool(self.s3_secret_access_key):
            raise ValueError("VF_HUB_S3_ACCESS_KEY_ID and VF_HUB_S3_SECRET_ACCESS_KEY go together")
        return self

    @property
    def sqlalchemy_url(self) -> str:
        """The address of the database."""
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir / 'hub.db'}"

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is one file on this machine."""
        return self.sqlalchemy_url.startswith("sqlite")

    @property
    def sqlite_path(self) -> Path | None:
        """The database file; None on PostgreSQL."""
        return Path(self.sqlalchemy_url.partition(":///")[2]) if self.is_sqlite else None

    @property
    def staging_dir(self) -> Path:
        """Files in transit; on the same file system as the blobs when those are a folder."""
        return self.data_dir / "staging"


OF_COMMANDS = frozenset({"VF_HUB_PASSWORD"})
"""Variables that belong to options of `vf-hub`, not to the settings."""


def _scheme(address: str) -> str:
    """The beginning of an address, which may have a password further on."""
    return repr(address.partition("://")[0][:20] + "://…")


def settings_from_environment(**overrides: object) -> Settings:
    """Settings from `VF_HUB_*`, with the overrides that are not None on top.

    Raises SettingsError for an unknown or unusable variable.
    """
    prefix = "VF_HUB_"
    values: dict[str, object] = {
        key.removeprefix(prefix).lower(): value
        for key, value in os.environ.items()
        if key.startswith(prefix) and key not in OF_COMMANDS
    }
    values.update({key: value for key, value in overrides.items() if value is not None})
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError("; ".join(map(_explained, error.errors()))) from error


def _explained(problem: ErrorDetails) -> str:
    """One wrong setting in words; its value is shown unless it may hold a password."""
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return f"{message}."
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        near = get_close_matches(name, Settings.model_fields, 1)
        hint = f" Did you mean VF_HUB_{near[0].upper()}?" if near else ""
        return f"There is no setting VF_HUB_{name.upper()}.{hint} docs/hub.md lists them."
    shown = "" if "url" in name or "secret" in name else f"={str(problem['input'])[:60]!r}"
    return f"VF_HUB_{name.upper()}{shown} cannot be used: {message}."


def environment_of(settings: Settings) -> dict[str, str]:
    """The settings as variables, by which other processes of the hub get them."""
    values = settings.model_dump(mode="json")
    return {f"VF_HUB_{key.upper()}": str(value) for key, value in values.items()}

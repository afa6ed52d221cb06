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
    """Folder of the SQLite file, the blobs, files in transit and the key of the secrets."""
    database_url: str = ""
    """`postgresql+asyncpg://…`; an empty value means SQLite in `data_dir`."""
    storage_url: str = ""
    """`s3://bucket/prefix`; an empty value means a folder in `data_dir`."""
    s3_endpoint: str = ""
    """Address of an S3 server other than Amazon's."""
    s3_region: str = "us-east-1"
    s3_access_key_id: str = ""
    s3_secret_access_key: str = ""
    s3_presign: bool = True
    """Let clients read and write S3 directly by signed addresses. If false, the hub relays the bytes."""

    base_url: str = ""
    """Public address, for example `https://hub.example.org`. An empty value takes it from each request's Host header.
    """
    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)
    workers: int = Field(1, ge=1, le=64)
    trusted_proxies: str = "127.0.0.1"
    """Addresses whose X-Forwarded-* headers are trusted, separated by commas."""

    install_urls: Literal["wheel", "index"] = "wheel"
    """The kind of address that `prime env install` receives: the wheel's address with its hash, for which no other
    index can answer, or the environment's index.
    """
    default_visibility: Literal["PUBLIC", "PRIVATE"] = "PUBLIC"
    """Visibility of a new environment whose author does not choose one: PUBLIC or PRIVATE."""
    anonymous_read: bool = True
    """Whether public environments can be read without an account."""

    max_wheel_bytes: int = Field(100 * 1024**2, ge=1)
    max_source_bytes: int = Field(250 * 1024**2, ge=1)
    max_unpacked_bytes: int = Field(2 * 1024**3, ge=1)
    """Maximum number of bytes of a wheel or source archive, unpacked."""
    max_json_bytes: int = Field(4 * 1024**2, ge=1)
    """Maximum size of a JSON body, except batches of samples."""
    max_batch_bytes: int = Field(32 * 1024**2, ge=1)
    """Maximum size of a batch of samples, in bytes of JSON."""
    max_sample_bytes: int = Field(MAX_SAMPLE_BYTES, ge=1)
    """Maximum size of a sample as JSON, before compression."""
    max_samples_page_bytes: int = Field(8 * 1024**2, ge=1)
    """Maximum size of a page of samples. The first sample of a page is always sent whole."""
    max_metadata_bytes: int = Field(1024**2, ge=1)
    """Maximum size of the metadata of one evaluation. Its metrics may have a quarter of that."""
    owner_quota_bytes: int = Field(10 * 1024**3, ge=1)
    """Maximum number of bytes of artifacts, samples and metadata per owner."""
    max_evaluations: int = Field(10_000, ge=1)
    """Maximum number of evaluations per owner."""
    max_samples: int = Field(200_000, ge=1)
    """Maximum number of samples per evaluation."""
    max_teams: int = Field(10, ge=1)
    """Maximum number of teams that one person can create."""
    max_versions: int = Field(2_000, ge=1)
    """Maximum number of versions per environment."""
    max_environments: int = Field(1_000, ge=1)
    """Maximum number of environments per owner."""

    upload_lifetime_s: float = Field(900.0, gt=0)
    """Seconds for which an upload address is valid."""
    release_window_s: float = Field(3600.0, ge=0)
    """Seconds after its first file for which a version accepts further files."""
    install_token_lifetime_s: float = Field(3600.0, gt=0)
    """Lifetime of the read-only token inside a private environment's addresses, in seconds."""
    header_timeout_s: float = Field(10.0, gt=0)
    """Maximum time for the head of a request, in seconds."""
    body_idle_timeout_s: float = Field(20.0, gt=0)
    """Maximum pause inside a request body, in seconds."""
    body_min_bytes_per_s: int = Field(1_000, ge=0)
    """Minimum speed of a request body, measured after `body_idle_timeout_s`."""
    rate_limit_per_minute: int = Field(6_000, ge=1)
    """Requests per minute per caller (a verified token, else an address), in each worker."""
    login_limit_per_minute: int = Field(10, ge=1)
    """Wrong passwords per minute per account and address, in each worker."""
    gc_grace_s: float = Field(86_400.0, ge=0)
    """Age in seconds at which an unused blob may be removed."""

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
            raise ValueError(
                "VF_HUB_S3_ACCESS_KEY_ID and VF_HUB_S3_SECRET_ACCESS_KEY must be set together"
            )
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
        """The database file, or None on PostgreSQL."""
        return Path(self.sqlalchemy_url.partition(":///")[2]) if self.is_sqlite else None

    @property
    def staging_dir(self) -> Path:
        """Folder of files in transit, on the same file system as the blobs if those are a folder."""
        return self.data_dir / "staging"


OF_COMMANDS = frozenset({"VF_HUB_PASSWORD"})
"""Variables of options of `vf-hub`, which are not settings."""


def _scheme(address: str) -> str:
    """Return the beginning of an address. The rest of it may contain a password."""
    return repr(address.partition("://")[0][:20] + "://…")


def settings_from_environment(**overrides: object) -> Settings:
    """Return the settings of `VF_HUB_*`, replaced by the overrides that are not None.

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
    """Describe one wrong setting. The value is included unless it may contain a password."""
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
    """Return the settings as variables, by which other processes of the hub receive them."""
    values = settings.model_dump(mode="json")
    return {f"VF_HUB_{key.upper()}": str(value) for key, value in values.items()}

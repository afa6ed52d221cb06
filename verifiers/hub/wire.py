"""Requests and answers between a hub and its clients.

The server validates requests with these models, and clients build them. Requests ignore unknown keys, because clients
of several generations send more than the hub reads. Answers of the hub part are wrapped as `{"data": …}`; answers of
the evaluations part are bare.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

MAX_SAMPLE_BYTES = 16 * 1024**2
"""Maximum size of one sample as JSON, unless the operator sets another limit."""
MAX_BATCH_VALUES = 2_000_000
"""Maximum number of commas and brackets in one batch of samples."""
Visibility = Literal["PUBLIC", "PRIVATE"]
ShortText = Annotated[str, Field(max_length=300)]
SHA256 = Field(pattern=r"^[0-9a-f]{64}$")


def value_count(text: bytes) -> int:
    """Return an upper bound on the number of values in a JSON text: its commas and opening brackets."""
    return text.count(b",") + text.count(b"[") + text.count(b"{")


class WireRequest(BaseModel):
    """Base class of all requests."""

    model_config = ConfigDict(extra="ignore", str_max_length=1_000_000)


def _known_visibility(value: str | None) -> str | None:
    if not value:
        return None
    if value.upper() not in ("PUBLIC", "PRIVATE"):
        raise ValueError(f"visibility is PUBLIC or PRIVATE, not {value[:40]!r}")
    return value.upper()


AnyVisibility = Annotated[str | None, AfterValidator(_known_visibility)]
"""PUBLIC or PRIVATE in any case, or an empty value."""


class ResolveRequest(WireRequest):
    """Get or create an environment. At most one of the three owners is given; the default is the caller."""

    name: str = Field(min_length=1, max_length=128)
    visibility: AnyVisibility = None
    owner_slug: str | None = None
    team_slug: str | None = None
    team_id: str | None = None


class InstallTokenRequest(WireRequest):
    """Environments (`owner/name`) that are installed together."""

    environments: list[str] = Field(min_length=1, max_length=100)


class LookupRequest(WireRequest):
    """Find an environment by id, or by name and owner."""

    id: str | None = None
    name: str | None = None
    team_slug: str | None = None
    owner_slug: str | None = None


class ArtifactMetadata(WireRequest):
    """A client's description of an artifact. The hub uses only the tags."""

    description: str | None = None
    tags: list[str] = []
    original_filename: str | None = None

    @field_validator("tags", mode="before")
    @classmethod
    def _absent_is_none(cls, value: Any) -> Any:  # clients of one generation send null
        return [] if value is None else value


class ArtifactRequest(WireRequest):
    """Announce a wheel or a source archive before its bytes are sent."""

    content_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    filename: str = Field(min_length=1, max_length=240)
    sha256: str = SHA256
    size: int | None = Field(None, ge=0)
    semantic_version: str | None = Field(None, max_length=128)
    runtime_hint: str | None = Field(None, max_length=64)
    metadata: ArtifactMetadata = ArtifactMetadata()


class ReserveFile(WireRequest):
    """One file of a release that is about to be uploaded."""

    filename: str = Field(min_length=1, max_length=240)
    sha256: str = SHA256
    size: int = Field(ge=0)
    kind: Literal["wheel", "source"] = "wheel"


class ReserveRequest(WireRequest):
    """The files of one release. They become visible together or not at all."""

    files: list[ReserveFile] = Field(min_length=1, max_length=50)
    visibility: AnyVisibility = None
    tags: list[str] = []


class FinalizeRequest(WireRequest):
    """Publish the files that were uploaded under these reservations as one release."""

    upload_ids: list[str] = Field(min_length=1, max_length=50)


class YankRequest(WireRequest):
    """Yank a version, or undo that with `yanked: false`."""

    yanked: bool = True
    reason: str = Field("", max_length=1000)


class EnvironmentPatch(WireRequest):
    """Change the fields that do not belong to a version."""

    visibility: Visibility | None = None
    description: str | None = Field(None, max_length=4000)
    tags: list[str] | None = None
    status: Literal["active", "archived", "deprecated", "quarantined"] | None = None
    status_reason: str | None = Field(None, max_length=1000)


class ForkRequest(WireRequest):
    """Copy an environment's newest version to another owner; the default is the caller."""

    team_slug: str | None = None
    team_id: str | None = None
    name: str | None = None


class SlugRequest(WireRequest):
    """Change the caller's public name."""

    slug: str = Field(pattern=r"^[a-z0-9-]{3,30}$")


class TeamRequest(WireRequest):
    """Create a team."""

    slug: str = Field(pattern=r"^[a-z0-9-]{3,30}$")
    name: str | None = Field(None, max_length=128)


class MemberRequest(WireRequest):
    """Add a member or change a role."""

    user: str
    role: Literal["admin", "member", "reader"] = "member"


class TokenRequest(WireRequest):
    """Create an API token. It can do no more than the caller's token."""

    name: str = Field("token", max_length=128)
    actions: list[str] = ["read", "publish", "evaluate"]
    environments: list[str] = Field(["*"], min_length=1, max_length=100)
    """Patterns `owner/name`, `owner/prefix*`, `owner/*` or `*`."""
    expires_in_s: int | None = Field(None, gt=0)
    """Seconds until the token expires; null for a token that never expires."""


class PasswordLogin(WireRequest):
    """A person's name and password."""

    username: str = Field(max_length=128)
    password: str = Field(max_length=1024)


class SetupRequest(PasswordLogin):
    """Create the first administrator with the one-time token that the server printed."""

    token: str
    email: str | None = Field(None, max_length=320)


class ChallengeRequest(WireRequest):
    """Start a browser login. The key encrypts the token on its way back."""

    encryptionPublicKey: str = Field(max_length=4096)
    limits: dict[str, Any] | None = None


class ApproveRequest(WireRequest):
    """Approve the client that shows this code."""

    code: str = Field(max_length=128)


class SecretRequest(WireRequest):
    """A secret or variable of an environment or a person."""

    name: str = Field(pattern=r"^[A-Z][A-Z0-9_]*$", max_length=128)
    value: str = Field(max_length=65_536)
    description: str | None = Field(None, max_length=1000)
    isFile: bool = False
    teamId: str | None = None


class SecretPatch(WireRequest):
    """Change some fields of a secret."""

    name: str | None = Field(None, pattern=r"^[A-Z][A-Z0-9_]*$", max_length=128)
    value: str | None = Field(None, max_length=65_536)
    description: str | None = Field(None, max_length=1000)


class EnvironmentReference(WireRequest):
    """The environment of an evaluation, with its version if it is known."""

    id: str
    version_id: str | None = None


class EvaluationRequest(WireRequest):
    """Open an evaluation; samples follow in batches."""

    name: str = Field(min_length=1, max_length=300)
    environments: list[EnvironmentReference] | None = Field(None, max_length=20)
    run_id: ShortText | None = None
    suite_id: ShortText | None = None
    model_name: ShortText | None = None
    dataset: ShortText | None = None
    framework: ShortText | None = None
    task_type: ShortText | None = None
    description: str | None = Field(None, max_length=20_000)
    tags: list[ShortText] = Field([], max_length=100)
    metadata: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    team_id: str | None = None
    is_public: bool | None = None


class EvaluationPatch(WireRequest):
    """Change an open evaluation, or close it as failed or cancelled."""

    name: str | None = Field(None, max_length=300)
    model_name: ShortText | None = None
    dataset: ShortText | None = None
    framework: ShortText | None = None
    task_type: ShortText | None = None
    description: str | None = Field(None, max_length=20_000)
    tags: list[ShortText] = Field([], max_length=100)
    metadata: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    is_public: bool | None = None
    status: Literal["RUNNING", "COMPLETED", "FAILED", "CANCELLED"] | None = None
    error_message: str | None = Field(None, max_length=4096)


class FinalizeEvaluation(WireRequest):
    """Close an evaluation with its final numbers."""

    metrics: dict[str, Any] | None = None


# --- answers ----------------------------------------------------------------------------------


class OwnerAnswer(BaseModel):
    """The owner of an object; `name` is the slug in `owner/name`."""

    id: str
    name: str
    slug: str
    type: Literal["user", "team"]


class ResolveAnswer(BaseModel):
    """The environment, and whether this call created it."""

    id: str
    name: str
    created: bool
    visibility: Visibility
    owner: OwnerAnswer


class EnvironmentRow(BaseModel):
    """One environment in a list."""

    id: str
    name: str
    owner: OwnerAnswer
    description: str
    visibility: Visibility
    latest_version: str | None
    stars: int
    tags: list[str]
    status: str
    created_at: str
    updated_at: str


class InstallAnswer(BaseModel):
    """How to install a version so that no other index can answer for its name."""

    requirement: str
    """`name @ url#sha256=…`, which pip and uv install only from this hub."""
    wheel_url: str
    sha256: str
    dependencies: list[str] = []
    """`name @ url#sha256=…` of every other environment of this hub that it requires, directly or indirectly. Without
    these lines an installer takes packages of those names from its index.
    """
    index_url: str
    """The index that lists only this environment."""
    uv_sources: str
    """Lines for pyproject.toml that bind the name to this index."""
    pylock_url: str


class EnvironmentAnswer(BaseModel):
    """One environment at one version."""

    id: str
    name: str
    owner: OwnerAnswer
    visibility: Visibility
    status: str
    status_reason: str | None
    semantic_version: str | None
    version_id: str | None
    source_hash: str | None
    """The client's content hash. It is not called `content_hash`, because old clients would compare it wrongly."""
    package_url: str | None
    tracked_package_url: str | None
    simple_index_url: str | None
    install_index_url: str | None
    wheel_url: str | None
    url_dependencies: list[str]
    install: InstallAnswer | None
    install_refused: str | None = None
    """Why it cannot be installed: it requires an environment of this hub that the caller cannot get."""
    yanked: bool
    yanked_reason: str | None
    stars: int
    starred: bool
    tags: list[str]
    runtime_hint: str | None
    requires_python: str | None
    requires_dist: list[str]
    readme: str
    created_at: str
    updated_at: str
    metadata: dict[str, Any]


class VersionRow(BaseModel):
    """One version in a list, newest first.

    Old clients show `sha256` as the content hash and `size` as the number of files.
    """

    version: str
    version_id: str
    created_at: str
    sha256: str
    size: int
    content_hash: str | None
    yanked: bool
    yanked_reason: str | None
    files: list[dict[str, Any]]


class TokenAnswer(BaseModel):
    """A token without its text. `token` is set only in the answer that created it."""

    id: str
    name: str
    prefix: str
    actions: list[str]
    environments: list[str]
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    token: str | None = None

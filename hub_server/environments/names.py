"""Names of owners and environments, and version numbers. Pure."""

import re
import sys
from collections.abc import Iterable

from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from hub_server.errors import BadRequest

OWNER_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,28})[a-z0-9]")
ENVIRONMENT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RESERVED_OWNERS = _words(
    "about account accounts activate admin administrator admins all anonymous api app assets auth"
    " blobs dashboard demo device docs download downloads environments environmentshub evaluations"
    " everyone explore favicon files health help hub index install legacy login logout me metrics"
    " moderator new null oauth official openapi organizations orgs owner owners password"
    " private public pypi ready register robots root search secrets security self settings setup"
    " shared signup simple static status support sys system team teams token tokens traces undefined"
    " upload uploads user users verifiers well-known www"
) | {"nobody"}
"""Words that are or may become addresses of the hub, or that impersonate its operator."""

WELL_KNOWN_PROJECTS = _words(
    "accelerate aiohttp anthropic boto3 certifi click cryptography datasets deepspeed fastapi"
    " flask hatchling httpx huggingface-hub idna jax jinja2 litellm lxml math-verify matplotlib"
    " mcp nltk numpy openai orjson packaging pandas peft pillow pip playwright prime prime-evals"
    " prime-rl prime-sandboxes protobuf pyarrow pydantic pyyaml ray reasoning-gym requests rich"
    " safetensors scikit-learn scipy selenium sentencepiece setuptools six sqlalchemy sympy textarena"
    " tiktoken tokenizers torch torchvision tqdm transformers trl typer urllib3 uv uvicorn verifiers"
    " verl vllm wandb wheel"
)
"""Dependencies of many environments. An environment of such a name would be mistaken for the package."""

_ADDRESS_WORDS = _words("simple legacy files wheels versions variables secrets resolve lookup")
_STANDARD_LIBRARY = frozenset(canonicalize_name(name) for name in sys.stdlib_module_names)


def normalized(name: str) -> str:
    """Return the PEP 503 spelling, in which names are compared."""
    return canonicalize_name(name)


def skeleton(name: str) -> str:
    """Return the name with equal spellings for look-alike characters: `l`, `1`, `i` and `o`, `0`."""
    plain = normalized(name).translate(str.maketrans("1i0", "llo"))
    return plain.replace("-", "")


def check_owner_name(slug: str) -> str:
    """Return the slug. Raises BadRequest with the reason if it is not valid."""
    if not OWNER_NAME.fullmatch(slug) or "--" in slug:
        raise BadRequest(
            f"{slug!r} is not a valid username: use 3 to 30 of a-z, 0-9 and single hyphens inside."
        )
    if slug in RESERVED_OWNERS or skeleton(slug) == skeleton("verifiers"):
        raise BadRequest(f"The username {slug!r} is reserved.")
    return slug


def check_environment_name(name: str) -> str:
    """Return the name. Raises BadRequest with the reason if it is not valid."""
    if not ENVIRONMENT_NAME.fullmatch(name):
        raise BadRequest(
            f"{name[:140]!r} is not a valid environment name: use 1 to 128 ASCII letters, digits and"
            " ._- inside."
        )
    if is_reserved(name):
        raise BadRequest(
            f"The name {name!r} is taken by a well-known package; choose another one,"
            f" for example {name}-env."
        )
    return name


def is_reserved(name: str) -> bool:
    """Return whether no environment can have this name."""
    plain = normalized(name)
    return plain in WELL_KNOWN_PROJECTS or plain in _STANDARD_LIBRARY or plain in _ADDRESS_WORDS


# --- versions ----------------------------------------------------------------------------------


def parse_version(text: str) -> Version:
    """Return the version. Raises BadRequest with an example if it is not valid."""
    try:
        return Version(text)
    except InvalidVersion as error:
        raise BadRequest(f"{text[:80]!r} is not a version such as 1.2.0 (PEP 440).") from error


def canonical(text: str) -> str:
    """Return the form in which versions are unique. Raises BadRequest for a local version.

    A local version (`1.0+mine`) would hide the public version of the same number.
    """
    version = parse_version(text)
    if version.local is not None:
        raise BadRequest(f"{text!r} is a local version; local versions cannot be published.")
    return canonicalize_version(version)


def preference(text: str) -> tuple[bool, Version]:
    """Return a sort key: pre-releases before releases, then by number."""
    version = Version(text)
    return (not version.is_prerelease, version)


def better_latest(current: str | None, candidate: str) -> str:
    """Return the one of two unyanked versions that `latest` means."""
    if current is None or preference(candidate) >= preference(current):
        return candidate
    return current


def choose_latest(unyanked: Iterable[str]) -> str | None:
    """Return the version that `latest` means; None when all are yanked."""
    return max(unyanked, key=preference, default=None)


def is_hash_prefix(reference: str) -> bool:
    """Return whether a version reference can be the beginning of a content hash."""
    return re.fullmatch(r"[0-9a-f]{8,64}", reference) is not None

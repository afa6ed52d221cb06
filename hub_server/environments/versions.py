"""Which version comes first, and which one a reference means. Pure."""

import re
from collections.abc import Iterable

from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version

from hub_server.errors import BadRequest


def parse_version(text: str) -> Version:
    """The version, or BadRequest with an example."""
    try:
        return Version(text)
    except InvalidVersion as error:
        raise BadRequest(f"{text[:80]!r} is not a version such as 1.2.0 (PEP 440).") from error


def canonical(text: str) -> str:
    """The form by which versions are unique. Raises BadRequest for a local version.

    A local version (`1.0+mine`) would hide the public one of the same number.
    """
    version = parse_version(text)
    if version.local is not None:
        raise BadRequest(f"{text!r} is a local version; those cannot be published.")
    return canonicalize_version(version)


def preference(text: str) -> tuple[bool, Version]:
    """A sort key: pre-releases before releases, then by number."""
    version = Version(text)
    return (not version.is_prerelease, version)


def better_latest(current: str | None, candidate: str) -> str:
    """The one of two unyanked versions that `latest` means."""
    if current is None or preference(candidate) >= preference(current):
        return candidate
    return current


def choose_latest(unyanked: Iterable[str]) -> str | None:
    """The version that `latest` means; None when all are yanked."""
    return max(unyanked, key=preference, default=None)


def is_hash_prefix(reference: str) -> bool:
    """Whether a version reference can be the beginning of a content hash."""
    return re.fullmatch(r"[0-9a-f]{8,64}", reference) is not None

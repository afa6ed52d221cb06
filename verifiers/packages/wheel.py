"""The wheel check at publish time: the content of a wheel, read without running any of it.

`read_wheel` accepts a wheel only if every reader of it must see the same content: the ZIP structure has one
meaning,
RECORD lists exactly the members with their hashes, names agree everywhere, and no member can be written outside its
place. The rules follow those of the public package index. No code of the wheel is imported, built or extracted.
"""

import base64
import configparser
import csv
import hashlib
import io
import re
import sys
from pathlib import Path
from typing import BinaryIO

from packaging.metadata import Metadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import parse_tag
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pydantic import BaseModel, ConfigDict

from verifiers.packages.archive import Member, read_members, unpacked
from verifiers.packages.archive import WheelLimits as WheelLimits
from verifiers.packages.archive import WheelRejected as WheelRejected
from verifiers.packages.archive import unsafe_path as unsafe_path


class EntryPoint(BaseModel):
    """One line of entry_points.txt."""

    model_config = ConfigDict(frozen=True)

    group: str
    name: str
    value: str


class WheelManifest(BaseModel):
    """The facts that the hub stores about a wheel, all taken from the file."""

    model_config = ConfigDict(frozen=True)

    filename: str
    name: str
    """The distribution name as METADATA spells it."""
    version: str
    """The version in normal PEP 440 spelling."""
    sha256: str
    size_bytes: int
    metadata_text: str
    """METADATA itself, for the index's `.metadata` files (PEP 658)."""
    metadata_sha256: str
    summary: str = ""
    description: str = ""
    description_content_type: str = ""
    keywords: list[str] = []
    license: str = ""
    requires_python: str | None = None
    requires_dist: list[str] = []
    url_dependencies: list[str] = []
    """The requirements that name a URL; resolvers refuse them when they come through an index."""
    project_urls: dict[str, str] = {}
    """Labels and addresses of Project-URL."""
    entry_points: list[EntryPoint] = []
    top_level: list[str] = []
    """Importable top-level names, in order."""
    runtime_hint: str | None = None
    """`VERIFIERS_V0` or `VERIFIERS_V1` by the lower bound on `verifiers`; None without a requirement on it."""

    @property
    def normalized_name(self) -> str:
        """The name in PEP 503 spelling."""
        return canonicalize_name(self.name)

    @property
    def canonical_version(self) -> str:
        """The version with trailing zeros cut: equal for equal releases (`1.0` and `1.0.0`)."""
        return canonicalize_version(self.version)


def read_wheel(
    file: Path,
    filename: str | None = None,
    limits: WheelLimits | None = None,
    *,
    is_library: bool = False,
) -> WheelManifest:
    """Return the manifest of the wheel in `file`, which is published as `filename`.

    `is_library` allows the modules and commands that only this library may have. Raises WheelRejected if a rule is
    broken.
    Reads the whole file once; call it from a thread.
    """
    limits = limits or WheelLimits()
    filename = filename or file.name
    name, version, tags = parse_filename(filename)
    with file.open("rb", buffering=1 << 18) as opened:
        size_bytes = opened.seek(0, io.SEEK_END)
        sha256 = _hash_of(opened)
        members = read_members(opened, size_bytes, limits)
        dist_info = _dist_info_folder(members, name, version)
        by_name = {member.name: member for member in members}

        def text_of(leaf: str, *, required: bool = True) -> str | None:
            member = by_name.get(f"{dist_info}/{leaf}")
            if member is None:
                if required:
                    raise WheelRejected(f"{filename} has no {dist_info}/{leaf}.")
                return None
            allowed = limits.metadata_bytes * max(1, len(members) // 1000)
            if member.size_bytes > allowed:
                raise WheelRejected(
                    f"{member.name} has {member.size_bytes} bytes; at most {allowed} are allowed."
                )
            try:
                return b"".join(unpacked(opened, member)).decode("utf-8")
            except UnicodeDecodeError as error:
                raise WheelRejected(f"{member.name} is not UTF-8: {error}.") from error

        metadata_text = text_of("METADATA") or ""
        _check_wheel_file(text_of("WHEEL") or "", tags)
        record = _record(text_of("RECORD") or "")
        _check_record(record, dist_info, members, opened)
        entry_points = _entry_points(text_of("entry_points.txt", required=False) or "", is_library)
    metadata = _metadata(metadata_text)
    if canonicalize_name(metadata.name) != name:
        raise WheelRejected(f"{filename} is for {name}, but its METADATA names {metadata.name}.")
    if metadata.version != version:
        raise WheelRejected(
            f"{filename} is {version}, but its METADATA has the version {metadata.version}."
        )
    _check_placement(members, dist_info)
    if not is_library:
        _check_top_level(members, dist_info)
    _check_license_files(metadata, dist_info, by_name)
    requirements = metadata.requires_dist or []
    return WheelManifest(
        filename=filename,
        name=metadata.name,
        version=str(metadata.version),
        sha256=sha256,
        size_bytes=size_bytes,
        metadata_text=metadata_text,
        metadata_sha256=hashlib.sha256(metadata_text.encode()).hexdigest(),
        summary=metadata.summary or "",
        description=metadata.description or "",
        description_content_type=metadata.description_content_type or "",
        keywords=list(metadata.keywords or []),
        license=metadata.license_expression or metadata.license or "",
        requires_python=str(metadata.requires_python) if metadata.requires_python else None,
        requires_dist=[str(requirement) for requirement in requirements],
        url_dependencies=[str(r) for r in requirements if r.url],
        project_urls=dict(metadata.project_urls or {}),
        entry_points=entry_points,
        top_level=_top_level(members, dist_info),
        runtime_hint=runtime_hint(requirements),
    )


def parse_filename(filename: str) -> tuple[str, Version, frozenset[str]]:
    """Return normalized name, version and tags of a wheel's file name. Raises WheelRejected for other names."""
    if len(filename) > 240 or not re.fullmatch(r"[A-Za-z0-9._+!-]+\.whl", filename):
        raise WheelRejected(f"{filename!r} is not a wheel file name (letters, digits and ._+!-).")
    try:
        name, version, _build, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise WheelRejected(f"{filename!r} is not a wheel file name: {error}.") from error
    return name, version, frozenset(str(tag) for tag in tags)


def runtime_hint(requirements: list[Requirement]) -> str | None:
    """Return the API of verifiers that a wheel is written for, by its lower bound on `verifiers`.

    A bound from 0.2.0 up to, but not including, 1.0 means V1 (the public package changed its API there). Any other
    bound means
    V0 (this package starts at 1.0 and keeps V0). No requirement or a URL gives None; extras do not count.
    """
    for requirement in requirements:
        extra_only = requirement.marker is not None and "extra" in str(requirement.marker)
        if canonicalize_name(requirement.name) != "verifiers" or extra_only or requirement.url:
            continue
        lower = [s for s in requirement.specifier if s.operator in (">=", ">", "==", "~=", "===")]
        if not list(requirement.specifier):
            return None
        newest = max((Version(s.version.removesuffix(".*")) for s in lower), default=None)
        is_v1 = newest is not None and Version("0.2.0") <= newest < Version("1.0")
        return "VERIFIERS_V1" if is_v1 else "VERIFIERS_V0"
    return None


def _digest(file: BinaryIO, member: Member, algorithm: str) -> bytes:
    digest = hashlib.new(algorithm)
    for piece in unpacked(file, member):
        digest.update(piece)
    return digest.digest()


def _hash_of(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while piece := file.read(1 << 18):
        digest.update(piece)
    return digest.hexdigest()


_SHADOWED_SCRIPTS = re.compile(
    r"(python|pip|pypy)[0-9.]*|uvx?|sh|bash|zsh|ls|cat|cp|mv|rm|env|git|ssh|sudo|su|curl|wget"
    r"|tar|make|node|npm|docker|prime|vf-.*|activate.*",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\s*:\s*[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)?")


def _dist_info_folder(members: list[Member], name: str, version: Version) -> str:
    tops = {m.name.partition("/")[0] for m in members if "/" in m.name}
    folders = sorted(top for top in tops if top.lower().endswith(".dist-info"))
    if len(folders) != 1:
        raise WheelRejected(f"A wheel has exactly one .dist-info folder; this one has {folders}.")
    stem_name, _, stem_version = folders[0].removesuffix(".dist-info").partition("-")
    try:
        agrees = canonicalize_name(stem_name) == name and Version(stem_version) == version
    except InvalidVersion:
        agrees = False
    if not agrees:
        raise WheelRejected(f"The folder {folders[0]} does not belong to {name} {version}.")
    return folders[0]


def _metadata(text: str) -> Metadata:
    raw, unknown = parse_email(text)
    if unknown:
        raise WheelRejected(f"METADATA has fields that cannot be read: {sorted(unknown)}.")
    # setuptools wrote License-File years before metadata 2.4 defined it; installers ignore it.
    if raw.get("metadata_version", "") < "2.4":
        raw.pop("license_files", None)
    try:
        return Metadata.from_raw(raw, validate=True)
    except ExceptionGroup as group:
        problems = "; ".join(str(error) for error in group.exceptions[:3])
        raise WheelRejected(f"METADATA is not valid: {problems}.") from group


def _check_wheel_file(text: str, tags: frozenset[str]) -> None:
    fields = [line.partition(":") for line in text.splitlines() if ":" in line]
    values = [(key.strip().lower(), value.strip()) for key, _, value in fields]
    wheel_version = next((value for key, value in values if key == "wheel-version"), "")
    if not wheel_version.startswith("1."):
        raise WheelRejected(f"Wheel-Version is {wheel_version!r}; only 1.x can be installed.")
    try:
        inside = {str(t) for key, value in values if key == "tag" for t in parse_tag(value)}
    except ValueError as error:
        raise WheelRejected(f"WHEEL has a Tag that is not valid: {error}.") from error
    if inside != tags:
        raise WheelRejected(
            f"WHEEL has the tags {sorted(inside)}, the file name has {sorted(tags)}."
        )


def _record(text: str) -> dict[str, tuple[str, str]]:
    """Return hash and size of each path that RECORD lists."""
    listed: dict[str, tuple[str, str]] = {}
    try:
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error as error:
        raise WheelRejected(f"RECORD is not a CSV file: {error}.") from error
    for row in rows:
        path, hash_text, size_text = (*row, "", "")[:3]
        if path in listed:
            raise WheelRejected(f"RECORD lists {path!r} twice.")
        listed[path] = (hash_text, size_text)
    return listed


def _check_record(
    listed: dict[str, tuple[str, str]], dist_info: str, members: list[Member], file: BinaryIO
) -> None:
    """Compare RECORD with the members. Every member is unpacked once, completely."""
    unlisted = {f"{dist_info}/RECORD", f"{dist_info}/RECORD.jws", f"{dist_info}/RECORD.p7s"}
    files = [member for member in members if not member.is_folder]
    ghosts = sorted(set(listed) - {member.name for member in files})
    if ghosts:
        raise WheelRejected(f"RECORD lists {ghosts[0]!r}, which is not in the wheel.")
    for member in files:
        if member.name in unlisted:
            _digest(file, member, "sha256")
            continue
        if member.name not in listed:
            raise WheelRejected(f"RECORD does not list {member.name!r}.")
        hash_text, size_text = listed[member.name]
        algorithm, _, encoded = hash_text.partition("=")
        if algorithm not in ("sha256", "sha384", "sha512"):
            raise WheelRejected(f"RECORD has no sha256 of {member.name!r}, but {hash_text!r}.")
        try:
            expected = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except ValueError as error:
            raise WheelRejected(f"RECORD has no readable hash for {member.name!r}.") from error
        if _digest(file, member, algorithm) != expected:
            raise WheelRejected(
                f"The hash of {member.name!r} in RECORD differs from the file's hash."
            )
        if size_text and size_text != str(member.size_bytes):
            raise WheelRejected(
                f"RECORD states {size_text} bytes for {member.name!r}, which has {member.size_bytes}."
            )


def _check_placement(members: list[Member], dist_info: str) -> None:
    data = dist_info.removesuffix(".dist-info") + ".data"
    for member in members:
        top, _, rest = member.name.partition("/")
        if top.endswith(".data") and (
            top != data or rest.partition("/")[0] not in ("purelib", "platlib")
        ):
            raise WheelRejected(f"{member.name!r} would be installed outside site-packages.")


_RUN_AT_START = frozenset({"sitecustomize", "usercustomize", "_virtualenv"})
"""Modules that every interpreter imports at its start."""

_IMPORT_NAMES = frozenset(
    " ".join(
        (
            # packaging tools, which run with the rights of the person who installs
            "pip setuptools wheel pkg_resources _distutils_hack uv build hatchling flit_core",
            "editables",
            # this library and the public packages beside it
            "verifiers hub_server vf_cli prime prime_cli prime_evals prime_sandboxes prime_runs",
            "prime_traces prime_rl",
            # direct and indirect dependencies of the library
            "aiohttp aiosignal aiosqlite alembic annotated_types anthropic anyio argon2 asyncpg",
            "attr attrs certifi charset_normalizer click cryptography datasets dateutil dill",
            "distro docstring_parser fastapi filelock frozenlist fsspec gepa gymnasium h11",
            "httpcore httptools httpx httpx_sse huggingface_hub idna jinja2 jiter",
            "kubernetes_asyncio latex2sympy2_extended mako markdown_it markupsafe math_verify",
            "mcp mdurl mpmath msgpack multidict multiprocess numpy obstore openai orjson",
            "packaging pandas pathspec playwright propcache pyarrow pydantic pydantic_core",
            "pydantic_settings pygments python_multipart pytz ray reasoning_gym regex requests",
            "rich safetensors shellingham six sniffio sqlalchemy starlette sympy tenacity",
            "textarena tokenizers torch tqdm transformers typer typing_extensions",
            "typing_inspection tzdata urllib3 uvicorn uvloop watchfiles websockets xxhash yaml",
            "yarl zmq zstandard",
            # other packages of trainers, evaluators and tests
            "accelerate deepspeed jax matplotlib nltk peft pil psutil pytest _pytest pluggy",
            "scipy sglang sklearn skyrl tiktoken trl verl vllm wandb",
        )
    ).split()
)
"""Import names of well-known packages."""


def _check_top_level(members: list[Member], dist_info: str) -> None:
    """Refuse top-level names in site-packages that would run by themselves, or replace modules of other packages.

    Names are compared in lower case, because some file systems ignore the case.
    """
    data = dist_info.removesuffix(".dist-info") + ".data/"
    for member in members:
        path = member.name.rstrip("/")
        if path.startswith(data):
            path = path.removeprefix(data).partition("/")[2]
        top, slash, _ = path.lower().partition("/")
        if not top or path.partition("/")[0] == dist_info:
            continue
        is_file = not slash and not member.is_folder
        is_module = not is_file or top.endswith((".py", ".pyc", ".pyd", ".so", ".pyi"))
        stem = top.partition(".")[0] if is_file else top
        if (is_file and top.endswith((".pth", ".start"))) or (is_module and stem in _RUN_AT_START):
            raise WheelRejected(
                f"{member.name!r} would run at every start of the interpreter. Move its code into your own module."
            )
        if top.endswith((".dist-info", ".egg-info", ".egg-link")):
            raise WheelRejected(
                f"{member.name!r} would pose as the metadata of another package. Remove it from the wheel."
            )
        if top == "__pycache__":
            raise WheelRejected(
                f"{member.name!r} could replace the compiled code of another package. Remove it from the wheel."
            )
        if not is_module:
            continue
        owner = "Python itself" if stem in _STANDARD_LIBRARY else None
        owner = owner or ("another package" if stem in _IMPORT_NAMES else None)
        if owner is not None:
            raise WheelRejected(
                f"{member.name!r} has the name {stem!r}, which belongs to {owner}. Rename it, or move it into your "
                "own package."
            )


_STANDARD_LIBRARY = frozenset(name.lower() for name in sys.stdlib_module_names)


def _check_license_files(metadata: Metadata, dist_info: str, by_name: dict[str, Member]) -> None:
    for path in metadata.license_files or []:
        if f"{dist_info}/licenses/{path}" not in by_name and f"{dist_info}/{path}" not in by_name:
            raise WheelRejected(f"METADATA names the licence file {path!r}, which is missing.")


def _entry_points(text: str, is_library: bool) -> list[EntryPoint]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # keys keep their case
    try:
        parser.read_string(text)
    except (configparser.Error, ValueError) as error:
        raise WheelRejected(
            f"entry_points.txt cannot be read: {str(error).splitlines()[0]}"
        ) from error
    found = []
    for group in parser.sections():
        for name, value in parser.items(group):
            reference = value.partition("[")[0].strip()
            if not re.fullmatch(r"\w+(\.\w+)*", group) or not re.fullmatch(r"[\w.-]+", name):
                raise WheelRejected(f"The entry point {group!r} {name!r} has an unsafe name.")
            if not _REFERENCE.fullmatch(reference):
                raise WheelRejected(
                    f"The entry point {name!r} refers to {value!r}, which is not an object reference."
                )
            is_script = group in ("console_scripts", "gui_scripts") and not is_library
            if is_script and (_SHADOWED_SCRIPTS.fullmatch(name) or name.startswith(".")):
                raise WheelRejected(f"The script {name!r} would replace a system command.")
            found.append(EntryPoint(group=group, name=name, value=value))
    return found


def _top_level(members: list[Member], dist_info: str) -> list[str]:
    names = set()
    for member in members:
        top, _, rest = member.name.partition("/")
        if top.endswith((".dist-info", ".data")):
            continue
        stem = top if rest else top.removesuffix(".py") if top.endswith(".py") else ""
        if stem.isidentifier():
            names.add(stem)
    return sorted(names)


def parse_requirement(text: str) -> Requirement:
    """Return one requirement. Raises WheelRejected with the text if it is not valid."""
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise WheelRejected(f"{text!r} is not a requirement: {error}.") from error

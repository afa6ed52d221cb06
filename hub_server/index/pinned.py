"""Copies of wheels whose requirements are addresses, for installers that receive only one address.

The public `prime` command installs an environment from one `wheel_url`, and takes the wheel's requirements from the
user's index. If requirements are environments of this hub, `wheel_url` is the address of a copy of the wheel.
METADATA of the copy names each of these environments by address and hash; all other files are the published ones. The
hub makes the copy for each download and never stores or lists it. Its address contains the hash of its bytes.
"""

import asyncio
import base64
import csv
import hashlib
import io
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hub_server.environments.models import File
from hub_server.errors import TooLarge
from hub_server.settings import Settings
from hub_server.storage.service import stage, staging_path
from hub_server.storage.store import BlobStore

MAX_WHEEL_BYTES = 20 * 1024**2
MAX_UNPACKED_BYTES = 64 * 1024**2
"""Larger wheels are not copied, because a copy would take seconds of processor time."""
MAX_KNOWN = 10_000
_EARLY = (1980, 1, 1, 0, 0, 0)

Lines = Sequence[str]
"""Requirements with addresses, one per name."""


class PinnedWheels:
    """Makes the copies, a few at a time, and keeps their hashes."""

    def __init__(self, settings: Settings, store: BlobStore) -> None:
        self._settings = settings
        self._store = store
        self._known: OrderedDict[tuple[str, Lines], str | None] = OrderedDict()
        self._at_once = asyncio.Semaphore(2)

    async def sha256(self, wheel: File, lines: Lines) -> str | None:
        """Return the hash of the copy with these requirements, or None if the wheel is too large for a copy."""
        if wheel.size_bytes > MAX_WHEEL_BYTES:
            return None
        key = (wheel.sha256, tuple(lines))
        if key not in self._known:
            try:
                digest = hashlib.sha256(await self.content(wheel, lines)).hexdigest()
            except TooLarge:
                digest = None
            self._known[key] = digest
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return self._known[key]

    async def content(self, wheel: File, lines: Lines) -> bytes:
        """Return the copy itself."""
        async with self._at_once:
            path = self._store.local_path(wheel.sha256)
            if path is not None:
                return await asyncio.to_thread(with_requirements, path, lines)
            with staging_path(self._settings) as copy:
                await stage(self._store.read(wheel.sha256), copy, MAX_WHEEL_BYTES)
                return await asyncio.to_thread(with_requirements, copy, lines)


def with_requirements(wheel: Path, lines: Lines) -> bytes:
    """Return the wheel with these requirements added, or replacing those of the same names. Blocking.

    The same wheel and lines give the same bytes. Raises TooLarge.
    """
    written = io.BytesIO()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(written, "w") as target:
        infos = source.infolist()
        if sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
            raise TooLarge(f"A wheel of more than {MAX_UNPACKED_BYTES} bytes is not copied.")
        record = next(i.filename for i in infos if i.filename.endswith(".dist-info/RECORD"))
        metadata = record.removesuffix("RECORD") + "METADATA"
        changed = _changed_metadata(source.read(metadata).decode("utf-8"), lines).encode()
        for info in infos:
            content = source.read(info)
            if info.filename == metadata:
                content = changed
            elif info.filename == record:
                content = _changed_record(content.decode("utf-8"), metadata, changed).encode()
            copied = zipfile.ZipInfo(info.filename, _EARLY)
            copied.external_attr = info.external_attr
            copied.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(copied, content, compresslevel=1)
    return written.getvalue()


def _changed_metadata(text: str, lines: Lines) -> str:
    addressed = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
    message = HeaderParser().parsestr(text)
    requirements: list[str] = []
    named: set[str] = set()
    for line in message.get_all("Requires-Dist") or []:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name in addressed:
            requirement = _with_address(requirement, addressed[name])
            named.add(name)
        requirements.append(str(requirement))
    requirements += [str(one) for name, one in addressed.items() if name not in named]
    head, blank, body = text.replace("\r\n", "\n").partition("\n\n")
    kept, is_dropping = [], False
    for line in head.split("\n"):
        is_dropping = line.lower().startswith("requires-dist:") or (
            is_dropping and line[:1] in (" ", "\t")
        )
        if not is_dropping:
            kept.append(line)
    kept += [f"Requires-Dist: {one}" for one in requirements]
    return "\n".join(kept) + (blank + body if blank else "\n")


def _with_address(requirement: Requirement, addressed: Requirement) -> Requirement:
    """Return the address with the extras and the condition of the published requirement."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f" ; {requirement.marker}" if requirement.marker else ""
    return Requirement(f"{requirement.name}{extras} @ {addressed.url}{marker}")


def _changed_record(text: str, metadata: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for row in csv.reader(io.StringIO(text)):
        is_metadata = bool(row) and row[0] == metadata
        writer.writerow([metadata, f"sha256={digest}", len(content)] if is_metadata else row)
    return written.getvalue()

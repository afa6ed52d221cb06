"""Wheels and source archives as bytes, good ones and bad ones. The tests of the hub load this file too."""

import base64
import csv
import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Wheel:
    """A wheel under construction; `bytes()` writes it."""

    name: str = "demo-env"
    version: str = "0.1.0"
    metadata: str = "Summary: A demo\nRequires-Python: >=3.10\nRequires-Dist: verifiers>=0.1.8\n"
    readme: str = "# Demo\n"
    files: dict[str, bytes] = field(default_factory=lambda: {"demo_env.py": b"X = 1\n"})
    metadata_name: str | None = None
    metadata_version: str | None = None
    entry_points: str = ""
    tag: str = "py3-none-any"
    wheel_tag: str | None = None
    record: Callable[[str], str] = lambda text: text
    write: Callable[[zipfile.ZipFile, list[tuple[str, bytes]]], None] | None = None

    @property
    def stem(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def filename(self) -> str:
        return f"{self.stem}-{self.tag}.whl"

    def members(self) -> list[tuple[str, bytes]]:
        info = f"{self.stem}.dist-info"
        name, version = self.metadata_name or self.name, self.metadata_version or self.version
        described = "Description-Content-Type: text/markdown\n" if self.readme else ""
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{self.metadata}"
        metadata += f"{described}\n{self.readme}"
        tag = self.wheel_tag or self.tag
        wheel = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
        members = [
            *self.files.items(),
            (f"{info}/METADATA", metadata.encode()),
            (f"{info}/WHEEL", wheel.encode()),
        ]
        if self.entry_points:
            members.append((f"{info}/entry_points.txt", self.entry_points.encode()))
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        for path, content in members:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            writer.writerow([path, f"sha256={digest.decode()}", len(content)])
        writer.writerow([f"{info}/RECORD", "", ""])
        return [*members, (f"{info}/RECORD", self.record(lines.getvalue()).encode())]

    def bytes(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            if self.write is not None:
                self.write(archive, self.members())
            else:
                for path, content in self.members():
                    info = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
                    archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


def source_archive(files: dict[str, bytes] | None = None) -> bytes:
    files = files or {"README.md": b"# Demo\n", "demo_env.py": b"X = 1\n"}
    files = {"pyproject.toml": b'[project]\nname = "demo-env"\n', **files}
    buffer = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, content in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

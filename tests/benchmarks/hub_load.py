"""Load for `bench_hub.py`: servers whose processor time and memory can be read, wheels, and clients that cost little.

Clients are plain sockets with requests made beforehand, because they share the cores with what they measure.
"""

import base64
import contextlib
import csv
import hashlib
import http.client
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BLOCK = os.urandom(1 << 20)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server process (with its children) whose processor time and memory can be read."""

    def __init__(self, command: list[str], port: int, log: Path, **environment: str) -> None:
        self.port = port
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=out, stderr=out
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 0.5).close()
                return
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    self.stop()
                    raise RuntimeError(log.read_text()[-2000:]) from None
                time.sleep(0.05)

    def pids(self) -> list[int]:
        """The process and everything below it."""
        pids, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            pids.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += [int(child) for child in task.read_text().split()]
        return pids

    def cpu_s(self) -> float:
        """User and system time so far."""
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_S

    def rss_mib(self) -> float:
        """Resident memory now."""
        return self._memory_mib("VmRSS:")

    def forget_peak(self) -> None:
        """Begin to look for the highest resident memory anew."""
        for pid in self.pids():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak_mib(self) -> float:
        """The highest resident memory since `forget_peak`."""
        return self._memory_mib("VmHWM:")

    def _memory_mib(self, field: str) -> float:
        kib = 0
        for pid in self.pids():
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                kib += int(line.split()[1]) if line.startswith(field) else 0
        return kib / 1024

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Hub(NamedTuple):
    """A served hub and the token of its administrator `alice`."""

    server: Server
    token: str
    folder: Path


def start_hub(folder: Path, **settings: str) -> Hub:
    """A hub on the folder; a new one gets its administrator."""
    port, token_file = free_port(), folder / "token"
    environment = {
        "VF_HUB_DATA_DIR": str(folder),
        "VF_HUB_PORT": str(port),
        "VF_HUB_RATE_LIMIT_PER_MINUTE": "100000000",
        "VF_HUB_MAX_ENVIRONMENTS": "1000000",
        "VF_HUB_OWNER_QUOTA_BYTES": str(1 << 50),
        "VF_HUB_MAX_WHEEL_BYTES": str(2 << 30),
        **{f"VF_HUB_{name.upper()}": value for name, value in settings.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hub_server.cli", "serve"]
    server = Server(command, port, folder / "log", **environment)
    setup = [w for w in (folder / "log").read_text().split('"') if w.startswith("setup_")]
    if setup:
        body = f'{{"token": "{setup[0]}", "username": "alice", "password": "correct horse"}}'
        answer = ask(port, "POST", "/api/v1/setup", body.encode(), content_type="application/json")
        token_file.write_text(answer.split(b'"token":"')[1].split(b'"')[0].decode())
    return Hub(server, token_file.read_text(), folder)


@contextlib.contextmanager
def serving(folder: Path, **settings: str) -> Iterator[Hub]:
    """A hub that ends with the block."""
    hub = start_hub(folder, **settings)
    try:
        yield hub
    finally:
        hub.server.stop()


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """One request; the body of the answer, which must be a good one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, named)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    if answer.status >= 400:
        raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
    return content


def get(path: str, **headers: str) -> bytes:
    """The bytes of a GET request."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode()


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[bytes, bytes]
    body_bytes: int
    seconds: float


def exchange(connection: socket.socket, request: bytes) -> Answer:
    """Send a request on an open connection and read its answer."""
    began = time.perf_counter()
    connection.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(1 << 18)
        if not piece:
            raise ConnectionError("the server closed the connection")
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = {
        line.partition(b":")[0].lower(): line.partition(b":")[2].strip() for line in lines[1:]
    }
    length, status, count = headers.get(b"content-length"), int(lines[0].split(b" ")[1]), len(body)
    if length is None and status != 304:  # chunked, or to the end of the connection
        while not received.endswith(b"0\r\n\r\n"):
            piece = connection.recv(1 << 18)
            if not piece:
                break
            received, count = received[-8:] + piece, count + len(piece)
    while length is not None and count < int(length):
        count += len(connection.recv(1 << 18))
    return Answer(status, headers, count, time.perf_counter() - began)


def cpu_ms_of(server: Server, request: bytes, count: int, clients: int = 4) -> float:
    """Processor time of the server for one such request, over keep-alive connections."""

    def work(share: int) -> None:
        connection = socket.create_connection(("127.0.0.1", server.port))
        while share:
            try:
                exchange(connection, request)
                share -= 1
            except ConnectionError:  # servers close connections now and then
                connection.close()
                connection = socket.create_connection(("127.0.0.1", server.port))
        connection.close()

    work(20)
    before = server.cpu_s()
    threads = [threading.Thread(target=work, args=(count // clients,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (server.cpu_s() - before) * 1000 / count


def write_wheel(target: Path, name: str, version: str, size_bytes: int) -> Path:
    """A valid wheel of about the given size that does not compress, without having it in memory."""
    module, stem = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}"
    path, info = target / f"{stem}-py3-none-any.whl", f"{stem}.dist-info"
    small = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        f"Summary: Environment {name}\nRequires-Python: >=3.10\n\n# {name}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{module}/__init__.py": f"VERSION = {version!r}\n".encode(),
    }
    lines = io.StringIO()
    record = csv.writer(lines)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        # Straight into the file: a stream would need data descriptors, which the hub refuses.
        entry = zipfile.ZipInfo(f"{module}/data.bin")
        entry.file_size = size_bytes
        digest, left = hashlib.sha256(), size_bytes
        with archive.open(entry, "w") as member:
            while left:
                piece = os.urandom(left) if left < len(BLOCK) else BLOCK
                digest.update(piece)
                member.write(piece)
                left -= len(piece)
        record.writerow([entry.filename, _record_hash(digest.digest()), size_bytes])
        for inside, content in small.items():
            record.writerow([inside, _record_hash(hashlib.sha256(content).digest()), len(content)])
            archive.writestr(inside, content)
        record.writerow([f"{info}/RECORD", "", ""])
        archive.writestr(f"{info}/RECORD", lines.getvalue())
    return path


def _record_hash(digest: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


BOUNDARY = "boundary-of-the-form"


def form_ends(filename: str) -> tuple[bytes, bytes]:
    """What comes before and after the file in the upload form."""
    name, version = filename.split("-")[:2]
    fields = {":action": "file_upload", "name": name, "version": version}
    head = "".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    head += (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="content"; filename="{filename}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return head.encode(), f"\r\n--{BOUNDARY}--\r\n".encode()


def form_head(token: str, length: int) -> bytes:
    """The head of the request with the upload form."""
    return (
        f"POST /legacy/ HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def form_request(token: str, wheel: Path) -> bytes:
    """The whole request that publishes a small wheel."""
    head, tail = form_ends(wheel.name)
    body = head + wheel.read_bytes() + tail
    return form_head(token, len(body)) + body


def upload_form(hub: Hub, wheel: Path) -> Answer:
    """Publish a wheel of any size by the form, sent by the kernel from its file."""
    head, tail = form_ends(wheel.name)
    with (
        socket.create_connection(("127.0.0.1", hub.server.port)) as connection,
        wheel.open("rb") as f,
    ):
        size_bytes = wheel.stat().st_size
        connection.sendall(form_head(hub.token, len(head) + size_bytes + len(tail)) + head)
        connection.sendfile(f)
        return exchange(connection, tail)


def put_file(url: str, wheel: Path) -> Answer:
    """Put a file at an address of the hub or of S3."""
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    with socket.create_connection((name, int(port or 80))) as connection, wheel.open("rb") as file:
        head = f"PUT /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {wheel.stat().st_size}\r\n\r\n"
        connection.sendall(head.encode())
        connection.sendfile(file)
        return exchange(connection, b"")


class Published(NamedTuple):
    """Figures of many publishes."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    errors: int


def publish_many(hub: Hub, clients: int, count: int, tag: str) -> Published:
    """Publish `count` wheels of 98 KB from several clients at once; each client has an environment."""
    times, errors = [], []
    with tempfile.TemporaryDirectory() as folder:
        work = [
            [
                form_request(
                    hub.token, write_wheel(Path(folder), f"{tag}-{c}-env", f"0.{n}", 98_000)
                )
                for n in range(count // clients)
            ]
            for c in range(clients)
        ]

    def client(requests: list[bytes]) -> None:
        connection = socket.create_connection(("127.0.0.1", hub.server.port))
        for request in requests:
            try:
                answer = exchange(connection, request)
            except ConnectionError as error:
                errors.append(str(error))
                connection.close()
                connection = socket.create_connection(("127.0.0.1", hub.server.port))
                continue
            times.append(answer.seconds * 1000)
            if answer.status != 200:
                errors.append(str(answer.status))
        connection.close()

    threads = [threading.Thread(target=client, args=(requests,)) for requests in work]
    before, began = hub.server.cpu_s(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    cpu_ms = (hub.server.cpu_s() - before) * 1000 / len(times)
    times.sort()
    middle, high = times[len(times) // 2], times[min(len(times) - 1, int(len(times) * 0.99))]
    return Published(len(times) / took_s, middle, high, cpu_ms, len(errors))


def syncs_of_a_publish(hub: Hub) -> tuple[float, float] | None:
    """fsync and fdatasync calls for each of 80 publishes by 8 clients; None without strace."""
    if shutil.which("strace") is None:
        return None
    log, pid = str(hub.folder / "strace"), hub.server.process.pid
    tracer = subprocess.Popen(
        ["strace", "-qq", "-f", "-e", "trace=fsync,fdatasync", "-o", log, "-p", str(pid)],
        stderr=subprocess.PIPE,
    )
    try:
        # strace says nothing when it is ready; the kernel does.
        status = Path(f"/proc/{pid}/status")
        while tracer.poll() is None and "TracerPid:\t0" in status.read_text():
            time.sleep(0.05)
        if tracer.poll() is not None:
            return None
        publish_many(hub, 8, 80, "traced")
    finally:
        tracer.terminate()
        tracer.communicate()
    calls = Path(log).read_text()
    return calls.count(" fsync(") / 80, calls.count(" fdatasync(") / 80

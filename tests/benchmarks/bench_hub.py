"""What the hub costs: `python tests/benchmarks/bench_hub.py [--quick] [--devpi]`.

The number to compare is CPU per request: user and system time of the server's processes divided by
requests. It depends little on what else the machine does; requests a second do, so they are shown only
as a lower bound. Prints one JSON object.
"""

import argparse
import base64
import concurrent.futures
import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

import httpx

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
JSON_ACCEPT = "application/vnd.pypi.simple.v1+json"


def wheel_bytes(name: str, version: str, size_bytes: int) -> tuple[str, bytes]:
    """A valid wheel of about the given size that does not compress."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    members = [
        (f"{name.replace('-', '_')}.py", base64.b64encode(os.urandom(size_bytes * 3 // 4))),
        (
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            f"Summary: Environment {name}\nRequires-Python: >=3.10\n\n# {name}\n".encode(),
        ),
        (
            f"{info}/WHEEL",
            b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
    ]
    lines = io.StringIO()
    writer = csv.writer(lines)
    for path, content in members:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([path, f"sha256={digest}", len(content)])
    writer.writerow([f"{info}/RECORD", "", ""])
    members.append((f"{info}/RECORD", lines.getvalue().encode()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in members:
            archive.writestr(path, content)
    return f"{stem}-py3-none-any.whl", buffer.getvalue()


class Server:
    """A server process (with its children) whose CPU time and memory can be read."""

    def __init__(self, command: list[str], environment: dict[str, str], port: int, log: Path):
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
                    raise RuntimeError(log.read_text()[-2000:]) from None
                time.sleep(0.05)

    def _pids(self) -> list[int]:
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
        for pid in self._pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS_PER_S

    def rss_mib(self) -> float:
        """Resident memory now."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids())
        return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)


def hammer(server: Server, request: bytes, count: int, clients: int = 4) -> dict[str, float]:
    """Send the request `count` times over keep-alive connections."""
    expected = _once(server.port, request)

    def work(share: int) -> None:
        connection = socket.create_connection(("127.0.0.1", server.port))
        done = 0
        while done < share:
            left = len(expected)
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
                while left > 0 and (piece := connection.recv(1 << 18)):
                    left -= len(piece)
            if left < len(expected):
                done += 1
            if left > 0:  # the server closes connections now and then
                connection.close()
                connection = socket.create_connection(("127.0.0.1", server.port))
        connection.close()

    before, began = server.cpu_s(), time.perf_counter()
    threads = [threading.Thread(target=work, args=(count // clients,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    return {
        "cpu_ms": round((server.cpu_s() - before) * 1000 / count, 4),
        "requests_per_s": round(count / took_s),
        "status": int(expected.split(b" ", 2)[1]),
        "answer_bytes": len(expected),
    }


def _once(port: int, request: bytes) -> bytes:
    """One answer, as every further one will be long; the first requests warm the server."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(3):
            connection.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(1 << 18)
            head, _, body = answer.partition(b"\r\n\r\n")
            lengths = [
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            ]
            while lengths and len(body) < lengths[0]:
                body += connection.recv(1 << 18)
            if not lengths:  # chunked: read as long as something comes
                connection.settimeout(1.0)
                with contextlib.suppress(TimeoutError):
                    while piece := connection.recv(1 << 18):
                        body += piece
                break
    return head + b"\r\n\r\n" + body


def get(path: str, **headers: str) -> bytes:
    """A GET request."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_hub(folder: Path) -> tuple[Server, str]:
    """A new hub with an administrator; its token."""
    port = free_port()
    environment = {
        "VF_HUB_DATA_DIR": str(folder),
        "VF_HUB_PORT": str(port),
        "VF_HUB_RATE_LIMIT_PER_MINUTE": "100000000",
        "VF_HUB_MAX_ENVIRONMENTS": "1000000",
        "VF_HUB_OWNER_QUOTA_BYTES": str(1 << 50),
        "VF_HUB_MAX_WHEEL_BYTES": str(2 << 30),
    }
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    server = Server([sys.executable, "-m", "hub_server.cli", "serve"], environment, port, log)
    setup = next((w for w in log.read_text().split('"') if w.startswith("setup_")), None)
    if setup is None:
        return server, ""
    body = {"token": setup, "username": "alice", "password": "correct horse"}
    answer = httpx.post(f"http://127.0.0.1:{port}/api/v1/setup", json=body)
    return server, answer.json()["data"]["token"]


def upload(
    client: httpx.Client, port: int, token: str, name: str, version: str, size: int
) -> float:
    """Publish one wheel by the upload form; seconds."""
    filename, content = wheel_bytes(name, version, size)
    fields = {":action": "file_upload", "name": name, "version": version}
    began = time.perf_counter()
    answer = client.post(
        f"http://127.0.0.1:{port}/legacy/",
        data=fields,
        files={"content": (filename, content)},
        headers={"Authorization": f"Bearer {token}"},
        timeout=120,
    )
    took_s = time.perf_counter() - began
    if answer.status_code != 200:
        raise RuntimeError(answer.text)
    return took_s


def measure_uploads(
    server: Server, token: str, clients: int, count: int, tag: str
) -> dict[str, float]:
    """Publish `count` wheels of 98 KB from several clients at once."""
    before, began = server.cpu_s(), time.perf_counter()

    def work(number: int) -> list[float]:
        with httpx.Client(trust_env=False) as client:
            name = f"{tag}-{number}-env"
            return [
                upload(client, server.port, token, name, f"0.{n}.0", 98_000)
                for n in range(count // clients)
            ]

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        times = [t for share in pool.map(work, range(clients)) for t in share]
    took_s = time.perf_counter() - began
    return {
        "per_s": round(len(times) / took_s, 1),
        "p50_ms": round(statistics.median(times) * 1000, 1),
        "p99_ms": round(sorted(times)[int(len(times) * 0.99) - 1] * 1000, 1),
        "cpu_ms": round((server.cpu_s() - before) * 1000 / len(times), 2),
    }


WORDS = (
    *("chess", "maths", "code", "poems", "logic", "tools", "search", "browser", "agent"),
    *("physics", "chemistry", "law", "trading", "robot", "puzzle", "crossword", "proof"),
    *("theorem", "sql", "shell"),
)


def fill(database: Path, count: int) -> None:
    """Add environments straight to the database: publishing 100,000 would take an hour."""
    with sqlite3.connect(database) as connection:
        (owner,) = connection.execute("SELECT id FROM owners LIMIT 1").fetchone()
        now = "2026-01-01 00:00:00.000000"
        rows, texts, places = [], [], []
        (start,) = connection.execute(
            "SELECT coalesce(max(rowid), 0) FROM environment_search"
        ).fetchone()
        for n in range(count):
            name = f"{WORDS[n % 20]}-{WORDS[(n // 20) % 20]}-{n}"
            key = f"c{n:024d}"
            text = f"Environment about {WORDS[(n // 7) % 20]} and {WORDS[(n // 3) % 20]}"
            rows.append(
                (
                    key,
                    owner,
                    name,
                    name,
                    f"alice/{name}",
                    "PUBLIC",
                    "active",
                    text,
                    "[]",
                    "1.0",
                    0,
                    0,
                    0,
                    now,
                    now,
                )
            )
            texts.append((start + n + 1, key, f"alice/{name} {name}", "", text, text * 5))
            places.append((key, start + n + 1))
        connection.executemany(
            "INSERT INTO environments (id, owner_id, name, normalized_name, full_name, visibility,"
            " status, description, tags, latest_version, stars, downloads, stored_bytes, created_at,"
            " updated_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            rows,
        )
        connection.executemany(
            "INSERT INTO environment_search (rowid, environment_id, name, tags, description, readme)"
            " VALUES (?,?,?,?,?,?)",
            texts,
        )
        connection.executemany("INSERT INTO environment_rows VALUES (?,?)", places)
    connection.close()


def measure_search(server: Server, queries: list[str]) -> dict[str, float]:
    """Search with each query; milliseconds as the client sees them."""
    times = []
    with httpx.Client(trust_env=False) as client:
        for _ in range(3):
            for query in queries:
                began = time.perf_counter()
                answer = client.get(
                    f"http://127.0.0.1:{server.port}/api/v1/environmentshub/?{query}&limit=20"
                )
                times.append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
    times = sorted(times[len(queries) :])
    return {
        "p50_ms": round(times[len(times) // 2], 1),
        "p95_ms": round(times[int(len(times) * 0.95)], 1),
        "max_ms": round(times[-1], 1),
    }


def bench_hub(folder: Path, quick: bool) -> dict[str, object]:
    """All figures of the hub."""
    figures: dict[str, object] = {}
    server, token = start_hub(folder / "hub")
    try:
        time.sleep(1)
        figures["rss_rest_mib"] = server.rss_mib()
        with httpx.Client(trust_env=False) as client:
            for n in range(50):
                upload(client, server.port, token, "bench-env", f"0.{n}.0", 98_000)
        page = "/alice/simple/bench-env/"
        count = 4_000 if quick else 20_000
        figures["page_json"] = hammer(server, get(page, Accept=JSON_ACCEPT), count)
        figures["page_html"] = hammer(server, get(page, Accept="text/html"), count)
        figures["page_json_gzip"] = hammer(
            server, get(page, Accept=JSON_ACCEPT, Accept_Encoding="gzip, deflate"), count
        )
        answer = httpx.get(
            f"http://127.0.0.1:{server.port}{page}",
            headers={"Accept": JSON_ACCEPT, "Accept-Encoding": "identity"},
        )
        figures["page_304"] = hammer(
            server, get(page, Accept=JSON_ACCEPT, If_None_Match=answer.headers["etag"]), count
        )
        file = answer.json()["files"][0]["url"].removeprefix("../../..")
        figures["wheel_98kb"] = hammer(server, get(file), count // 4)
        figures["rss_after_reads_mib"] = server.rss_mib()
        for clients in (1, 8, 32):
            figures[f"publish_{clients}_clients"] = measure_uploads(
                server, token, clients, 64 if quick else 320, f"up{clients}"
            )
        figures["rss_after_uploads_mib"] = server.rss_mib()
        figures["large_upload"] = measure_large_upload(server, token, (64 if quick else 1024) << 20)
    finally:
        server.stop()
    fill(folder / "hub" / "hub.db", 10_000 if quick else 100_000)
    server, _ = start_hub(folder / "hub")
    try:
        figures["environments"] = 10_000 if quick else 100_000
        figures["page_json_many"] = hammer(server, get(page, Accept=JSON_ACCEPT), count)
        figures["search"] = measure_search(
            server,
            [
                f"search={q}"
                for q in (
                    "chess",
                    "chess+maths",
                    "poems+logic+7",
                    "zugzwang",
                    "environment",
                    "theor",
                    "alice/sql-shell",
                    "browser+agent",
                )
            ],
        )
        figures["list"] = measure_search(
            server,
            ["sort_by=name", "sort_by=created_at", "sort_by=stars", "offset=5000", "owner=alice"],
        )
    finally:
        server.stop()
    return figures


def measure_large_upload(server: Server, token: str, size_bytes: int) -> dict[str, float]:
    """Memory while one large wheel is published."""
    filename, content = wheel_bytes("large-env", "1.0", size_bytes)
    before, peak = server.rss_mib(), 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, server.rss_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    boundary = b"boundary-of-the-form"
    head = (
        b"--"
        + boundary
        + b'\r\nContent-Disposition: form-data; name="content"; filename="'
        + filename.encode()
        + b'"\r\n\r\n'
    )
    tail = b"\r\n--" + boundary + b"--\r\n"

    def pieces():
        yield head
        view = memoryview(content)
        for start in range(0, len(content), 1 << 20):
            yield bytes(view[start : start + (1 << 20)])
        yield tail

    began = time.perf_counter()
    answer = httpx.post(
        f"http://127.0.0.1:{server.port}/legacy/",
        content=pieces(),
        timeout=600,
        trust_env=False,
        headers={
            "Authorization": f"Bearer {token}",
            "Content-Length": str(len(head) + len(content) + len(tail)),
            "Content-Type": f"multipart/form-data; boundary={boundary.decode()}",
        },
    )
    took_s = time.perf_counter() - began
    done.set()
    watcher.join()
    if answer.status_code != 200:
        raise RuntimeError(answer.text)
    return {
        "mib": size_bytes >> 20,
        "seconds": round(took_s, 1),
        "rss_growth_mib": round(peak - before, 1),
    }


def bench_devpi(folder: Path, quick: bool) -> dict[str, object]:
    """The same page from devpi, installed from the machine's package index."""
    venv = folder / "devpi-venv"
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(venv)], check=True)
    subprocess.run(
        [
            uv,
            "pip",
            "install",
            "-q",
            "-p",
            str(venv / "bin/python"),
            "devpi-server",
            "devpi-client",
        ],
        check=True,
    )
    tools, data, port = venv / "bin", folder / "devpi", free_port()
    subprocess.run(
        [tools / "devpi-init", "--serverdir", str(data), "--no-root-pypi"],
        check=True,
        capture_output=True,
    )
    server = Server(
        [str(tools / "devpi-server"), "--serverdir", str(data), "--port", str(port)],
        {},
        port,
        folder / "devpi.log",
    )
    try:
        client = str(tools / "devpi")
        home = {**os.environ, "HOME": str(folder), "NO_PROXY": "127.0.0.1"}
        wheels = folder / "wheels"
        wheels.mkdir()
        for n in range(50):
            filename, content = wheel_bytes("bench-env", f"0.{n}.0", 98_000)
            (wheels / filename).write_bytes(content)
        for arguments in (
            ["use", f"http://127.0.0.1:{port}"],
            ["user", "-c", "u", "password=p"],
            ["login", "u", "--password=p"],
            ["index", "-c", "i", "bases="],
            ["use", "u/i"],
            ["upload", "--from-dir", str(wheels)],
        ):
            subprocess.run([client, *arguments], check=True, env=home, capture_output=True)
        count = 500 if quick else 2_000
        page = "/u/i/+simple/bench-env/"
        return {
            "page_json": hammer(server, get(page, Accept=JSON_ACCEPT), count),
            "page_html": hammer(server, get(page, Accept="text/html"), count),
            "rss_mib": server.rss_mib(),
        }
    finally:
        server.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests, 10,000 rows")
    parser.add_argument("--devpi", action="store_true", help="measure devpi too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="vf-hub-bench-"))
    try:
        figures = {"hub": bench_hub(folder, arguments.quick)}
        if arguments.devpi:
            figures["devpi"] = bench_devpi(folder, arguments.quick)
        sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

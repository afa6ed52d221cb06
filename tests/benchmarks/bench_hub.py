"""The figures of the hub: `python tests/benchmarks/bench_hub.py [PART …] [--quick] [--without-devpi]`.

Parts: reads, publish, search, memory, install. The number to compare is processor time: user and system time of
the server's processes divided by requests. It depends little on what else the machine does; requests a second
do, so the load of the machine is printed beside them. Exit code 1 when a figure misses its bound.
"""

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hub_load
from hub_load import Hub, Server, ask, free_port, get, serving, write_wheel

JSON_ACCEPT = "application/vnd.pypi.simple.v1+json"
PAGE = "/alice/simple/bench-env/"
DEVPI_PAGE = "/u/i/+simple/bench-env/"


class Figure(NamedTuple):
    """One row of the table; a value of None is a row that could not be measured, and why."""

    what: str
    value: float | None
    unit: str
    bound: float | None = None
    is_least: bool = False
    """Whether the value must be at least the bound, and not at most."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """`ok`, `MISSED`, `skipped`, or nothing without a bound."""
        if self.value is None:
            return "skipped"
        if self.bound is None:
            return ""
        met = self.value >= self.bound if self.is_least else self.value <= self.bound
        return "ok" if met else "MISSED"


def cpu(what: str, server: Server, request: bytes, count: int, bound: float | None) -> Figure:
    """Processor time of one request."""
    return Figure(what, hub_load.cpu_ms_of(server, request, count), "ms CPU", bound)


# --- reads ------------------------------------------------------------------------------------


def publish_versions(hub: Hub, folder: Path, count: int) -> None:
    """Versions of `bench-env`, 98 KB each."""
    for number in range(count):
        wheel = write_wheel(folder, "bench-env", f"0.{number}.0", 98_000)
        answer = hub_load.upload_form(hub, wheel)
        if answer.status != 200:
            raise RuntimeError(f"publishing {wheel.name} was answered with {answer.status}")


def reads(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Pages and files of an environment with 50 versions, beside devpi in the same run."""
    count = 4_000 if options.quick else 20_000
    with serving(folder / "hub") as hub:
        publish_versions(hub, folder, 50)
        server = hub.server
        page = cpu("index page, JSON", server, get(PAGE, Accept=JSON_ACCEPT), count, 0.20)
        yield page
        yield cpu("index page, HTML", server, get(PAGE, Accept="text/html"), count, 0.20)
        listed = json.loads(ask(server.port, "GET", PAGE, Accept=JSON_ACCEPT))
        with hub_load.socket.create_connection(("127.0.0.1", server.port)) as connection:
            etag = hub_load.exchange(connection, get(PAGE, Accept=JSON_ACCEPT)).headers[b"etag"]
        known = get(PAGE, Accept=JSON_ACCEPT, If_None_Match=etag.decode())
        yield cpu("not modified (304)", server, known, count, 0.15)
        file = listed["files"][0]["url"].removeprefix("../../..")
        yield cpu("wheel of 98 KB, in process", server, get(file), count // 4, 0.45)
    fill(folder / "hub" / "hub.db", 10_000)
    with serving(folder / "hub") as hub:
        beside = cpu(
            "index page beside 10,000 projects",
            hub.server,
            get(PAGE, Accept=JSON_ACCEPT),
            count,
            0.20,
        )
        yield beside
    ratio = (beside.value or 0.0) / (page.value or 1.0)
    yield Figure("the same, against 1 project", ratio, "x", 1.25)
    yield against_devpi(folder, options, page.value or 1.0)


def against_devpi(folder: Path, options: argparse.Namespace, ours_ms: float) -> Figure:
    """How many times the processor time devpi needs for the same page."""
    what = "devpi for the same page"
    if options.without_devpi:
        return Figure(what, None, "x", note="--without-devpi")
    try:
        with devpi(folder) as server:
            theirs = hub_load.cpu_ms_of(server, get(DEVPI_PAGE, Accept=JSON_ACCEPT), 600)
    except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
        return Figure(what, None, "x", note=f"devpi-server does not run here: {error}"[:100])
    return Figure(
        what, theirs / ours_ms, "x ours", 10.0, is_least=True, note=f"{theirs:.2f} ms CPU"
    )


@contextlib.contextmanager
def devpi(folder: Path) -> Iterator[Server]:
    """devpi, from the package index, with the same 50 wheels."""
    tools, data, port = Path(".bench/devpi").absolute() / "bin", folder / "devpi", free_port()
    if not (tools / "devpi").exists():
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(tools.parent)], check=True)
        install = [uv, "pip", "install", "-q", "-p", str(tools / "python")]
        subprocess.run([*install, "devpi-server", "devpi-client"], check=True)
    prepare = [tools / "devpi-init", "--serverdir", str(data), "--no-root-pypi"]
    subprocess.run(prepare, check=True, capture_output=True)
    command = [str(tools / "devpi-server"), "--serverdir", str(data), "--port", str(port)]
    server = Server(command, port, folder / "devpi.log")
    try:
        home = {**os.environ, "HOME": str(folder), "NO_PROXY": "127.0.0.1"}
        for arguments in (
            ["use", f"http://127.0.0.1:{port}"],
            ["user", "-c", "u", "password=p"],
            ["login", "u", "--password=p"],
            ["index", "-c", "i", "bases="],
            ["use", "u/i"],
            ["upload", "--from-dir", str(folder)],
        ):
            command = [str(tools / "devpi"), *arguments]
            subprocess.run(command, check=True, env=home, capture_output=True, timeout=300)
        yield server
    finally:
        server.stop()


# --- publish ----------------------------------------------------------------------------------


def publish(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Wheels of 98 KB by the upload form, synced to the disk before the answer."""
    count = 96 if options.quick else 384
    with serving(folder / "hub") as hub:
        hub_load.publish_many(hub, 1, 20, "warm")
        one = hub_load.publish_many(hub, 1, count // 2, "one")
        note = f"p50 {one.p50_ms:.1f} ms, {one.cpu_ms:.1f} ms CPU each"
        yield Figure("publish, 1 client", one.per_s, "/s", 50, is_least=True, note=note)
        eight = hub_load.publish_many(hub, 8, count, "eight")
        note = f"p50 {eight.p50_ms:.1f} ms"
        yield Figure("publish, 8 clients", eight.per_s, "/s", 150, is_least=True, note=note)
        yield Figure("publish, 8 clients, p99", eight.p99_ms, "ms", 600)
        note = "1,000 / 150: what 150/s leave one core"
        yield Figure("publish, 8 clients, processor", eight.cpu_ms, "ms CPU", 6.6, note=note)
        many = hub_load.publish_many(hub, 32, count, "many")
        note = f"{many.per_s:.0f}/s, p99 {many.p99_ms:.0f} ms"
        yield Figure("publish, 32 clients, errors", many.errors, "", 0, note=note)
        syncs = hub_load.syncs_of_a_publish(hub)
        what = "syncs of a publish: blob and its folder"
        if syncs is None:
            yield Figure(what, None, "", note="strace is not there, or may not trace")
        else:
            yield Figure(what, syncs[0], "fsync", 2.0, is_least=True)
            what = "syncs of a publish: transaction, shared"
            yield Figure(what, syncs[1], "fdatasync", 1.5)
        yield installable(hub, folder)


def installable(hub: Hub, folder: Path) -> Figure:
    """From the start of an upload until an installer could have the wheel."""
    wheel = write_wheel(folder, "fresh-env", "1.0", 98_000)
    began = time.perf_counter()
    hub_load.upload_form(hub, wheel)
    page = json.loads(ask(hub.server.port, "GET", "/alice/simple/fresh-env/", Accept=JSON_ACCEPT))
    path = page["files"][0]["url"].removeprefix("../../..")
    content = ask(hub.server.port, "GET", path)
    seconds = time.perf_counter() - began
    assert content == wheel.read_bytes()
    return Figure("from push to installable", seconds, "s", 2.0)


# --- search -----------------------------------------------------------------------------------

WORDS = (
    *("chess", "maths", "code", "poems", "logic", "tools", "search", "browser", "agent"),
    *("physics", "chemistry", "law", "trading", "robot", "puzzle", "crossword", "proof"),
    *("theorem", "sql", "shell"),
)
QUERIES = (
    *("search=chess", "search=chess+maths", "search=poems+logic+7", "search=zugzwang"),
    *("search=environment", "search=theor", "search=alice/sql-shell", "search=browser+agent"),
)
LISTS = ("sort_by=name", "sort_by=created_at", "sort_by=stars", "offset=5000", "owner=alice")


def fill(database: Path, count: int) -> None:
    """Add environments straight to the database: publishing 100,000 would take an hour."""
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        (owner,) = connection.execute("SELECT id FROM owners LIMIT 1").fetchone()
        top = "SELECT coalesce(max(rowid), 0) FROM environment_search"
        (start,) = connection.execute(top).fetchone()
        now = "2026-01-01 00:00:00.000000"
        rows, texts, places = [], [], []
        for n in range(start, start + count):
            name = f"{WORDS[n % 20]}-{WORDS[(n // 20) % 20]}-{n}"
            key, text = f"c{n:024d}", f"About {WORDS[(n // 7) % 20]} and {WORDS[(n // 3) % 20]}"
            about = (name, name, f"alice/{name}", "PUBLIC", "active", f"Environment {text}", "[]")
            rows.append((key, owner, *about, "1.0", 0, 0, 0, now, now))
            texts.append((n + 1, key, f"alice/{name} {name}", "", f"Environment {text}", text * 5))
            places.append((key, n + 1))
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


def search(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Queries over 100,000 environments, as one client sees them."""
    count = 10_000 if options.quick else 100_000
    hub_load.start_hub(folder / "hub").server.stop()
    fill(folder / "hub" / "hub.db", count)
    with serving(folder / "hub") as hub:
        for what, queries, bound in (("search", QUERIES, 20.0), ("list", LISTS, None)):
            times, before = [], 0.0
            with hub_load.socket.create_connection(("127.0.0.1", hub.server.port)) as connection:
                for turn in range(6):
                    before = hub.server.cpu_s() if turn == 1 else before  # the first turn warms
                    for query in queries:
                        path = f"/api/v1/environmentshub/?{query}&limit=20"
                        answer = hub_load.exchange(connection, get(path))
                        assert answer.status == 200, query
                        if turn:
                            times.append(answer.seconds * 1000)
            cpu_ms = (hub.server.cpu_s() - before) * 1000 / len(times)
            times.sort()
            high = times[int(len(times) * 0.95)]
            note = f"p50 {times[len(times) // 2]:.1f} ms, {cpu_ms:.1f} ms CPU each"
            yield Figure(f"{what} among {count:,}, p95", high, "ms", bound, note=note)


# --- memory -----------------------------------------------------------------------------------


def memory(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """Resident memory at rest, and its growth while 1 GiB arrives."""
    size_bytes = (64 if options.quick else 1024) << 20
    wheel = write_wheel(folder, "large-env", "1.0", size_bytes)
    with serving(folder / "first"):
        pass  # the first start makes the database; rest is after a start like any other
    with serving(folder / "first") as hub:
        time.sleep(1.0)
        yield Figure("resident at rest", hub.server.rss_mib(), "MiB", 100)
        small = write_wheel(folder, "small-env", "1.0", 98_000)
        assert hub_load.upload_form(hub, small).status == 200  # what every upload loads once
        yield growth("form, folder", hub, lambda: hub_load.upload_form(hub, wheel), size_bytes)
    with serving(folder / "second") as hub:
        two_phases(hub, write_wheel(folder, "small-env", "1.0", 98_000))
        yield growth("two phases, folder", hub, lambda: two_phases(hub, wheel), size_bytes)
    with s3(folder) as settings:
        with serving(folder / "third", **settings, s3_presign="false") as hub:
            assert hub_load.upload_form(hub, small).status == 200
            yield growth("form, S3", hub, lambda: hub_load.upload_form(hub, wheel), size_bytes)
        with serving(folder / "fourth", **settings) as hub:
            two_phases(hub, small)
            yield growth("two phases, signed S3", hub, lambda: two_phases(hub, wheel), size_bytes)


def growth(way: str, hub: Hub, upload: Callable[[], object], size_bytes: int) -> Figure:
    """How much more memory the hub had at most during the upload."""
    hub.server.forget_peak()
    before, began = hub.server.rss_mib(), time.perf_counter()
    upload()
    took_s, grown = time.perf_counter() - began, hub.server.peak_mib() - before
    what = f"growth while {size_bytes >> 20:,} MiB arrive: {way}"
    return Figure(what, grown, "MiB", 20, note=f"{took_s:.1f} s")


def two_phases(hub: Hub, wheel: Path) -> None:
    """Reserve, put, finalize."""
    name = wheel.name.partition("-")[0].replace("_", "-")
    with wheel.open("rb") as file:
        sha256 = hub_load.hashlib.file_digest(file, "sha256").hexdigest()
    wanted = {"filename": wheel.name, "sha256": sha256, "size": wheel.stat().st_size}

    def post(step: str, body: dict[str, object]) -> dict[str, list[dict[str, str]]]:
        answer = ask(
            hub.server.port,
            "POST",
            f"/api/v1/hub/alice/{name}/{step}",
            json.dumps(body).encode(),
            authorization=f"Bearer {hub.token}",
            content_type="application/json",
        )
        return json.loads(answer)["data"]

    [reserved] = post("reserve", {"files": [wanted]})["uploads"]
    answer = hub_load.put_file(reserved["upload_url"], wheel)
    assert answer.status == 200, answer
    post("finalize", {"upload_ids": [reserved["upload_id"]]})


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[dict[str, str]]:
    """An S3 server on this machine; the hub's settings for it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = Server(command, port, folder / "moto.log")
    try:
        ask(port, "PUT", "/bench")
        yield {
            "storage_url": "s3://bench/hub",
            "s3_endpoint": f"http://127.0.0.1:{port}",
            "s3_access_key_id": "bench",
            "s3_secret_access_key": "bench-secret",
        }
    finally:
        server.stop()


# --- install ----------------------------------------------------------------------------------

INSTALLERS = {
    "pip": [
        "-m",
        "pip",
        "install",
        "-q",
        "--isolated",
        "--no-cache-dir",
        "--disable-pip-version-check",
    ],
    "uv": [
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--no-cache",
        "--no-config",
        "--python",
        sys.executable,
    ],
}


def install(folder: Path, options: argparse.Namespace) -> Iterator[Figure]:
    """A cold install of one environment from the hub, against the same index as files behind nginx."""
    rounds = 3 if options.quick else 9
    if shutil.which("nginx") is None:
        for name in INSTALLERS:
            yield Figure(
                f"cold {name} install, against nginx", None, "x", note="nginx is not installed"
            )
        return
    with serving(folder / "hub") as hub:
        publish_versions(hub, folder, 5)
        export = [sys.executable, "-m", "hub_server.cli", "export", str(folder / "www")]
        environment = {**os.environ, "VF_HUB_DATA_DIR": str(hub.folder)}
        subprocess.run(export, check=True, env=environment, capture_output=True)
        with nginx(folder) as static:
            for name, command in INSTALLERS.items():
                ours: list[float] = []
                theirs: list[float] = []
                for _ in range(rounds):
                    ours.append(install_s(command, hub.server.port, folder))
                    theirs.append(install_s(command, static.port, folder))
                ratio = min(ours) / min(theirs)
                note = f"{min(ours):.2f} s against {min(theirs):.2f} s, best of {rounds}"
                yield Figure(f"cold {name} install, against nginx", ratio, "x", 1.10, note=note)


def install_s(command: list[str], port: int, folder: Path) -> float:
    """Seconds of one install into an empty folder, without any cache."""
    target = folder / "site"
    shutil.rmtree(target, ignore_errors=True)
    index = f"http://127.0.0.1:{port}/alice/simple/"
    arguments = ["--no-deps", "--target", str(target), "--index-url", index, "bench-env"]
    began = time.perf_counter()
    subprocess.run([sys.executable, *command, *arguments], check=True, cwd=folder)
    took_s = time.perf_counter() - began
    assert (target / "bench_env" / "data.bin").is_file()
    return took_s


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[Server]:
    """nginx on the exported index."""
    port, configuration = free_port(), folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(
        f"{user} daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log; worker_processes 2;\n"
        "events {}\nhttp { access_log off; sendfile on; types { text/html html; }\n"
        f"  server {{ listen 127.0.0.1:{port}; root {folder}/www; index index.html; }} }}\n"
    )
    server = Server(
        ["nginx", "-c", str(configuration), "-p", str(folder)], port, folder / "nginx.out"
    )
    try:
        yield server
    finally:
        server.stop()


PARTS = {
    "reads": reads,
    "publish": publish,
    "search": search,
    "memory": memory,
    "install": install,
}


def main(argv: list[str] | None = None) -> int:
    """Measure, print a table, and say by the exit code whether all bounds are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all without any")
    parser.add_argument("--quick", action="store_true", help="a fifth of the requests, small sizes")
    parser.add_argument(
        "--without-devpi", action="store_true", help="do not install and measure it"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    sys.stdout.write(
        f"hub   {time.strftime('%Y-%m-%d')}   load {load:.1f} on {os.cpu_count()} cores\n"
    )
    figures = []
    for part in options.parts or PARTS:
        with tempfile.TemporaryDirectory(
            prefix="vf-hub-bench-", ignore_cleanup_errors=True
        ) as folder:
            for figure in PARTS[part](Path(folder), options):
                figures.append(figure)
                value = "-" if figure.value is None else f"{figure.value:.3g}"
                sign = ">=" if figure.is_least else "<="
                bound = "" if figure.bound is None else f"{sign} {figure.bound:g}"
                row = f"{figure.what:48}{value:>9} {figure.unit:10}{bound:>9}  {figure.verdict:8}"
                sys.stdout.write(f"{row}{figure.note}".rstrip() + "\n")
                sys.stdout.flush()
    if options.json:
        rows = [{**figure._asdict(), "verdict": figure.verdict} for figure in figures]
        options.json.write_text(json.dumps(rows, indent=1))
    return 1 if any(figure.verdict == "MISSED" for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())

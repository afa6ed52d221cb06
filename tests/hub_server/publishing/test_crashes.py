"""kill -9, full disks, lost databases and storages, and many publishers at once."""

import asyncio
import concurrent.futures
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from hub_server.operations import backup as maintenance
from hub_server.storage.service import open_store
from hub_server.storage.store import BlobMissing

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}


def make_publisher(hub):
    body = {"token": hub.setup_token, "username": "alice", "password": "correct horse"}
    answer = httpx.post(f"{hub.url}/api/v1/setup", json=body, timeout=60)
    return answer.raise_for_status().json()["data"]["token"]


def upload(hub, token, wheel):
    return httpx.post(
        f"{hub.url}/legacy/",
        headers={"Authorization": f"Bearer {token}"},
        data={":action": "file_upload", "name": wheel.name, "version": wheel.version},
        files={"content": (wheel.filename, wheel.bytes())},
        timeout=60,
    )


class Publishers:
    """Clients that publish until they are told to stop, remembering what was acknowledged."""

    def __init__(self, hub, token, wheel, count):
        self.acknowledged, self.in_flight = {}, {}
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(hub, token, wheel, n)) for n in range(count)
        ]

    def _work(self, hub, token, wheel, number):
        version = 0
        while not self._stop.is_set():
            version += 1
            content = os.urandom(random.choice([1_000, 100_000, 400_000]))
            made = wheel(
                name=f"p{number}-env",
                version=f"{time.time_ns()}.{version}",
                files={f"p{number}_env.py": b"", "data": content},
            )
            self.in_flight[made.filename] = made
            with contextlib.suppress(httpx.TransportError):
                if upload(hub, token, made).status_code == 200:
                    self.acknowledged[made.filename] = made
                    del self.in_flight[made.filename]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc):
        self._stop.set()
        for thread in self._threads:
            thread.join()


def listed_files(hub):
    files = {}
    root = httpx.get(f"{hub.url}/alice/simple/", headers=JSON).json()
    for project in root["projects"]:
        page = httpx.get(f"{hub.url}/alice/simple/{project['name']}/", headers=JSON).json()
        for file in page["files"]:
            files[file["filename"]] = (project["name"], file)
    return files


def waited_for_a_core_s(pid):
    """How long the process was ready to run while others had the cores: no time of its own."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def kill_rounds(serve_hub, tmp_path, wheel, rounds):
    """Kill the hub at a random moment of publishing, again and again; how long each restart took."""
    data_dir, seed = tmp_path / "hub-data", random.randrange(10**6)
    chance = random.Random(seed)
    hub = serve_hub(data_dir=data_dir)
    token = make_publisher(hub)
    restarts_s = []
    for _ in range(rounds):
        with Publishers(hub, token, wheel, 6) as publishers:
            threading.Event().wait(chance.uniform(0.15, 0.6))
            os.killpg(hub.process.pid, signal.SIGKILL)
            hub.process.wait()
        began = time.monotonic()
        hub = serve_hub(data_dir=data_dir)
        httpx.get(f"{hub.url}/ready").raise_for_status()
        restarts_s.append(time.monotonic() - began - waited_for_a_core_s(hub.process.pid))
        files = listed_files(hub)
        for filename, made in publishers.acknowledged.items():
            assert filename in files, f"acknowledged and lost (seed {seed})"
            assert (
                files[filename][1]["hashes"]["sha256"] == hashlib.sha256(made.bytes()).hexdigest()
            )
        for filename, (name, file) in files.items():
            if filename not in publishers.acknowledged and filename not in publishers.in_flight:
                continue
            address = f"{hub.url}/alice/simple/{name}/{file['url']}"
            content = httpx.get(address).content
            assert hashlib.sha256(content).hexdigest() == file["hashes"]["sha256"], seed
        for made in publishers.in_flight.values():
            again = upload(hub, token, made)
            assert again.status_code == 200, f"stuck after a crash (seed {seed}): {again.text}"
    assert "0 problems" in hub.run("fsck").stdout
    return restarts_s


@pytest.mark.timeout(120)
def test_killing_the_hub_while_it_publishes_loses_and_breaks_nothing(serve_hub, tmp_path, wheel):
    kill_rounds(serve_hub, tmp_path, wheel, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_killing_the_hub_a_hundred_times_loses_and_breaks_nothing(serve_hub, tmp_path, wheel):
    restarts_s = sorted(kill_rounds(serve_hub, tmp_path, wheel, rounds=100))
    assert restarts_s[-1] <= 5.0, f"restarts took {restarts_s[50]:.1f} s, {restarts_s[-1]:.1f} s"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ground", ["sqlite", "postgresql"])
def test_four_processes_with_twelve_threads_publish_one_version_once(
    ground, serve_hub, request, wheel
):
    settings = {"workers": 4}
    if ground == "postgresql":
        postgres = request.getfixturevalue("postgres")
        settings["database_url"] = asyncio.run(postgres.new_database())
    hub = serve_hub(**settings)
    token = make_publisher(hub)
    for version in range(1, 6):
        contenders = [
            wheel(version=f"{version}.0", files={"demo_env.py": os.urandom(20).hex().encode()})
            for _ in range(48)
        ]
        with concurrent.futures.ThreadPoolExecutor(48) as pool:
            answers = list(pool.map(lambda made: upload(hub, token, made), contenders))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200] + [409] * 47, [a.text for a in answers if a.status_code > 409]
        winner = next(w for w, a in zip(contenders, answers, strict=True) if a.status_code == 200)
        page = httpx.get(f"{hub.url}/alice/simple/demo-env/", headers=JSON).json()
        file = next(f for f in page["files"] if f["filename"] == winner.filename)
        got = httpx.get(f"{hub.url}/alice/simple/demo-env/{file['url']}")
        assert got.content == winner.bytes()


def test_a_full_disk_refuses_the_upload_and_the_retry_succeeds(serve_hub, tmp_path, wheel):
    """A file system of 2 MiB for the data; it needs the right to mount one."""
    small = tmp_path / "small-disk"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small file system")
    try:
        hub = serve_hub(data_dir=small / "hub-data")
        token = make_publisher(hub)
        large = wheel(version="9.0", files={"demo_env.py": os.urandom(5_000_000)})
        refused = upload(hub, token, large)
        assert (refused.status_code, "stored" in refused.text) == (503, True)
        assert list((small / "hub-data" / "staging").iterdir()) == []
        assert httpx.get(f"{hub.url}/alice/simple/demo-env/").status_code == 401
        assert upload(hub, token, wheel()).status_code == 200
        assert "0 problems" in hub.run("fsck").stdout
        hub.process.terminate()
        hub.process.wait(15)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


async def test_a_database_restart_is_an_outage_of_moments(request, tmp_path, wheel):
    """Connections that the server closed are replaced; the request that met them may be repeated."""
    from sqlalchemy import text

    from hub_server.settings import Settings

    postgres = request.getfixturevalue("postgres")
    settings = Settings(data_dir=tmp_path / "hub-data", database_url=await postgres.new_database())
    async with request.getfixturevalue("open_hub_at")(settings) as hub:
        alice = await hub.person("alice")
        await alice.upload(wheel())
        await hub.http.get("/alice/simple/demo-env/")
        async with hub.database.write() as session:
            await session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        statuses = set()
        for n in range(6):
            statuses.add((await alice.upload(wheel(version=f"1.{n}"))).status_code)
            statuses.add((await hub.http.get("/alice/simple/demo-env/")).status_code)
        assert statuses <= {200, 503}
        assert (await alice.upload(wheel(version="2.0"))).status_code == 200
        page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
        assert page["versions"][-1] == "2.0"


async def test_an_s3_that_answers_500_is_an_outage_and_nothing_is_published(
    request, tmp_path, wheel, sqlite_settings
):
    async def fail(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
        writer.close()

    s3 = request.getfixturevalue("s3")
    settings = sqlite_settings.model_copy(update={**s3.new_bucket(), "s3_presign": False})
    async with request.getfixturevalue("open_hub_at")(settings) as hub:
        alice = await hub.person("alice")
        assert (await alice.upload(wheel())).status_code == 200
        store = hub.app._application._application.state.hub.publisher.intake._store
        good = store._store
        broken = await asyncio.start_server(fail, "127.0.0.1", 0)
        port = broken.sockets[0].getsockname()[1]
        down = settings.model_copy(update={"s3_endpoint": f"http://127.0.0.1:{port}"})
        store._store = open_store(down)._store
        refused = await alice.upload(wheel(version="2.0"))
        assert (refused.status_code, "storage" in refused.text) == (503, True)
        page = (await hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
        assert page["versions"] == ["0.1.0"]
        assert (await hub.http.get("/ready")).status_code == 503
        store._store = good
        assert (await alice.upload(wheel(version="2.0"))).status_code == 200
        report = await maintenance.fsck(hub.database, open_store(settings))
        assert report.problems == []
        broken.close()


async def test_a_blob_that_vanished_is_missing_and_not_a_fault(small_hub, wheel):
    alice = await small_hub.person("alice")
    await alice.upload(wheel())
    page = (await small_hub.http.get("/alice/simple/demo-env/", headers=JSON)).json()
    address = "/" + page["files"][0]["url"].removeprefix("../../../")
    assert (await small_hub.http.get(address)).status_code == 200
    for blob in (small_hub.settings.data_dir / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    answer = await small_hub.http.get(address)
    assert answer.status_code == 404
    with pytest.raises(BlobMissing):
        async for _ in open_store(small_hub.settings).read(page["files"][0]["hashes"]["sha256"]):
            pass


async def test_a_blob_that_vanishes_before_its_version_is_made_is_not_published(hub, wheel):
    """As if a collection had taken it between the upload and the last step."""
    alice = await hub.person("alice")
    body = wheel().bytes()
    sha256 = hashlib.sha256(body).hexdigest()
    wanted = {"filename": wheel().filename, "sha256": sha256, "size": len(body)}
    address = "/api/v1/hub/alice/demo-env"
    reserved = await alice.http.post(f"{address}/reserve", json={"files": [wanted]})
    [upload] = reserved.json()["data"]["uploads"]
    if upload["upload_url"].startswith("http://hub/"):
        await hub.http.put(upload["upload_url"], content=body)
    else:
        async with httpx.AsyncClient() as direct:
            (await direct.put(upload["upload_url"], content=body)).raise_for_status()
    done = {"upload_ids": [upload["upload_id"]]}
    publisher = hub.app._application._application.state.hub.publisher
    await publisher.fetch_incoming(upload["upload_id"])
    await open_store(hub.settings).delete(sha256)
    refused = await alice.http.post(f"{address}/finalize", json=done)
    assert (refused.status_code, "upload it again" in refused.text) == (503, True)
    page = await hub.http.get("/alice/simple/demo-env/", headers=JSON)
    assert page.json()["files"] == []
    assert (await alice.upload(wheel())).status_code == 200

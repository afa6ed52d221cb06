"""What every place for blobs must do: a folder, and S3 with and without signed addresses."""

import asyncio
import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import httpx
import pytest

from hub_server.database import utc_now
from hub_server.errors import TooLarge, Unavailable
from hub_server.settings import Settings
from hub_server.storage.s3 import PART_BYTES, SMALL_BYTES
from hub_server.storage.service import open_store, stage
from hub_server.storage.store import BlobMissing

SIZES = [0, 1, 1000, 300_000]


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with (tmp_path_factory.mktemp("moto") / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
        )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["folder", "s3", "s3 relayed"])
async def store(request, tmp_path):
    settings = Settings(data_dir=tmp_path)
    if request.param != "folder":
        endpoint = request.getfixturevalue("s3_endpoint")
        bucket = f"bucket-{os.urandom(6).hex()}"
        async with httpx.AsyncClient() as client:
            (await client.put(f"{endpoint}/{bucket}")).raise_for_status()
        settings = Settings(
            data_dir=tmp_path,
            storage_url=f"s3://{bucket}/some/prefix",
            s3_endpoint=endpoint,
            s3_access_key_id="test",
            s3_secret_access_key="test",
            s3_presign=request.param == "s3",
        )
    opened = open_store(settings)
    await opened.check()
    return opened


@pytest.fixture
def put(store, tmp_path):
    async def put_bytes(data):
        path = tmp_path / f"staged-{os.urandom(4).hex()}"
        path.write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        await store.put(path, sha256)
        path.unlink(missing_ok=True)
        return sha256

    return put_bytes


async def read(store, sha256, *span):
    return b"".join([piece async for piece in store.read(sha256, *span)])


@pytest.mark.parametrize("size_bytes", SIZES)
async def test_a_blob_comes_back_as_it_went_in(store, put, size_bytes):
    data = os.urandom(size_bytes)
    sha256 = await put(data)
    assert await store.size_bytes(sha256) == size_bytes
    assert await read(store, sha256) == data


async def test_a_blob_of_several_parts_comes_back_as_it_went_in_and_can_be_put_again(store, put):
    data = os.urandom(SMALL_BYTES + PART_BYTES + 12_345)
    sha256 = await put(data)
    assert await put(data) == sha256
    assert await store.size_bytes(sha256) == len(data)
    assert await read(store, sha256) == data


async def test_a_part_of_a_blob_can_be_read(store, put):
    data = os.urandom(700_000)
    sha256 = await put(data)
    for start, end in ((0, 10), (5, 5), (1000, 700_000), (699_999, 700_000), (0, 600_001)):
        assert await read(store, sha256, start, end) == data[start:end]
    assert await read(store, sha256, 650_000) == data[650_000:]


async def test_putting_again_changes_nothing(store, put):
    data = os.urandom(5000)
    assert await put(data) == await put(data)
    sha256 = hashlib.sha256(data).hexdigest()
    assert await read(store, sha256) == data
    assert [blob.sha256 async for blob in store.blobs()] == [sha256]


async def test_many_puts_of_one_blob_at_once_leave_one_whole_blob(store, put):
    data = os.urandom(200_000)
    hashes = await asyncio.gather(*(put(data) for _ in range(12)))
    assert len(set(hashes)) == 1
    assert await read(store, hashes[0]) == data


async def test_what_is_missing_is_missing(store):
    absent = "0" * 64
    assert await store.size_bytes(absent) is None
    with pytest.raises(BlobMissing):
        await read(store, absent)
    await store.delete(absent)


@pytest.mark.parametrize(
    "key", ["../../etc/passwd", "", "a" * 63, "A" * 64, "/" * 64, "a" * 64 + "\n"]
)
async def test_only_hashes_are_keys(store, key):
    with pytest.raises(BlobMissing):
        await store.size_bytes(key)
    with pytest.raises(BlobMissing):
        await read(store, key)


async def test_a_deleted_blob_is_gone_and_can_be_put_again(store, put):
    data = b"some bytes"
    sha256 = await put(data)
    await store.delete(sha256)
    await store.delete(sha256)
    assert await store.size_bytes(sha256) is None
    assert await put(data) == sha256
    assert await read(store, sha256) == data


async def test_the_list_has_all_blobs_with_size_and_time(store, put):
    before = utc_now() - timedelta(seconds=5)
    wanted = {await put(os.urandom(size)): size for size in (1, 20, 300)}
    listed = [blob async for blob in store.blobs()]
    assert {blob.sha256: blob.size_bytes for blob in listed} == wanted
    assert all(before <= blob.modified_at <= utc_now() + timedelta(seconds=5) for blob in listed)


async def test_signed_addresses_work_without_credentials(store, put, tmp_path):
    data = os.urandom(1000)
    sha256 = await put(data)
    download = await store.download_url(sha256, "a-1-py3-none-any.whl")
    upload = await store.upload_url("an-upload")
    assert (download is None) == (upload is None)
    target = tmp_path / "came"
    if download is None or upload is None:
        assert await store.take_incoming("an-upload", target, 10**6) is False
        return
    async with httpx.AsyncClient() as client:
        assert (await client.get(download)).content == data
        part = await client.get(download, headers={"Range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, data[10:20])
        assert await store.take_incoming("an-upload", target, 10**6) is False
        (await client.put(upload, content=b"incoming")).raise_for_status()
        assert await store.take_incoming("an-upload", target, 10**6) is True
        assert target.read_bytes() == b"incoming"
        assert await store.take_incoming("an-upload", target, 10**6) is False
        (await client.put(upload, content=b"x" * 100)).raise_for_status()
        with pytest.raises(TooLarge):
            await store.take_incoming("an-upload", target, 99)
        assert await store.take_incoming("an-upload", target, 99) is False


async def test_staging_counts_hashes_and_stops_at_the_limit(tmp_path):
    async def pieces(*sizes):
        for size in sizes:
            yield b"x" * size

    staged = await stage(pieces(10, 0, 400_000, 1), tmp_path / "a", 400_011)
    assert staged.size_bytes == 400_011
    assert staged.sha256 == hashlib.sha256(b"x" * 400_011).hexdigest()
    with pytest.raises(TooLarge):
        await stage(pieces(10, 10), tmp_path / "b", 19)


@contextlib.asynccontextmanager
async def s3_that_refuses(endpoint, refused):
    """The S3 server behind a relay that answers 500 where the request line has each word of `refused`."""
    answering = set()

    async def relay(reader, writer):
        answering.add(asyncio.current_task())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split(" ", 2)
        pairs = (line.partition(": ") for line in head.splitlines()[1:] if line)
        headers = {name.lower(): value for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        status, content, etag = 500, b"", "-"
        if not all(word in f"{method} {target}" for word in refused.split()):
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.request(
                    method, endpoint + target, content=body, headers=headers
                )
            status, content = answer.status_code, answer.content
            etag = answer.headers.get("etag", "-")
        head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(content)}\r\nETag: {etag}\r\n"
        writer.write(head.encode() + b"Connection: close\r\n\r\n" + content)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.gather(*answering, return_exceptions=True)


@pytest.mark.parametrize("refused", ["PUT partNumber=2", "POST uploadId="])
async def test_a_large_blob_whose_part_s3_refuses_is_an_outage_and_leaves_no_half_of_it(
    s3_endpoint, tmp_path, refused
):
    bucket = f"bucket-{os.urandom(6).hex()}"
    async with httpx.AsyncClient() as client:
        (await client.put(f"{s3_endpoint}/{bucket}")).raise_for_status()
    good = Settings(
        data_dir=tmp_path,
        storage_url=f"s3://{bucket}",
        s3_endpoint=s3_endpoint,
        s3_access_key_id="test",
        s3_secret_access_key="test",
    )
    staged = tmp_path / "staged"
    staged.write_bytes(os.urandom(SMALL_BYTES + PART_BYTES))
    sha256 = hashlib.sha256(staged.read_bytes()).hexdigest()
    async with s3_that_refuses(s3_endpoint, refused) as endpoint:
        broken = open_store(good.model_copy(update={"s3_endpoint": endpoint}))
        with pytest.raises(Unavailable, match="object storage failed"):
            await broken.put(staged, sha256)
    store = open_store(good)
    assert [blob async for blob in store.blobs()] == []
    await store.put(staged, sha256)
    assert await read(store, sha256) == staged.read_bytes()


@pytest.mark.parametrize("size_bytes", [10, SMALL_BYTES + 1])
async def test_a_bucket_that_does_not_exist_is_an_outage_from_the_start(
    s3_endpoint, tmp_path, size_bytes
):
    settings = Settings(
        data_dir=tmp_path,
        storage_url="s3://no-such-bucket",
        s3_endpoint=s3_endpoint,
        s3_access_key_id="test",
        s3_secret_access_key="test",
    )
    store = open_store(settings)
    with pytest.raises(Unavailable, match="no bucket"):
        await store.check()
    staged = tmp_path / "staged"
    staged.write_bytes(b"x" * size_bytes)
    with pytest.raises(Unavailable, match="no bucket"):
        await store.put(staged, hashlib.sha256(staged.read_bytes()).hexdigest())


async def test_an_unreachable_s3_is_an_outage_and_not_a_missing_blob(tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    settings = Settings(
        data_dir=tmp_path,
        storage_url="s3://bucket",
        s3_endpoint=f"http://127.0.0.1:{port}",
        s3_access_key_id="x",
        s3_secret_access_key="y",
    )
    with pytest.raises(Unavailable):
        await open_store(settings).size_bytes("0" * 64)


async def test_a_folder_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "blobs").write_text("a file in the way")
    with pytest.raises(Unavailable, match="blobs"):
        await open_store(Settings(data_dir=tmp_path)).check()

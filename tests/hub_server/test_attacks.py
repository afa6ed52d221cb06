"""Attacks on publishing and serving; the numbers are those of the threat list in docs/hub.md."""

import asyncio
import gzip
import hashlib
import io
import os
import socket
import struct
import tarfile
import time
import zipfile

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hub_server.edge import LineLog, _without_secrets
from hub_server.index.pages import negotiate, parse_range
from hub_server.limits import RateLimiter
from hub_server.publishing.archives import ArchiveRejected, repack

API = "/api/v1/environmentshub"


async def nothing_is_published(hub):
    return (await hub.http.get("/alice/simple/demo-env/")).status_code == 404


# --- names and paths (S1, S2, S20) --------------------------------------------------------------


@pytest.mark.parametrize(
    "filename",
    [
        "../demo_env-0.1.0-py3-none-any.whl",
        "/etc/demo_env-0.1.0-py3-none-any.whl",
        "..\\demo_env-0.1.0-py3-none-any.whl",
        "demo_env-0.1.0-py3-none-any.whl\x00.exe",
        "demo_env-0.1.0-py3-none-any.whl\r\nX: 1",
        "%2e%2e%2fdemo_env-0.1.0-py3-none-any.whl",
        "\u202edemo_env-0.1.0-py3-none-any.whl",
        "demo_env-0.1.0-py3-none-any.WHL",
        "demo_env-0.1.0-py3-none-any.whl ",
        "CON",
        "a" * 5000 + "-1-py3-none-any.whl",
        "demo_env-0.1.0.exe",
        "demo_env-0.1.0-py3-none-any.zip",
        "",
    ],
)
async def test_s1_a_file_name_that_is_not_plain_is_refused(small_hub, wheel, filename):
    alice = await small_hub.person("alice")
    content = wheel().bytes()
    answer = await alice.http.post(
        "/alice/legacy/",
        data={":action": "file_upload", "name": "demo-env", "version": "0.1.0"},
        files={"content": (filename, content)},
    )
    assert answer.status_code in (400, 413), answer.text
    assert await nothing_is_published(small_hub)


@pytest.mark.parametrize(
    "path",
    [
        "/files/alice/demo-env/../../../../etc/passwd",
        "/files/alice/demo-env/%2e%2e%2f%2e%2e%2fhub.db/x",
        "/files/..%2f..%2f/x/" + "0" * 64 + "/hub.db",
        "/files/alice/demo-env/" + "0" * 64 + "/..;/hub.db",
        "/alice/simple/....//....//hub.db/",
        "/alice/simple/%00/",
        "/alice/simple/\u2025/",
        "/%ff%fe/simple/x/",
        "//alice/simple/demo-env/",
    ],
)
async def test_s2_no_address_leads_out_of_the_index(small_hub, wheel, path):
    await (await small_hub.person("alice")).upload(wheel())
    answer = await small_hub.http.get(path)
    assert answer.status_code in (301, 400, 401, 404), (path, answer.status_code)


# --- the archive (S3 to S7, S13, S14) -----------------------------------------------------------


def zip_with(change):
    """A `write` for the wheel builder that adds something after the normal members."""

    def write(archive, members):
        for path, content in members:
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), content)
        change(archive)

    return write


def link_member(archive):
    info = zipfile.ZipInfo("link")
    info.external_attr = 0o120777 << 16
    archive.writestr(info, "/etc/passwd")


BOMB = b"\0" * (70 * 1024**2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"files": {"demo_env.py": b"", "bomb": BOMB}}, "bomb"),
        ({"files": {"../../evil.pth": b"x"}}, ".."),
        ({"files": {"/abs.py": b"x"}}, "absolute"),
        ({"files": {"a\\b.py": b"x"}}, "backslash"),
        ({"files": {"C:/x.py": b"x"}}, "colon"),
        ({"files": {"a/./b.py": b"x"}}, "part"),
        ({"files": {"a.py": b"", "A.py": b""}}, "same file"),
        ({"files": {"evil.pth": b"import os"}}, "every start"),
        ({"files": {"demo_env-0.1.0.data/scripts/ls": b"#!python"}}, "outside site-packages"),
        ({"files": {"demo_env-0.1.0.data/data/etc/x": b""}}, "outside site-packages"),
        ({"files": {"other-1.0.dist-info/METADATA": b""}}, "exactly one"),
        ({"metadata_name": "other-env"}, "METADATA names"),
        ({"metadata_version": "9.9"}, "METADATA says"),
        ({"wheel_tag": "cp311-cp311-linux_x86_64"}, "file name says"),
        ({"metadata": "Requires-Python: >=3.10<b>\n"}, "not valid"),
        ({"metadata": "Requires-Dist: not a requirement!\n"}, "not valid"),
        ({"metadata": "Evil-Field: 1\n"}, "cannot be read"),
        ({"entry_points": "[console_scripts]\npip = demo_env:main\n"}, "system command"),
        ({"entry_points": "[console_scripts]\n../x = demo_env:main\n"}, "unsafe name"),
        ({"entry_points": "[console_scripts]\nx = os; evil\n"}, "no object"),
        ({"entry_points": "[console_scripts]\nx = a\nx = b\n"}, "cannot be read"),
        ({"entry_points": "[a\nb = c"}, "cannot be read"),
        ({"record": lambda t: t.replace("demo_env.py", "other.py")}, "RECORD"),
        ({"record": lambda t: "\n".join(t.splitlines()[1:])}, "does not list"),
        ({"record": lambda t: t.replace("sha256=", "sha256=A")}, "RECORD"),
        ({"record": lambda t: t.replace("sha256=", "md5=")}, "RECORD"),
        ({"record": lambda t: t + "ghost.py,sha256=x,1\n"}, "not in the wheel"),
        ({"write": zip_with(link_member)}, "link or device"),
        ({"write": zip_with(lambda z: z.writestr("hidden.py", "x"))}, "does not list"),
        ({"version": "0.1.0+local"}, "local version"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_s3_to_s14_a_hostile_wheel_is_refused_with_the_reason(
    small_hub, wheel, changes, words
):
    alice = await small_hub.person("alice")
    made = wheel(**changes)
    answer = await alice.upload(made)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["detail"]
    assert await nothing_is_published(small_hub)
    blobs = small_hub.settings.data_dir / "blobs"
    assert not [p for p in blobs.rglob("*") if p.is_file()] or changes.get("version")


def differential_zips(content):
    """Files that different ZIP readers understand differently, made from a good wheel."""
    end = content.rindex(b"PK\x05\x06")
    central = struct.unpack_from("<L", content, end + 16)[0]
    yield "trailing data", content + b"x"
    yield "prepended data", b"x" * 10 + content
    yield "a comment", content[:-2] + b"\x01\x00x"
    yield "a second archive", content + content
    yield "cut short", content[:-5]
    yield (
        "hidden data before the directory",
        (
            content[:central]
            + b"hidden"
            + content[central:end]
            + content[end : end + 16]
            + struct.pack("<L", central + 6)
            + content[end + 20 :]
        ),
    )
    local_name = content.index(b"demo_env.py")
    yield (
        "names that disagree",
        (content[:local_name] + b"evil_env.py" + content[local_name + 11 :]),
    )
    yield "a wrong CRC", content[:14] + b"\0\0\0\0" + content[18:]
    first = content.index(b"PK\x01\x02")
    yield "an encrypted flag", content[: first + 8] + b"\x01" + content[first + 9 :]
    yield "a data descriptor", content[:6] + b"\x08" + content[7:]
    yield "an unknown method", content[:8] + b"\x0c" + content[9:]
    yield "a wrong count", content[: end + 8] + b"\x01\x00\x01\x00" + content[end + 12 :]
    yield "nothing", b""
    yield "no archive", b"not a zip" * 100
    yield "a tar archive", gzip.compress(b"x" * 1000)


async def test_s6_archives_that_readers_see_differently_are_refused(small_hub, wheel):
    alice = await small_hub.person("alice")
    filename = wheel().filename
    for what, content in differential_zips(wheel().bytes()):
        answer = await alice.http.post(f"/api/v1/hub/validate?filename={filename}", content=content)
        assert answer.status_code == 400, what


async def test_s6_duplicate_members_are_refused(small_hub, wheel):
    alice = await small_hub.person("alice")

    def write(archive, members):
        for path, content in members:
            archive.writestr(path, content)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("demo_env.py", b"EVIL = 1")

    answer = await alice.upload(wheel(write=write))
    assert (answer.status_code, "same file" in answer.text) == (400, True)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_s6_a_wheel_with_changed_bytes_is_refused_or_reads_the_same(wheel, tmp_path, data):
    """No flipped byte may crash the reader, or change what a wheel says unnoticed."""
    from verifiers.packages.archive import WheelRejected
    from verifiers.packages.manifest import read_wheel

    good = wheel()
    content = bytearray(good.bytes())
    path = tmp_path / good.filename
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(good.bytes())
    expected = read_wheel(path)
    path.write_bytes(content)
    try:
        seen = read_wheel(path)
    except WheelRejected:
        return
    assert seen.metadata_text == expected.metadata_text


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"name": "other-env"}, "form is for"),
        ({"version": "9.9"}, "form says"),
        ({"requires_python": ">=2.7"}, "requires_python"),
        ({"requires_dist": "evil"}, "requires_dist"),
        ({"sha256_digest": "0" * 64}, "digest"),
        ({"blake2_256_digest": "0" * 64}, "digest"),
        ({"md5_digest": "0" * 32}, "digest"),
        ({":action": "submit"}, "not offered"),
        ({"attestations": "[{}]"}, "verified"),
    ],
)
async def test_s7_s8_a_form_that_lies_is_refused(small_hub, wheel, form, words):
    alice = await small_hub.person("alice")
    answer = await alice.upload(wheel(), **form)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert await nothing_is_published(small_hub)


async def test_s7_empty_fields_are_absent_fields(small_hub, wheel):
    alice = await small_hub.person("alice")
    answer = await alice.upload(wheel(), requires_python="", requires_dist="", md5_digest="")
    assert answer.status_code == 200


def tar_bytes(*members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return buffer.getvalue()


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


PROJECT = (member("pyproject.toml"), b"[project]\n")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (tar_bytes(PROJECT, (member("../evil"), b"x")), ".."),
        (tar_bytes(PROJECT, (member("/abs"), b"x")), "absolute"),
        (tar_bytes(PROJECT, (member("l", tarfile.SYMTYPE, "/etc/passwd"), b"")), "link"),
        (tar_bytes(PROJECT, (member("l", tarfile.LNKTYPE, "pyproject.toml"), b"")), "link"),
        (tar_bytes(PROJECT, (member("d", tarfile.CHRTYPE), b"")), "device"),
        (tar_bytes(PROJECT, (member("f", tarfile.FIFOTYPE), b"")), "device"),
        (tar_bytes(PROJECT, (member("a"), b"1"), (member("A"), b"2")), "twice"),
        (tar_bytes((member("a.py"), b"x")), "pyproject.toml"),
        (gzip.compress(b""), "empty"),
        (b"not gzip", "not a readable"),
        (gzip.compress(b"not tar" * 1000), "not a readable"),
        (tar_bytes(PROJECT)[:-20], "not a readable"),
        (tar_bytes(PROJECT, (member("bomb"), b"\0" * (80 * 1024**2))), "allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_s13_a_hostile_source_archive_is_refused(tmp_path, content, words):
    source = tmp_path / "a.tar.gz"
    source.write_bytes(content)
    with pytest.raises(ArchiveRejected, match=words):
        repack(source, tmp_path / "b.tar.gz", 10**9)


async def test_s13_a_refused_source_is_explained_when_the_push_is_finished(small_hub, wheel):
    alice = await small_hub.person("alice")
    evil = tar_bytes(PROJECT, (member("../evil"), b"x"))
    answer, _ = await alice.push(wheel(), evil)
    assert (answer.status_code, ".." in answer.json()["detail"]) == (400, True)
    assert (await small_hub.http.get(f"{API}/alice/demo-env/versions")).json() == {
        "data": {"versions": []}
    }


# --- upload addresses (S18) ---------------------------------------------------------------------


async def reserved(hub, wheel, content=None):
    alice = await hub.person("alice")
    body = wheel().bytes() if content is None else content
    wanted = {
        "filename": wheel().filename,
        "sha256": hashlib.sha256(body).hexdigest(),
        "size": len(body),
    }
    answer = await alice.http.post("/api/v1/hub/alice/demo-env/reserve", json={"files": [wanted]})
    assert answer.status_code == 200, answer.text
    [upload] = answer.json()["data"]["uploads"]
    return alice, upload, body


async def test_s18_an_upload_address_takes_only_what_was_announced(small_hub, wheel):
    _, upload, body = await reserved(small_hub, wheel)
    url = upload["upload_url"]
    for other in (body + b"x", body[:-1], b"x" * len(body), b""):
        answer = await small_hub.http.put(url, content=other)
        assert answer.status_code in (400, 413), other[:10]
    assert (await small_hub.http.put(url[:-3] + "abc", content=body)).status_code == 404
    assert (await small_hub.http.put(url, content=body)).status_code == 200


async def test_s18_an_upload_address_ends_with_its_use_and_with_its_time(open_small_hub, wheel):
    async with open_small_hub(upload_lifetime_s=0.2) as hub:
        _, upload, body = await reserved(hub, wheel)
        await asyncio.sleep(0.25)
        assert (await hub.http.put(upload["upload_url"], content=body)).status_code == 403
    async with open_small_hub() as hub:
        alice, upload, body = await reserved(hub, wheel)
        await hub.http.put(upload["upload_url"], content=body)
        done = {"upload_ids": [upload["upload_id"]]}
        assert (await alice.http.post("/api/v1/hub/alice/demo-env/finalize", json=done)).is_success
        assert (await hub.http.put(upload["upload_url"], content=body)).status_code == 403


async def test_s42_reserving_bytes_that_someone_else_has_tells_nothing(small_hub, wheel):
    alice = await small_hub.person("alice")
    await alice.push(wheel(), visibility="PRIVATE")
    bob = await small_hub.person("bob")
    body = wheel().bytes()
    wanted = {"filename": wheel().filename, "sha256": hashlib.sha256(body).hexdigest(), "size": 1}
    known = await bob.http.post("/api/v1/hub/bob/demo-env/reserve", json={"files": [wanted]})
    wanted["sha256"] = "0" * 64
    unknown = await bob.http.post("/api/v1/hub/bob/demo-env/reserve", json={"files": [wanted]})
    assert known.status_code == unknown.status_code == 200
    keys = [set(answer.json()["data"]["uploads"][0]) for answer in (known, unknown)]
    assert keys[0] == keys[1]


# --- large, slow and broken requests (S11, S12, S25, S50) ---------------------------------------


async def test_s11_strangers_cannot_make_the_hub_read_a_body(small_hub):
    read = 0

    async def body():
        nonlocal read
        for _ in range(100):
            read += 65536
            yield b"x" * 65536

    answer = await small_hub.http.post(
        "/alice/legacy/",
        content=body(),
        headers={"Content-Type": "multipart/form-data; boundary=b"},
    )
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "multipart/form-data; boundary=b"),
        (b"--b\r\n", "multipart/form-data; boundary=b"),
        (b"no boundary", "multipart/form-data; boundary=b"),
        (b"--b--\r\n", "multipart/form-data; boundary=b"),
        (
            b'--b\r\nContent-Disposition: form-data; name="content"; filename="x.whl"\r\n\r\nabc',
            "multipart/form-data; boundary=b",
        ),
        (b"a=b", "application/x-www-form-urlencoded"),
        (b"{}", "application/json"),
        (b"", "multipart/form-data"),
        (b"--b\r\n" + b"X-Long: " + b"y" * 20_000 + b"\r\n\r\n", "multipart/form-data; boundary=b"),
        (
            b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\n\r\n' * 2000 + b"--b--",
            "multipart/form-data; boundary=b",
        ),
        (
            b'--b\r\nContent-Disposition: form-data; name="description"\r\n\r\n'
            + b"x" * 3_000_000
            + b"\r\n--b--",
            "multipart/form-data; boundary=b",
        ),
    ],
)
async def test_s11_a_broken_or_excessive_form_is_refused(small_hub, body, content_type):
    alice = await small_hub.person("alice")
    answer = await alice.http.post(
        "/alice/legacy/", content=body, headers={"Content-Type": content_type}
    )
    assert answer.status_code in (400, 413), answer.text
    assert list(small_hub.settings.staging_dir.glob("*")) == []


async def test_s11_limits_are_told_before_the_body_is_read(open_small_hub, wheel):
    async with open_small_hub(max_wheel_bytes=1000, max_source_bytes=1000) as hub:
        alice = await hub.person("alice")
        answer = await alice.upload(wheel(files={"demo_env.py": os.urandom(5000)}))
        assert answer.status_code == 413
        announced = await alice.push(wheel(files={"demo_env.py": os.urandom(5000)}))
        assert announced[0].status_code == 413
        answer = await alice.http.post(f"{API}/resolve", content=b"x" * 5_000_000)
        assert answer.status_code == 413


async def test_s51_quotas_end_what_one_owner_can_take(open_small_hub, wheel):
    async with open_small_hub(max_versions=2, max_environments=2) as hub:
        alice = await hub.person("alice")
        answers = [await alice.upload(wheel(version=f"{n}.0")) for n in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 409]
        answers = [
            await alice.upload(wheel(name=f"env-{n}x", files={"a.py": b""})) for n in range(3)
        ]
        assert [answer.status_code for answer in answers] == [200, 409, 409]
    async with open_small_hub(owner_quota_bytes=1200) as hub:
        bob = await hub.person("bob")
        assert (await bob.upload(wheel(files={"a.py": os.urandom(2000)}))).status_code == 413


def test_s12_clients_that_drip_are_dropped(serve_hub):
    hub = serve_hub(header_timeout_s=1.0, body_idle_timeout_s=1.0)
    started = time.monotonic()
    heads = [
        b"",
        b"GET / HT",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Drip: ",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n{",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
    ]
    for head in heads:
        with socket.create_connection(("127.0.0.1", hub.port)) as connection:
            connection.settimeout(10)
            connection.sendall(head)
            received = b""
            while piece := _received(connection):
                received += piece
            assert received == b"" or b" 408 " in received, head
    assert time.monotonic() - started < 20
    assert httpx.get(f"{hub.url}/health").status_code == 200


def test_s12_a_client_that_goes_on_dripping_is_dropped_too(serve_hub):
    """Every byte comes in time; it is the whole that does not."""
    hub = serve_hub(header_timeout_s=1.0, body_idle_timeout_s=1.0)
    post = b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for head in (
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-Drip: ",
        post + b"Content-Length: 100000\r\n\r\n",
        post + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n",
    ):
        with socket.create_connection(("127.0.0.1", hub.port)) as connection:
            connection.sendall(head)
            connection.settimeout(0.1)
            received, deadline = None, time.monotonic() + 30
            while received is None and time.monotonic() < deadline:
                try:
                    connection.sendall(b"a")
                    received = connection.recv(4096)
                except TimeoutError:
                    continue
                except (ConnectionResetError, BrokenPipeError):
                    received = b""
            assert received is not None, f"the hub listens to a drip for ever: {head}"
            assert received == b"" or b" 408 " in received
    assert httpx.get(f"{hub.url}/health").status_code == 200


def _received(connection):
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /api/v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_s50_requests_with_two_readings_are_refused(live_hub, request_bytes):
    with socket.create_connection(("127.0.0.1", live_hub.port)) as connection:
        connection.settimeout(12)
        connection.sendall(request_bytes)
        received = b""
        while piece := _received(connection):
            received += piece
            if b"\r\n\r\n" in received:
                break
    assert received == b"" or b" 400 " in received.partition(b"\r\n")[0] or b" 404 " in received
    assert httpx.get(f"{live_hub.url}/health").status_code == 200


# --- what the hub says (S26, S29, S44 to S49) ---------------------------------------------------


async def test_s29_every_answer_has_safe_headers(small_hub, wheel):
    await (await small_hub.person("alice")).upload(wheel())
    for path in (
        "/health",
        "/alice/simple/demo-env/",
        "/nowhere",
        "/dashboard/tokens/challenge",
        f"{API}/alice/demo-env/@latest",
    ):
        headers = (await small_hub.http.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff", path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "access-control-allow-origin" not in headers


async def test_s43_s44_nothing_a_wheel_says_becomes_markup(small_hub, wheel):
    alice = await small_hub.person("alice")
    await alice.upload(
        wheel(
            metadata="Summary: <img src=x onerror=alert(1)>\n", readme="<script>alert(1)</script>"
        )
    )
    page = await small_hub.http.get("/dashboard/tokens/challenge?code=%3Cscript%3E")
    assert "<script>" not in page.text
    html = await small_hub.http.get("/alice/simple/demo-env/", headers={"Accept": "text/html"})
    assert "<img" not in html.text
    details = await small_hub.http.get(f"{API}/alice/demo-env/@latest")
    assert details.headers["content-type"] == "application/json"


async def test_s46_hostile_parameters_are_values_and_never_a_fault(small_hub, wheel):
    await (await small_hub.person("alice")).upload(wheel())
    for value in (
        "'",
        '"',
        "%",
        "_",
        "' OR 1=1 --",
        "name; DROP TABLE x",
        "\u0000",
        "{}",
        "-1",
        "1e9",
        "9" * 40,
    ):
        for key in (
            "search",
            "owner",
            "tags",
            "sort_by",
            "sort_order",
            "limit",
            "offset",
            "visibility",
        ):
            answer = await small_hub.http.get(f"{API}/", params={key: value})
            assert answer.status_code in (200, 422), (key, value, answer.text)


async def test_s48_the_host_header_changes_no_address_of_the_index(small_hub, wheel):
    await (await small_hub.person("alice")).upload(wheel())
    evil = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    page = await small_hub.http.get("/alice/simple/demo-env/", headers=evil)
    assert "evil.example" not in page.text
    assert page.status_code == 200


async def test_s48_a_fixed_address_is_used_whatever_the_host_header_says(open_small_hub, wheel):
    async with open_small_hub(base_url="https://hub.example.org") as hub:
        await (await hub.person("alice")).upload(wheel())
        details = await hub.http.get(f"{API}/alice/demo-env/@latest", headers={"Host": "evil"})
        assert details.json()["data"]["wheel_url"].startswith("https://hub.example.org/files/")


def test_s26_s47_logs_have_neither_secrets_nor_lines_of_the_clients_making(live_hub):
    token = "vfh_" + "a" * 49
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "x\x1b[31m"}
    httpx.get(f"{live_hub.url}/nowhere%0a%0dFAKE%1b[31m?token={token}", headers=headers)
    httpx.put(f"{live_hub.url}/upload/some-id/very-secret-part", content=b"x")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        log = live_hub.log.read_bytes()
        if b"some-id" in log:
            break
        time.sleep(0.1)
    assert b"some-id" in log
    assert b"very-secret-part" not in log
    assert token.encode() not in log
    assert live_hub.token.encode() not in log
    assert b"\x1b" not in log
    assert not any(line.startswith(b"FAKE") for line in log.splitlines())


def test_log_lines_are_written_together_and_upload_secrets_cut():
    written = []
    log = LineLog(written.append)

    async def lines():
        for n in range(3):
            log(b"%d" % n)

    asyncio.run(lines())
    log.flush()
    assert written == ["0\n1\n2\n"]
    assert _without_secrets("/upload/an-id/secret") == "/upload/an-id/…"


# --- pure parts under random input --------------------------------------------------------------


@given(st.text(max_size=60))
def test_negotiation_never_fails(accept):
    assert negotiate(accept) in ("json", "html", "plain_html", None)


@given(st.text(alphabet="bytes=0123456789-, ", max_size=30), st.integers(1, 1000))
def test_a_range_lies_inside_the_file_or_is_none(header, size_bytes):
    from hub_server.index.pages import RangeNotSatisfiable

    try:
        part = parse_range(header, size_bytes)
    except RangeNotSatisfiable:
        return
    assert part is None or 0 <= part.start < part.end <= size_bytes


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 30))
def test_the_limiter_lets_through_its_rate_and_no_more(waits_s, per_minute):
    from hub_server.errors import TooManyRequests

    now, allowed = 0.0, []
    limiter = RateLimiter(per_minute, clock=lambda: now)
    for wait_s in waits_s:
        now += wait_s
        try:
            limiter.take("k")
        except TooManyRequests:
            continue
        allowed.append(now)
    for start in allowed:
        inside = [moment for moment in allowed if start <= moment < start + 60]
        assert len(inside) <= 2 * per_minute

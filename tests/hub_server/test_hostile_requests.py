"""Attacks by upload addresses and by large, slow or broken requests. Numbers are of the threats in docs/hub.md."""

import asyncio
import hashlib
import os
import socket
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_server.index.pages import negotiate, parse_range
from hub_server.limits import RateLimiter

API = "/api/v1/environmentshub"


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


@pytest.mark.parametrize(
    "path", ["/legacy/", "/alice/legacy/", "/dashboard/tokens/challenge", "/api/v1/oauth/token"]
)
async def test_s11_a_form_with_an_endless_boundary_is_refused(small_hub, path):
    alice = await small_hub.person("alice")
    boundary = "b" * 300
    answer = await alice.http.post(
        path,
        content=f"--{boundary}--\r\n".encode(),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
    )
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("absent", ["name", "version"])
async def test_a_form_that_names_no_project_or_version_is_refused(small_hub, wheel, absent):
    alice = await small_hub.person("alice")
    for value in (None, ""):
        form = {"name": "demo-env", "version": "0.1.0", absent: value}
        answer = await alice.http.post(
            "/legacy/",
            data={key: text for key, text in form.items() if text is not None},
            files={"content": (wheel().filename, wheel().bytes())},
        )
        assert (answer.status_code, absent in answer.json()["detail"]) == (400, True)
    assert (await alice.http.get(f"{API}/?mine_only=true")).json()["data"] == []


@pytest.mark.parametrize("visibility", ["privat", "PRIVATE ", "internal", "0"])
async def test_a_visibility_that_there_is_not_is_refused_everywhere(small_hub, wheel, visibility):
    alice = await small_hub.person("alice")
    form = {"name": "demo-env", "version": "0.1.0"}
    file = {"content": (wheel().filename, wheel().bytes())}
    address = f"/legacy/?visibility={visibility}"
    answers = [
        await alice.http.post(address, data=form, files=file),
        await alice.http.post(f"{API}/resolve", json={"name": "x-env", "visibility": visibility}),
        await alice.http.post(
            "/api/v1/hub/alice/x-env/reserve",
            json={
                "files": [{"filename": "x", "sha256": "0" * 64, "size": 1}],
                "visibility": visibility,
            },
        ),
    ]
    assert [answer.status_code for answer in answers] == [422] * 3, [a.text for a in answers]
    assert "PUBLIC or PRIVATE" in answers[0].text
    assert (await alice.http.get(f"{API}/?mine_only=true")).json()["data"] == []
    for good in ("private", "Private", "PRIVATE", ""):
        again = await alice.http.post(f"/legacy/?visibility={good}", data=form, files=file)
        assert again.status_code == 200, again.text


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
        assert [answer.status_code for answer in answers] == [200, 200, 413]
        assert "the maximum on this hub" in answers[-1].text
        answers = [
            await alice.upload(wheel(name=f"env-{n}x", files={"a.py": b""})) for n in range(3)
        ]
        assert [answer.status_code for answer in answers] == [200, 413, 413]
    async with open_small_hub(owner_quota_bytes=1200) as hub:
        bob = await hub.person("bob")
        assert (await bob.upload(wheel(files={"a.py": os.urandom(2000)}))).status_code == 413


def test_s12_clients_that_drip_are_dropped(serve_hub):
    hub = serve_hub(founded=True, header_timeout_s=0.3, body_idle_timeout_s=0.3)
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
    hub = serve_hub(founded=True, header_timeout_s=0.5, body_idle_timeout_s=0.5)
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

"""What the hub says, and to whom: headers, markup, addresses, logs. Numbers are those of the threats in docs/hub.md."""

import asyncio
import time

import httpx

from hub_server.edge import LineLog, _without_secrets

API = "/api/v1/environmentshub"


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

"""A sandbox with a proxy reaches the listed domains and nothing else."""

import asyncio
import ipaddress
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.sandboxes import ProxyNetwork, SandboxSpec
from verifiers.sandboxes.local import LocalBackend
from verifiers.sandboxes.proxy import (
    Policy,
    Refused,
    checked_addresses,
    is_allowed_name,
    is_own,
    is_public,
    parse_request,
)


@pytest.fixture
async def site_port() -> AsyncIterator[int]:
    """A small web server on this machine; its answer shows what arrived."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            body = b"site got: " + head
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


FETCH = """
import sys, urllib.request, urllib.error
try:
    with urllib.request.urlopen(sys.argv[1], timeout=10) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print("unreachable", error)
"""

TUNNEL = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=10)
connection.set_tunnel(sys.argv[1], int(sys.argv[2]))
try:
    connection.request("GET", "/through")
    print(connection.getresponse().read().decode())
except OSError as error:
    print(error)
"""


def inner_network(port: int) -> ProxyNetwork:
    return ProxyNetwork(allow=("localhost",), ports=(port,), allow_private_addresses=True)


async def test_listed_names_are_reached_and_others_are_not(site_port: int):
    spec = SandboxSpec(network=inner_network(site_port), env={"no_proxy": ""})
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:

        async def fetch(url: str) -> str:
            return (await sandbox.run_python(FETCH, argv=[url])).text

        reached = await fetch(f"http://localhost:{site_port}/path?q=1")
        assert reached.startswith("200 site got: GET /path?q=1 HTTP/1.1")
        assert f"Host: localhost:{site_port}" in reached
        assert "Proxy-" not in reached
        refused = await fetch(f"http://example.org:{site_port}/")
        assert refused.startswith("403 sandbox network: example.org is not on the list")
        assert (await fetch(f"http://127.0.0.1:{site_port}/")).startswith("403")
        assert (await fetch("http://localhost:1/")).startswith("403 sandbox network: port 1")
        tunnel = await sandbox.run_python(TUNNEL, argv=["localhost", str(site_port)])
        assert tunnel.text.startswith("site got: GET /through"), tunnel.error_text
        tunnel = await sandbox.run_python(TUNNEL, argv=["example.org", str(site_port)])
        assert "403" in tunnel.text
        # Without the proxy there is no way at all.
        direct = f"import socket; socket.create_connection(('127.0.0.1', {site_port}), 2)"
        assert "ConnectionRefusedError" in (await sandbox.run_python(direct)).error_text


async def test_two_sandboxes_have_lists_of_their_own(site_port: int):
    closed = ProxyNetwork(allow=("example.org",), ports=(site_port,))
    async with (
        LocalBackend() as backend,
        await backend.create(SandboxSpec(network=inner_network(site_port))) as one,
        await backend.create(SandboxSpec(network=closed)) as two,
        await backend.create(SandboxSpec()) as three,
    ):
        argv = ["localhost", str(site_port)]
        texts = [(await s.run_python(TUNNEL, argv=argv)).text for s in (one, two, three)]
    assert texts[0].startswith("site got")
    assert "403" in texts[1]
    assert "refused" in texts[2]


async def test_nonsense_to_the_proxy_harms_nobody(site_port: int):
    spec = SandboxSpec(network=inner_network(site_port))
    nonsense = (
        "import os, socket\n"
        "end = b' HTTP/1.1\\r\\n\\r\\n'\n"
        "for data in (b'\\x00' * 100, b'GET /' + end, b'x' * 100_000, b'CONNECT x' + end, b'',\n"
        "             b'CONNECT [::1' + end, b'GET http://localhost:99999/' + end):\n"
        "    with socket.create_connection(('127.0.0.1', 3128), 5) as s:\n"
        "        try:\n            s.sendall(data); s.shutdown(1); s.recv(1000)\n"
        "        except OSError: pass\n"
        "many = [socket.create_connection(('127.0.0.1', 3128), 5) for _ in range(200)]\n"
    )
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:
        result = await sandbox.run_python(nonsense)
        assert result.ok, result.error_text
        argv = ["localhost", str(site_port)]
        assert (await sandbox.run_python(TUNNEL, argv=argv)).text.startswith("site got")


async def test_full_reaches_the_public_internet_and_never_this_machine(site_port: int):
    spec = SandboxSpec(network="full", env={"no_proxy": ""})
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:
        for host in ("localhost", "127.0.0.1"):
            answer = await sandbox.run_python(FETCH, argv=[f"http://{host}:{site_port}/"])
            assert "not public" in answer.text
    assert await refusal("full", "anything.example", "8.8.8.8", port=2222) == "['8.8.8.8']"
    assert "not public" in await refusal("full", "anything.example", "10.0.0.1")


async def refusal(policy: Policy, host: str, *addresses: str, port: int = 443) -> str:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    try:
        return str(await checked_addresses(policy, host, port, resolve))
    except Refused as refused:
        return refused.reason


async def test_names_that_lead_inwards_are_refused():
    policy = ProxyNetwork(allow=("example.org",))
    for address in (
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "172.16.5.5",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
    ):
        assert "not public" in await refusal(policy, "example.org", address), address
        assert "not public" in await refusal(policy, "example.org", "8.8.8.8", address), address
    assert await refusal(policy, "example.org", "8.8.8.8") == "['8.8.8.8']"
    assert "port 22" in await refusal(policy, "example.org", "8.8.8.8", port=22)


def test_this_machines_own_addresses_are_known():
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("8.8.8.8"))
    assert is_public(ipaddress.ip_address("2606:4700:4700::1111"))


def test_wildcards_cover_names_below_and_not_the_name_itself():
    policy = ProxyNetwork(allow=("example.org", "*.data.net"))
    for name in ("example.org", "EXAMPLE.org.", "a.data.net", "a.b.data.net"):
        assert is_allowed_name(policy, name), name
    for name in ("www.example.org", "data.net", "evildata.net", "example.org.evil.com", ""):
        assert not is_allowed_name(policy, name), name


@given(
    st.binary(max_size=200)
    | st.text(max_size=100).map(lambda t: f"GET http://{t} HTTP/1.1\r\n\r\n".encode())
)
def test_any_head_is_a_request_or_refused(head: bytes):
    try:
        request = parse_request(head)
    except Refused:
        return
    assert request.host
    if request.forwarded_head is not None:
        assert request.forwarded_head.count(b"\r\n\r\n") == 1

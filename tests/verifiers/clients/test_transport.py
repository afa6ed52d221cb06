"""The transport and the channel: connections, limits, health, adaptive concurrency."""

from __future__ import annotations

import asyncio
import gc
import resource
import shutil
import ssl
import subprocess
import warnings

import pytest
from dialects import CHAT_FORMS
from hypothesis import given
from hypothesis import strategies as st
from loopback import Answer, loopback_endpoint
from yarl import URL

from verifiers.clients import transport as transport_module
from verifiers.clients.endpoints import FIRST_LIMIT, LONGEST_RETRY_AFTER_S, Channel, EndpointAccess
from verifiers.clients.transport import (
    SPARE_FILES,
    ConnectFailed,
    Slots,
    Transport,
    address,
    connection_limit,
)
from verifiers.errors import EndpointUnavailable, RateLimitError
from verifiers.types import UserMessage

PROMPT = [UserMessage(content="2+2?")]
ANSWER = Answer(body=CHAT_FORMS["text"])
BUSY = Answer(429, {"error": {"message": "slow down"}})


def test_urls_are_shown_without_secrets():
    url = URL("https://user:pw@example.com:8443/v1?api_key=secret#top")
    assert address(url) == "https://example.com:8443/v1"


@pytest.mark.parametrize(
    ("base", "path", "expected"),
    [
        ("http://x/v1", "chat/completions", "http://x/v1/chat/completions"),
        ("http://x/v1/", "chat/completions", "http://x/v1/chat/completions"),
        ("http://x", "v1/messages", "http://x/v1/messages"),
        ("http://x/v1", "v1/messages", "http://x/v1/messages"),
        ("http://x/api/v1", "../tokenize", "http://x/api/tokenize"),
        ("http://x", "../tokenize", "http://x/tokenize"),
    ],
)
def test_paths_are_joined_to_the_base(base, path, expected):
    assert str(EndpointAccess(base).url(path)) == expected


def test_connections_leave_files_to_the_rest_of_the_process(monkeypatch):
    def limit_to(soft):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))

    limit_to(20_000)
    assert connection_limit(28_000) == 20_000 - SPARE_FILES
    assert connection_limit(100) == 100
    limit_to(300)
    assert connection_limit(28_000) == 150
    limit_to(resource.RLIM_INFINITY)
    assert connection_limit(28_000) == 28_000


async def test_at_most_so_many_connections_are_opened_at_once(endpoint, make_client, monkeypatch):
    monkeypatch.setattr(transport_module, "MOST_DIALS", 3)
    most = dialling = 0
    loop = asyncio.get_running_loop()
    original = loop.create_connection

    async def create_connection(*args, **options):
        nonlocal most, dialling
        dialling += 1
        most = max(most, dialling)
        try:
            return await original(*args, **options)
        finally:
            dialling -= 1

    monkeypatch.setattr(loop, "create_connection", create_connection)
    endpoint.script(ANSWER)
    client = make_client()
    await asyncio.gather(*[client.get_response(PROMPT, "m", {}) for _ in range(40)])
    assert most == 3
    assert endpoint.connections > 3


@given(
    count=st.integers(1, 4),
    tasks=st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 6)), max_size=12),
)
def test_slots_are_never_exceeded_and_never_lost(count, tasks):
    """Each task holds a slot for some steps of the loop; some are cancelled after some steps."""

    async def run():
        slots = Slots(count)
        holding = most = 0

        async def hold(steps):
            nonlocal holding, most
            async with slots:
                holding += 1
                most = max(most, holding)
                try:
                    for _ in range(steps):
                        await asyncio.sleep(0)
                finally:
                    holding -= 1

        running = [asyncio.ensure_future(hold(steps)) for steps, _ in tasks]
        for step in range(7):
            for task, (_, cancelled_at) in zip(running, tasks, strict=True):
                if cancelled_at == step:
                    task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(1):
            await asyncio.gather(*running, return_exceptions=True)
        assert most <= count
        assert slots.free == count

    asyncio.run(run())


@pytest.fixture
def self_signed(tmp_path):
    """A certificate for localhost that no authority signed, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    making = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    making += ["-addext", "subjectAltName=DNS:localhost"]
    making += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(making, check=True, capture_output=True)
    return certificate, key


async def test_a_certificate_nobody_signed_is_refused_before_the_key_is_sent(self_signed):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*self_signed)
    received = []

    async def serve(reader, writer):
        received.append(await reader.read(10))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        transport = Transport(timeout_s=5)
        with pytest.raises(ConnectFailed, match="certificate"):
            await transport.post(URL(f"https://localhost:{port}/v1"), b"{}", {})
        await transport.aclose()
    assert received == []


async def test_a_system_without_certificates_uses_certifis(monkeypatch):
    nothing = ssl.DefaultVerifyPaths(None, None, "", "", "", "")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nothing)
    monkeypatch.setattr(transport_module, "_tls", None)
    assert transport_module._tls_context().cert_store_stats()["x509_ca"] > 50


def test_a_loop_that_ends_without_asyncio_run_does_not_break_the_next():
    """`run_until_complete` without `shutdown_asyncgens`: sessions cannot close, but nothing else may go wrong."""
    transport = Transport(timeout_s=5)

    async def once():
        async with loopback_endpoint() as endpoint:
            endpoint.script(ANSWER)
            return (await transport.post(URL(endpoint.url), b"{}", {})).status

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(once()) == 200
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its caller left the connection open
        assert asyncio.run(once()) == 200
        assert list(transport._sessions._in_loop) == [], "the ended loop is forgotten"
        gc.collect()


async def test_a_closed_transport_works_again(endpoint):
    endpoint.script(ANSWER)
    transport = Transport(timeout_s=5)
    for _ in range(2):
        assert (await transport.post(URL(endpoint.url), b"{}", {})).status == 200
        await transport.aclose()
    await transport.aclose()
    assert endpoint.connections == 2


async def test_a_time_limit_can_be_given_with_one_request(endpoint, make_client):
    endpoint.script(Answer(is_silent=True))
    with pytest.raises(EndpointUnavailable, match=r"within 0\.05 s"):
        await make_client(timeout=60).get_response(PROMPT, "m", {"timeout": 0.05})


# ---------------------------------------------------------------------------------------- retries and health


async def test_an_endpoint_that_asks_for_hours_fails_at_once_and_says_why(
    endpoint, make_client, waits
):
    endpoint.script(Answer(429, {"error": {"message": "daily quota"}}, {"Retry-After": "7200"}))
    assert LONGEST_RETRY_AFTER_S < 7200
    with pytest.raises(RateLimitError, match="daily quota"):
        await make_client().get_response(PROMPT, "m", {})
    assert waits == []


async def test_the_waits_grow(endpoint, make_client, waits, monkeypatch):
    monkeypatch.setattr("verifiers.clients.endpoints.random.random", lambda: 0.5)
    endpoint.script(BUSY)
    with pytest.raises(RateLimitError):
        await make_client(max_retries=8).get_response(PROMPT, "m", {})
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


async def test_an_error_inside_a_200_is_handled_as_what_it_is(endpoint, make_client):
    inside = Answer(200, {"error": {"code": 502, "message": "provider is down"}})
    endpoint.script(inside, ANSWER)
    assert (await make_client().get_response(PROMPT, "m", {})).message.content == "four"
    endpoint.script(inside)
    with pytest.raises(EndpointUnavailable, match="provider is down"):
        await make_client(max_retries=1).get_response(PROMPT, "m", {})


async def test_a_rollout_keeps_to_one_endpoint_until_it_fails():
    async with loopback_endpoint() as first, loopback_endpoint() as second:
        endpoints = [EndpointAccess(first.url), EndpointAccess(second.url)]
        transport = Transport(timeout_s=5)
        channel = Channel(endpoints, transport, max_retries=3)
        first.script(ANSWER)
        second.script(ANSWER)
        for rollout in ("a", "b"):
            for _ in range(3):
                await channel.post("chat", b"{}", rollout_id=rollout)
        assert (len(first.requests), len(second.requests)) == (3, 3)

        first.script(Answer(503, {"error": {"message": "down"}}))
        second.script(ANSWER)
        for _ in range(3):
            await channel.post("chat", b"{}", rollout_id="a")
        assert (len(first.requests), len(second.requests)) == (1, 3), "moved, and stayed moved"
        await transport.aclose()


async def test_when_all_endpoints_are_down_all_are_tried():
    waits = []

    async def sleep(wait_s):
        waits.append(wait_s)

    async with loopback_endpoint() as first, loopback_endpoint() as second:
        transport = Transport(timeout_s=5)
        channel = Channel(
            [EndpointAccess(first.url), EndpointAccess(second.url)],
            transport,
            max_retries=5,
            sleep=sleep,
        )
        down = Answer(503, {"error": {"message": "down"}})
        first.script(down)
        second.script(down)
        with pytest.raises(EndpointUnavailable, match="after 6 attempts"):
            await channel.post("chat", b"{}")
        assert len(first.requests) + len(second.requests) == 6
        assert min(len(first.requests), len(second.requests)) >= 2
        assert len(waits) == 4, "the first failure moves on to the other endpoint without a wait"
        await transport.aclose()


async def test_a_request_that_keeps_failing_says_once_that_it_is_tried_again(caplog):
    async def sleep(delay_s):
        pass

    async with loopback_endpoint() as endpoint:
        transport = Transport(timeout_s=5)
        channel = Channel([EndpointAccess(endpoint.url)], transport, max_retries=5, sleep=sleep)
        endpoint.script(Answer(503, {"error": {"message": "down"}}))
        with pytest.raises(EndpointUnavailable):
            await channel.post("chat", b"{}")
        await transport.aclose()
    (said,) = [r.getMessage() for r in caplog.records if "Retrying" in r.getMessage()]
    assert "answered 503: down" in said
    assert "up to 6 times" in said


async def test_remembered_rollouts_are_bounded(monkeypatch):
    monkeypatch.setattr("verifiers.clients.endpoints.MOST_REMEMBERED_ROLLOUTS", 10)
    channel = Channel([EndpointAccess("http://a"), EndpointAccess("http://b")], Transport())
    for index in range(100):
        channel._pick(str(index))
    assert len(channel._by_rollout) == 10


# ------------------------------------------------------------------------------------------ adaptive concurrency


async def test_adaptive_concurrency_keeps_to_what_the_endpoint_bears(endpoint, make_client, waits):
    """An endpoint that bears 8 at once refuses the rest; every request succeeds though none may be retried: these
    refusals are the adaptive limit's own doing and do not count."""
    in_flight = refused = 0
    capacity = 8

    def respond(request):
        nonlocal refused
        if endpoint._in_flight > capacity:
            refused += 1
            return BUSY
        return ANSWER

    endpoint.respond = respond
    client = make_client(adaptive_concurrency=True, max_retries=0)
    responses = await asyncio.gather(
        *[client.get_response(PROMPT, "m", {}) for _ in range(300)], return_exceptions=True
    )
    failed = [r for r in responses if isinstance(r, Exception)]
    limit = client._channel.endpoints[0].gate.limit
    assert endpoint.most_in_flight <= 2 * FIRST_LIMIT
    assert refused > 0
    assert failed == []
    assert limit.limit < FIRST_LIMIT
    assert limit.in_flight == in_flight == 0


async def test_adaptive_concurrency_grows_while_all_is_well(endpoint, make_client):
    endpoint.script(ANSWER)
    client = make_client(adaptive_concurrency=True)
    await asyncio.gather(*[client.get_response(PROMPT, "m", {}) for _ in range(400)])
    assert client._channel.endpoints[0].gate.limit.limit >= 4 * FIRST_LIMIT


async def test_a_cancelled_request_leaves_the_adaptive_limit_clean(endpoint, make_client):
    endpoint.script(Answer(is_silent=True))
    client = make_client(adaptive_concurrency=True)
    tasks = [asyncio.ensure_future(client.get_response(PROMPT, "m", {})) for _ in range(50)]
    await endpoint.asked.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gate = client._channel.endpoints[0].gate
    assert (gate.limit.in_flight, len(gate._waiting)) == (0, 0)

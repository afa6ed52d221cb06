"""Ways to a token: the printed one, passwords, `prime login` and the device flow; and their limits."""

import asyncio
import base64
from datetime import timedelta

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from hub_server.database import utc_now
from hub_server.logins.models import LoginChallenge

API = "/api/v1/environmentshub"


async def test_the_printed_token_makes_one_administrator(small_hub):
    from hub_server.logins.service import new_setup_token

    async with small_hub.database.write() as session:
        text = await new_setup_token(session)
    body = {"token": text, "username": "root-admin", "password": "correct horse"}
    wrong = await small_hub.http.post("/api/v1/setup", json={**body, "token": "setup_no"})
    assert wrong.status_code == 401
    answers = await asyncio.gather(
        *(small_hub.http.post("/api/v1/setup", json={**body, "username": f"adm{n}"}) for n in "xyz")
    )
    assert sorted(answer.status_code for answer in answers) == [200, 401, 401]
    async with small_hub.database.write() as session:
        assert await new_setup_token(session) is None


async def person_with_password(hub, slug="alice", password="correct horse"):
    from hub_server.accounts.service import create_user

    async with hub.database.write() as session:
        await create_user(session, slug, password=password)


async def test_prime_login_gets_its_token_encrypted_with_its_own_key(hub):
    await person_with_password(hub)
    key = rsa.generate_private_key(65537, 2048)
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    started = await hub.http.post(
        "/api/v1/auth_challenge/generate", json={"encryptionPublicKey": pem.decode()}
    )
    code, secret = started.json()["challenge"], started.json()["status_auth_token"]
    poll = {"headers": {"Authorization": f"Bearer {secret}"}, "params": {"challenge": code}}
    assert (await hub.http.get("/api/v1/auth_challenge/status", **poll)).json() == {"result": None}
    page = await hub.http.get(f"/dashboard/tokens/challenge?code={code}")
    assert (page.status_code, "asks to act in your name" in page.text) == (200, True)
    wrong = await hub.http.post(
        "/dashboard/tokens/challenge",
        data={"code": code, "username": "alice", "password": "wrong horse"},
    )
    assert wrong.status_code == 401
    done = await hub.http.post(
        "/dashboard/tokens/challenge",
        data={"code": code, "username": "alice", "password": "correct horse"},
    )
    assert done.status_code == 200, done.text
    answer = await hub.http.get("/api/v1/auth_challenge/status", **poll)
    token = key.decrypt(
        base64.b64decode(answer.json()["result"]),
        padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None),
    ).decode()
    client = await hub.client(token)
    assert (await client.get("/api/v1/user/whoami")).json()["data"]["slug"] == "alice"
    again = await hub.http.get("/api/v1/auth_challenge/status", **poll)
    assert again.status_code == 404, "the token is handed out once"


async def test_the_device_flow_waits_slows_down_and_ends(small_hub):
    alice = await small_hub.person("alice")
    started = (await small_hub.http.post("/api/v1/oauth/device")).json()
    grant = "urn:ietf:params:oauth:grant-type:device_code"
    form = {"grant_type": grant, "device_code": started["device_code"]}
    first = await small_hub.http.post("/api/v1/oauth/token", data=form)
    second = await small_hub.http.post("/api/v1/oauth/token", data=form)
    assert [first.json()["error"], second.json()["error"]] == ["authorization_pending", "slow_down"]
    approve = {"code": started["user_code"]}
    assert (await alice.http.post("/api/v1/auth_challenge/approve", json=approve)).is_success
    done = await small_hub.http.post("/api/v1/oauth/token", data=form)
    assert done.json()["token_type"] == "Bearer"
    gone = await small_hub.http.post("/api/v1/oauth/token", data=form)
    assert gone.json() == {"error": "expired_token"}
    unknown = await small_hub.http.post("/api/v1/oauth/token", data={**form, "device_code": "x"})
    assert unknown.json() == {"error": "expired_token"}


GRANT = "urn:ietf:params:oauth:grant-type:device_code"
PAGE = "/dashboard/tokens/challenge"


async def test_a_refused_client_is_told_and_gets_nothing(small_hub):
    await person_with_password(small_hub)
    started = (await small_hub.http.post("/api/v1/oauth/device")).json()
    code = started["user_code"]
    form = {"grant_type": GRANT, "device_code": started["device_code"]}
    refused = await small_hub.http.post(PAGE, data={"code": code, "answer": "deny"})
    assert (refused.status_code, "Refused" in refused.text) == (200, True)
    for _ in range(2):
        polled = await small_hub.http.post("/api/v1/oauth/token", data=form)
        assert (polled.status_code, polled.json()["error"]) == (400, "access_denied")
    late = {"code": code, "username": "alice", "password": "correct horse"}
    assert (await small_hub.http.post(PAGE, data=late)).status_code == 404


async def test_a_refused_rsa_login_ends_too(small_hub):
    key = rsa.generate_private_key(65537, 2048)
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    started = await small_hub.http.post(
        "/api/v1/auth_challenge/generate", json={"encryptionPublicKey": pem.decode()}
    )
    code, secret = started.json()["challenge"], started.json()["status_auth_token"]
    await small_hub.http.post(PAGE, data={"code": code, "answer": "deny"})
    answer = await small_hub.http.get(
        "/api/v1/auth_challenge/status",
        params={"challenge": code},
        headers={"Authorization": f"Bearer {secret}"},
    )
    assert (answer.status_code, "refused" in answer.text) == (404, True)


async def test_a_wrong_password_or_code_leaves_the_form_to_try_again(small_hub):
    await person_with_password(small_hub)
    started = (await small_hub.http.post("/api/v1/oauth/device")).json()
    code = started["user_code"]
    sent = {"code": code, "username": "alice", "password": "wrong & horse"}
    wrong = await small_hub.http.post(PAGE, data=sent)
    assert wrong.status_code == 401
    for shown in ("password is wrong", f'value="{code}"', 'value="alice"', "<button"):
        assert shown in wrong.text
    assert "horse" not in wrong.text
    unknown = await small_hub.http.get(f"{PAGE}?code=BBBB-BBBB")
    assert (unknown.status_code, "unknown" in unknown.text, "<form" in unknown.text) == (
        404,
        True,
        True,
    )
    right = {**sent, "password": "correct horse"}
    stranger = await small_hub.http.post(PAGE, data={**right, "code": "BBBB-BBBB"})
    assert (stranger.status_code, "unknown" in stranger.text) == (404, True)
    done = await small_hub.http.post(PAGE, data=right)
    assert done.status_code == 200
    root = await small_hub.person("alice", actions=["account"])
    listed = (await root.http.get("/api/v1/tokens")).json()["data"]
    assert [token["name"] for token in listed if token["name"] == "session"] == []


@pytest.mark.parametrize("spelled", ["{}", " {} ", "lower", "without the hyphen"])
async def test_a_code_is_taken_as_people_type_it(small_hub, spelled):
    alice = await small_hub.person("alice")
    code = (await small_hub.http.post("/api/v1/oauth/device")).json()["user_code"]
    typed = {"lower": code.lower(), "without the hyphen": code.replace("-", "")}
    body = {"code": typed.get(spelled, spelled.format(code))}
    answer = await alice.http.post("/api/v1/auth_challenge/approve", json=body)
    assert answer.status_code == 200, answer.text


async def test_an_expired_code_is_unknown_to_page_and_client(small_hub):
    started = (await small_hub.http.post("/api/v1/oauth/device")).json()
    async with small_hub.database.write() as session:
        row = await session.get(LoginChallenge, started["user_code"])
        row.expires_at = utc_now() - timedelta(seconds=1)
    page = await small_hub.http.get(f"{PAGE}?code={started['user_code']}")
    assert (page.status_code, "expired" in page.text) == (404, True)
    form = {"grant_type": GRANT, "device_code": started["device_code"]}
    polled = await small_hub.http.post("/api/v1/oauth/token", data=form)
    assert polled.json() == {"error": "expired_token"}


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ({}, "unsupported_grant_type"),
        ({"grant_type": "password", "device_code": "x"}, "unsupported_grant_type"),
        ({"grant_type": GRANT}, "invalid_request"),
    ],
)
async def test_errors_of_the_device_flow_have_the_names_of_the_standard(small_hub, form, error):
    answer = await small_hub.http.post("/api/v1/oauth/token", data=form)
    assert (answer.status_code, answer.json()["error"]) == (400, error)
    assert answer.json()["error_description"]


async def test_one_address_cannot_use_up_the_logins_of_all(open_small_hub):
    async with open_small_hub(login_limit_per_minute=1) as hub:
        for number, statuses in ((1, [200] * 10 + [429]), (2, [200] * 3)):
            async with client_at(hub, f"10.0.0.{number}") as http:
                for status in statuses:
                    assert (await http.post("/api/v1/oauth/device")).status_code == status


def client_at(hub, address):
    transport = httpx.ASGITransport(app=hub.app, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://hub")


async def attempt(http, username, password):
    body = {"username": username, "password": password}
    return (await http.post("/api/v1/login", json=body)).status_code


async def test_wrong_passwords_of_others_do_not_lock_the_owner_out(open_small_hub):
    async with open_small_hub(login_limit_per_minute=2) as hub:
        await person_with_password(hub)
        async with client_at(hub, "10.0.0.1") as owner, client_at(hub, "10.0.0.2") as stranger:
            assert [await attempt(stranger, "alice", "wrong") for _ in range(3)] == [401, 401, 429]
            assert await attempt(owner, "alice", "correct horse") == 200
            assert await attempt(stranger, "alice", "correct horse") == 429


async def test_guessing_from_many_addresses_ends_and_the_owner_is_still_let_in(open_small_hub):
    async with open_small_hub(login_limit_per_minute=1) as hub:
        await person_with_password(hub)
        async with client_at(hub, "10.0.0.1") as owner:
            assert await attempt(owner, "alice", "correct horse") == 200
            statuses = []
            for number in range(12):
                async with client_at(hub, f"10.1.0.{number}") as stranger:
                    statuses.append(await attempt(stranger, "Alice", "wrong"))
            assert statuses == [401] * 10 + [429] * 2
            assert await attempt(owner, "alice", "correct horse") == 200


async def test_an_office_with_one_address_logs_in_as_often_as_it_likes(open_small_hub):
    async with open_small_hub(login_limit_per_minute=1) as hub:
        for number in range(12):
            await person_with_password(hub, f"person-{number}")
        async with client_at(hub, "10.0.0.1") as office:
            statuses = [await attempt(office, f"person-{n}", "correct horse") for n in range(12)]
            assert statuses == [200] * 12


async def test_an_address_that_tries_many_accounts_is_stopped(open_small_hub):
    async with open_small_hub(login_limit_per_minute=1) as hub:
        async with client_at(hub, "10.0.0.1") as http:
            statuses = [await attempt(http, f"nobody-{n}", "wrong") for n in range(12)]
        assert statuses == [401] * 10 + [429] * 2


@pytest.mark.parametrize("pem", ["", "nonsense", "-----BEGIN PUBLIC KEY-----\nAA==\n-----END"])
async def test_a_key_that_cannot_encrypt_is_refused_at_the_start(small_hub, pem):
    answer = await small_hub.http.post(
        "/api/v1/auth_challenge/generate", json={"encryptionPublicKey": pem}
    )
    assert answer.status_code == 400


async def test_a_small_key_is_refused(small_hub):
    key = rsa.generate_private_key(65537, 1024)
    pem = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    body = {"encryptionPublicKey": pem.decode()}
    answer = await small_hub.http.post("/api/v1/auth_challenge/generate", json=body)
    assert (answer.status_code, "2048" in answer.text) == (400, True)


async def test_password_attempts_are_limited_and_say_nothing_about_accounts(open_small_hub):
    async with open_small_hub(login_limit_per_minute=4) as hub:
        await person_with_password(hub)
        bodies = set()
        for name in ("alice", "nobody"):
            answer = await hub.http.post(
                "/api/v1/login", json={"username": name, "password": "wrong horse"}
            )
            bodies.add((answer.status_code, answer.text))
        assert len(bodies) == 1
        answers = [
            await hub.http.post("/api/v1/login", json={"username": "alice", "password": "wrong"})
            for _ in range(4)
        ]
        assert answers[-1].status_code == 429
        assert int(answers[-1].headers["retry-after"]) >= 1


async def test_requests_are_limited_for_each_caller(open_small_hub):
    async with open_small_hub(rate_limit_per_minute=20) as hub:
        alice = await hub.person("alice")
        assert (await alice.http.get(f"{API}/")).status_code == 200
        statuses = [(await hub.http.get(f"{API}/")).status_code for _ in range(25)]
        assert statuses.count(429) >= 4
        assert (await alice.http.get(f"{API}/")).status_code == 200
        assert (await hub.http.get("/health")).status_code == 200


def spellings(token):
    """Many ways to write one token in a header."""
    for n in range(1, 15):
        yield (
            "".join(c.upper() if (n >> i) & 1 else c for i, c in enumerate("bearer"))
            + " " * n
            + token
        )
        yield "Basic " + base64.b64encode(f"user-{n}:{token}".encode()).decode()


async def test_one_token_is_one_caller_however_it_is_written(open_small_hub):
    async with open_small_hub(rate_limit_per_minute=10) as hub:
        alice = await hub.person("alice")
        headers = [{"Authorization": text} for text in spellings(alice.token)]
        statuses = [(await hub.http.get(f"{API}/", headers=h)).status_code for h in headers]
        assert statuses.count(200) <= 12, "the first one counts for the address"
        other = await hub.person("alice")
        assert (await other.http.get(f"{API}/")).status_code == 200, "another token, another caller"


async def test_tokens_that_nobody_made_count_for_their_address(open_small_hub):
    from hub_server.accounts import credentials

    async with open_small_hub(rate_limit_per_minute=10) as hub:
        statuses = []
        for _ in range(15):
            header = {"Authorization": f"Bearer {credentials.new_token()}"}
            statuses.append((await hub.http.get(f"{API}/", headers=header)).status_code)
        assert statuses.count(401) <= 11
        assert statuses[-1] == 429


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:0:ffff::1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("-", "testclient", False),
    ],
)
def test_a_caller_is_an_address_or_a_customers_network(one, other, is_same):
    from hub_server.limits import network_of

    assert (network_of(one) == network_of(other)) is is_same

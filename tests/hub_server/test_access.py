"""Who may do what: tokens, teams, private environments, logins."""

import asyncio
import base64
from datetime import timedelta

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from sqlalchemy import Engine, event

from hub_server.accounts import tokens
from hub_server.accounts.authorisation import Action, Place, Principal, may
from hub_server.accounts.service import issue_token
from hub_server.database import utc_now
from hub_server.environments.models import Environment

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
API = "/api/v1/environmentshub"


# --- tokens -----------------------------------------------------------------------------------


def test_tokens_carry_a_prefix_and_a_checksum():
    made = {tokens.mint() for _ in range(200)}
    assert len(made) == 200
    assert all(token.startswith("vfh_") and tokens.is_well_formed(token) for token in made)
    token = made.pop()
    swapped = token[:10] + ("a" if token[10] != "a" else "b") + token[11:]
    assert not tokens.is_well_formed(swapped)
    assert len(token) <= 190, "an RSA-2048 login answer has room for no more"


@pytest.mark.parametrize("broken", ["vfh_nonsense", "", "x" * 5000, "vfh_" + "é" * 49])
async def test_a_wrong_token_is_refused_everywhere_it_is_looked_at(small_hub, broken):
    answer = await small_hub.http.get(
        f"{API}/", headers={"Authorization": b"Bearer " + broken.encode()}
    )
    assert answer.status_code == (401 if broken else 200)


async def test_a_revoked_or_expired_token_stops_with_the_next_request(hub):
    alice = await hub.person("alice")
    made = (await alice.http.post("/api/v1/tokens", json={"name": "ci"})).json()["data"]
    other = await hub.client(made["token"])
    assert (await other.get("/api/v1/user/whoami")).status_code == 200
    assert (await alice.http.delete(f"/api/v1/tokens/{made['id']}")).status_code == 200
    assert (await other.get("/api/v1/user/whoami")).status_code == 401
    async with hub.database.write() as session:
        past = utc_now() - timedelta(seconds=1)
        old = await issue_token(session, alice.id, name="old", expires_at=past)
    expired = await hub.client(old.text)
    assert (await expired.get("/api/v1/user/whoami")).status_code == 401


async def test_tokens_are_stored_as_hashes_only(small_hub, sqlite_settings):
    alice = await small_hub.person("alice")
    await alice.http.get("/api/v1/user/whoami")
    files = [p for p in sqlite_settings.data_dir.rglob("*") if p.is_file()]
    assert files
    assert not any(alice.token.encode() in path.read_bytes() for path in files)


async def test_a_token_cannot_make_one_that_can_do_more(small_hub):
    alice = await small_hub.person("alice", actions=["read", "account"])
    wider = await alice.http.post("/api/v1/tokens", json={"actions": ["publish"]})
    assert (wider.status_code, "publish" in wider.text) == (403, True)
    alice = await small_hub.person("alice", environments=["alice/one"])
    elsewhere = await alice.http.post("/api/v1/tokens", json={"environments": ["*"]})
    assert elsewhere.status_code == 403


async def test_a_reported_leak_ends_the_token(small_hub):
    alice = await small_hub.person("alice")
    report = [{"token": alice.token, "url": "https://example.org/leak"}, {"token": "nonsense"}]
    answer = await small_hub.http.post("/api/v1/tokens/leaked", json=report)
    assert answer.json() == {"data": {"revoked": 1}}
    assert (await alice.http.get("/api/v1/user/whoami")).status_code == 401


@pytest.mark.parametrize(
    ("role", "actions", "environments", "action", "visibility", "is_allowed"),
    [
        ("owner", ["read", "publish"], ("*",), Action.PUBLISH, "PRIVATE", True),
        ("owner", ["read"], ("*",), Action.PUBLISH, "PUBLIC", False),
        ("owner", ["read", "publish"], ("acme/other",), Action.PUBLISH, "PUBLIC", False),
        ("owner", ["read", "publish"], ("acme/de*",), Action.PUBLISH, "PUBLIC", True),
        ("owner", ["read"], ("acme/other",), Action.READ, "PRIVATE", False),
        ("reader", ["read", "publish"], ("*",), Action.PUBLISH, "PUBLIC", False),
        ("reader", ["read"], ("*",), Action.READ, "PRIVATE", True),
        ("member", ["manage"], ("*",), Action.MANAGE, "PUBLIC", False),
        ("admin", ["manage"], ("*",), Action.MANAGE, "PUBLIC", True),
        (None, ["read", "publish"], ("*",), Action.READ, "PRIVATE", False),
        (None, ["publish"], ("*",), Action.READ, "PUBLIC", True),
        (None, [], (), Action.READ, "PUBLIC", True),
    ],
)
def test_permission_needs_role_action_and_place(
    role, actions, environments, action, visibility, is_allowed
):
    caller = Principal(
        user_id="u",
        actions=frozenset(actions),
        environments=environments,
        roles={"o": role} if role else {},
    )
    assert may(caller, action, Place("o", "acme/demo", visibility, True)) is is_allowed


# --- private environments ---------------------------------------------------------------------


async def two_tenants(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    answer, _ = await alice.push(
        wheel(name="secret-env", files={"secret_env.py": b""}), visibility="PRIVATE"
    )
    assert answer.status_code == 200, answer.text
    return alice, bob


async def test_a_private_environment_looks_exactly_like_a_missing_one(hub, wheel):
    alice, bob = await two_tenants(hub, wheel)
    addresses = [
        f"{API}/alice/NAME/@latest",
        f"{API}/alice/NAME/@0.1.0",
        f"{API}/alice/NAME/versions",
        f"{API}/alice/NAME/status",
        f"{API}/alice/NAME/@latest/inspect",
        f"{API}/alice/NAME/@latest/pylock.toml",
        "/alice/simple/NAME/",
        "/alice/NAME/simple/",
        "/alice/NAME/simple/NAME/",
        f"/files/alice/NAME/{'0' * 64}/x-1-py3-none-any.whl",
    ]
    for client in (hub.http, bob.http):
        for address in addresses:
            real = await client.get(address.replace("NAME", "secret-env"))
            missing = await client.get(address.replace("NAME", "absent-env"))
            assert real.status_code in (401, 403, 404), address
            assert (real.status_code, real.text.replace("secret-env", "absent-env")) == (
                missing.status_code,
                missing.text,
            ), address
            ignored = ("x-request-id", "ratelimit-remaining", "content-length")
            assert {k: v for k, v in real.headers.items() if k not in ignored} == {
                k: v for k, v in missing.headers.items() if k not in ignored
            }
    assert (await alice.http.get("/alice/simple/secret-env/")).status_code == 200


async def test_a_private_environment_takes_the_same_steps_as_a_missing_one(small_hub, wheel):
    """Time is told by what is done: the same statements, and nothing loaded that is then kept back."""
    _, bob = await two_tenants(small_hub, wheel)
    steps: list[str] = []

    def note_statement(connection, cursor, statement, *_):
        steps.append(statement)

    def note_row(target, context):
        steps.append(type(target).__name__)

    event.listen(Engine, "before_cursor_execute", note_statement)
    event.listen(Environment, "load", note_row)
    try:
        for client in (small_hub.http, bob.http):
            for address in ("@latest", "versions", "status", "@0.1.0/pylock.toml"):
                seen = []
                for name in ("secret-env", "absent-env"):
                    steps.clear()
                    await client.get(f"{API}/alice/{name}/{address}")
                    seen.append(list(steps))
                assert seen[0] == seen[1]
                assert any("environments" in step for step in seen[0]), "they were looked for"
    finally:
        event.remove(Environment, "load", note_row)
        event.remove(Engine, "before_cursor_execute", note_statement)


@pytest.mark.parametrize("method", ["PATCH", "DELETE", "PUT", "POST"])
async def test_changing_what_is_hidden_is_answered_like_changing_what_is_missing(
    small_hub, wheel, method
):
    _, bob = await two_tenants(small_hub, wheel)
    place = {"PATCH": "", "DELETE": "", "PUT": "/star", "POST": "/fork"}[method]
    texts = []
    for name in ("secret-env", "absent-env"):
        answer = await bob.http.request(method, f"{API}/alice/{name}{place}", json={})
        texts.append((answer.status_code, answer.text.replace(name, "NAME")))
    assert texts[0] == texts[1]
    assert texts[0][0] == 404


async def test_a_crawl_by_strangers_meets_no_trace_of_private_things(hub, wheel):
    """Every address that the API describes, with every id that exists, as nobody and as Bob."""
    alice = await hub.person("alice")
    bob = await hub.person("bob")
    marker = "xyzzy"
    made = wheel(
        name=f"{marker}-env",
        metadata=f"Summary: {marker} summary\nKeywords: {marker}-tag\n",
        readme=f"# {marker}\n",
        files={f"{marker}_env.py": b""},
    )
    _, steps = await alice.push(made, visibility="PRIVATE")
    environment_id = steps["environment_id"]
    evaluation = (
        await alice.http.post(
            "/api/v1/evaluations/",
            json={
                "name": f"{marker} run",
                "environments": [{"id": environment_id}],
                "metadata": {"m": marker},
                "model_name": marker,
            },
        )
    ).json()["evaluation_id"]
    await alice.http.post(
        f"/api/v1/evaluations/{evaluation}/samples", json={"samples": [{"text": marker}]}
    )
    await alice.http.post(
        f"{API}/{environment_id}/secrets", json={"name": "XYZZY_KEY", "value": marker}
    )
    paths = (await hub.http.get("/api/v1/openapi.json")).json()["paths"]
    values = {
        "owner": "alice",
        "name": "hidden",
        "environment_id": environment_id,
        "evaluation_id": evaluation,
        "reference": "latest",
        "project": f"{marker}-env",
        "team_id": alice.id,
        "sha256": "0" * 64,
        "filename": made.filename,
    }
    seen = 0
    for path, methods in paths.items():
        if "get" not in methods:
            continue
        for name in (f"{marker}-env",):
            address = path
            for key, value in {**values, "name": name}.items():
                address = address.replace("{" + key + "}", value)
            address = address.replace("{secret_id}", environment_id).replace("{user}", "alice")
            for query in (
                "",
                f"?search={marker}",
                f"?tags={marker}-tag",
                "?owner=alice",
                "?since=0",
            ):
                for client in (hub.http, bob.http):
                    answer = await client.get(address + query)
                    seen += 1
                    assert answer.status_code < 500, address
                    text = answer.text.lower().replace(f"alice/{marker}-env", "")
                    text = text.replace(f"{marker}-env", "") if answer.status_code >= 400 else text
                    assert marker not in text, f"{address}{query}: {answer.text}"
    assert seen > 150


async def test_conditional_requests_are_no_oracle(small_hub, wheel):
    alice, bob = await two_tenants(small_hub, wheel)
    page = await alice.http.get("/alice/simple/secret-env/", headers=JSON)
    assert page.headers["cache-control"] == "private, no-cache"
    assert "authorization" in page.headers["vary"]
    file = page.json()["files"][0]
    address = "/" + file["url"].removeprefix("../../../")
    known = {"If-None-Match": page.headers["etag"], **JSON}
    assert (await bob.http.get("/alice/simple/secret-env/", headers=known)).status_code == 404
    tag = {"If-None-Match": f'"{file["hashes"]["sha256"]}"'}
    assert (await small_hub.http.get(address, headers=tag)).status_code == 401
    assert (await bob.http.get(address, headers=tag)).status_code == 404
    got = await alice.http.get(address)
    assert got.headers["cache-control"].startswith("private")


async def test_making_public_and_private_again_takes_effect_at_once(hub, wheel):
    alice, bob = await two_tenants(hub, wheel)
    address = "/alice/simple/secret-env/"
    for visibility, status in (("PUBLIC", 200), ("PRIVATE", 404), ("PUBLIC", 200)):
        answer = await alice.http.patch(f"{API}/alice/secret-env", json={"visibility": visibility})
        assert answer.status_code == 200
        for _ in range(2):  # the second time from memory
            assert (await bob.http.get(address)).status_code == status
            assert (await hub.http.get(address)).status_code == status


async def test_install_addresses_of_a_private_environment_carry_a_token_for_it_alone(hub, wheel):
    alice, _ = await two_tenants(hub, wheel)
    details = (await alice.http.get(f"{API}/alice/secret-env/@latest")).json()["data"]
    address = httpx.URL(details["wheel_url"])
    assert address.username == "__token__"
    inside = await hub.client(address.password)
    assert (await inside.get(f"{API}/alice/secret-env/@latest")).status_code == 200
    assert (await inside.get(f"{API}/alice/other-env/@latest")).status_code == 404
    refused = await inside.post(f"{API}/resolve", json={"name": "secret-env"})
    assert refused.status_code in (200, 403)
    wheel_id = await inside.post(
        f"{API}/{details['id']}/wheels",
        json={"content_hash": "0" * 64, "filename": "x.whl", "sha256": "0" * 64},
    )
    assert wheel_id.status_code == 403
    assert (await inside.get("/api/v1/tokens")).status_code == 403
    got = await hub.http.get(
        address.path, headers={"Authorization": _basic(address.password)}, follow_redirects=False
    )
    assert got.status_code in (200, 302)


async def test_an_install_token_ends_with_the_token_that_asked_for_it(hub, wheel):
    alice, _ = await two_tenants(hub, wheel)
    body = {"name": "short", "actions": ["read", "account"], "expires_in_s": 60}
    short = (await alice.http.post("/api/v1/tokens", json=body)).json()["data"]
    briefly = await hub.client(short["token"])
    child = {"name": "child", "actions": ["read"], "expires_in_s": 7200}
    made = (await briefly.post("/api/v1/tokens", json=child)).json()["data"]
    assert made["expires_at"] == short["expires_at"]
    child.pop("expires_in_s")
    made = (await briefly.post("/api/v1/tokens", json=child)).json()["data"]
    assert made["expires_at"] == short["expires_at"]
    # One inside an address cannot renew itself by asking for the address again.
    names = {"environments": ["alice/secret-env"]}
    first = (await briefly.post(f"{API}/install-token", json=names)).json()["data"]
    inside = await hub.client(first["token"])
    again = (await inside.post(f"{API}/install-token", json=names)).json()["data"]
    assert again["expires_at"] == first["expires_at"] == short["expires_at"]


async def test_one_install_token_reads_the_environments_it_was_asked_for_and_no_other(hub, wheel):
    alice, bob = await two_tenants(hub, wheel)
    await alice.push(wheel(name="second-env"), visibility="PRIVATE")
    names = ["alice/secret-env", "alice/Second_Env"]
    answer = await alice.http.post(f"{API}/install-token", json={"environments": names})
    data = answer.json()["data"]
    assert data["environments"] == ["alice/second-env", "alice/secret-env"]
    inside = await hub.client(data["token"])
    for name in ("secret-env", "second-env"):
        assert (await inside.get(f"{API}/alice/{name}/@latest")).status_code == 200
    for address in (f"{API}/alice/other-env/@latest", f"{API}/alice/missing/@latest"):
        assert (await inside.get(address)).status_code == 404
    for caller in (bob.http, inside):
        for name in ("alice/third-env", "alice", ""):
            refused = await caller.post(f"{API}/install-token", json={"environments": [name]})
            assert refused.status_code == 404
    assert (
        await bob.http.post(f"{API}/install-token", json={"environments": names})
    ).status_code == 404
    assert (await hub.http.post(f"{API}/install-token", json={"environments": names})).is_error
    writer = await hub.person("alice", actions=["publish"])
    refused = await writer.http.post(f"{API}/install-token", json={"environments": names})
    assert refused.status_code == 404


def _basic(token):
    return "Basic " + base64.b64encode(f"__token__:{token}".encode()).decode()


async def test_a_hub_can_be_closed_to_everyone_without_an_account(open_small_hub, wheel):
    async with open_small_hub(anonymous_read=False) as hub:
        alice, bob = await hub.person("alice"), await hub.person("bob")
        await alice.upload(wheel())
        for address in ("/alice/simple/demo-env/", f"{API}/alice/demo-env/@latest"):
            assert (await bob.http.get(address)).status_code == 200
            assert (await hub.http.get(address)).status_code == 404
        assert (await hub.http.get(f"{API}/")).json()["data"] == []
        details = (await bob.http.get(f"{API}/alice/demo-env/@latest")).json()["data"]
        wheel_url = httpx.URL(details["wheel_url"])
        assert (await hub.http.get(wheel_url.path)).status_code == 401
        login = {"Authorization": _basic(wheel_url.password)}
        assert (await hub.http.get(wheel_url.path, headers=login)).status_code == 200


# --- teams ------------------------------------------------------------------------------------


async def test_a_team_shares_environments_by_role(hub, wheel):
    alice, bob = await hub.person("alice"), await hub.person("bob")
    team = (await alice.http.post("/api/v1/teams", json={"slug": "acme", "name": "Acme"})).json()
    team_id = team["data"]["teamId"]
    assert len(team_id) == 25
    answer, _ = await alice.push(wheel(), team_slug="acme", visibility="PRIVATE")
    assert answer.status_code == 200
    assert (await bob.http.get(f"{API}/acme/demo-env/@latest")).status_code == 404
    members = f"/api/v1/teams/{team_id}/members"
    assert (await bob.http.get(members)).status_code == 404
    await alice.http.post(members, json={"user": "bob", "role": "reader"})
    bob = await hub.person("bob")
    assert (await bob.http.get(f"{API}/acme/demo-env/@latest")).status_code == 200
    assert (await bob.push(wheel(version="2"), team_slug="acme"))[0].status_code == 403
    await alice.http.post(members, json={"user": "bob", "role": "member"})
    assert (await bob.push(wheel(version="2"), team_id=team_id))[0].status_code in (200, 409)
    assert (await bob.http.delete(f"{API}/acme/demo-env")).status_code == 403
    listed = (await bob.http.get("/api/v1/user/teams?offset=0&limit=100")).json()
    assert (listed["total_count"], listed["data"][0]["role"]) == (1, "member")
    await alice.http.delete(f"{members}/bob")
    assert (await bob.http.get(f"{API}/acme/demo-env/@latest")).status_code == 404


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "slug",
    ["al1ce", "a-lice", "ALICE", "admin", "api", "ab", "x" * 31, "ali_ce", "аlice", "-ab", "a--b"],
)
async def test_reserved_bad_and_look_alike_usernames_are_refused(small_hub, slug):
    await small_hub.person("alice")
    bob = await small_hub.person("bob")
    answer = await bob.http.patch("/api/v1/user/slug", json={"slug": slug})
    assert answer.status_code in (400, 409, 422), answer.text


async def test_a_former_username_leads_on_and_is_never_given_away(small_hub, wheel):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    await alice.upload(wheel())
    assert (await alice.http.patch("/api/v1/user/slug", json={"slug": "alicia"})).is_success
    taken = await bob.http.patch("/api/v1/user/slug", json={"slug": "alice"})
    assert (taken.status_code, "409" in taken.text) == (409, True)
    found = (await bob.http.get(f"{API}/alice/demo-env/@latest")).json()["data"]
    assert found["owner"]["name"] == "alicia"
    assert (await bob.http.get("/alicia/simple/demo-env/")).status_code == 200


# --- logins -----------------------------------------------------------------------------------


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
        statuses = [(await hub.http.get(f"{API}/")).status_code for _ in range(25)]
        assert statuses.count(429) >= 4
        assert (await alice.http.get(f"{API}/")).status_code == 200
        assert (await hub.http.get("/health")).status_code == 200


async def test_the_audit_log_tells_people_about_themselves_and_administrators_all(small_hub, wheel):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    root = await small_hub.person("root-admin", admin=True)
    await alice.upload(wheel())
    mine = (await alice.http.get("/api/v1/audit")).json()["data"]
    assert {"version.publish", "environment.create"} <= {entry["action"] for entry in mine}
    assert (await bob.http.get("/api/v1/audit")).json()["data"] == []
    assert len((await root.http.get("/api/v1/audit")).json()["data"]) == len(mine)
    assert (await small_hub.http.get("/api/v1/audit")).status_code == 401

"""API tokens: what they look like, what they allow, and when they end."""

from datetime import timedelta

import pytest

from hub_server.accounts import credentials
from hub_server.accounts.authorisation import Action, Principal, Resource, may
from hub_server.accounts.service import authenticate, issue_token
from hub_server.database import utc_now
from hub_server.errors import BadRequest

API = "/api/v1/environmentshub"


def test_tokens_carry_a_prefix_and_a_checksum():
    made = {credentials.new_token() for _ in range(200)}
    assert len(made) == 200
    assert all(token.startswith("vfh_") and credentials.is_token(token) for token in made)
    token = made.pop()
    swapped = token[:10] + ("a" if token[10] != "a" else "b") + token[11:]
    assert not credentials.is_token(swapped)
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
    assert may(caller, action, Resource("o", "acme/demo", visibility, True)) is is_allowed


# --- a token never yields a stronger one ----------------------------------------------------------

GRANT = "urn:ietf:params:oauth:grant-type:device_code"


async def device_token(hub, approver):
    """What a device receives whose code this caller approves."""
    started = (await hub.http.post("/api/v1/oauth/device")).json()
    approve = {"code": started["user_code"]}
    answer = await approver.post("/api/v1/auth_challenge/approve", json=approve)
    assert answer.status_code == 200, answer.text
    form = {"grant_type": GRANT, "device_code": started["device_code"]}
    return (await hub.http.post("/api/v1/oauth/token", data=form)).json()["access_token"]


async def principal_of(hub, token):
    async with hub.database.read() as session:
        return await authenticate(session, token)


async def test_a_device_receives_no_more_than_the_token_that_approved_it(hub):
    alice = await hub.person("alice")
    ends = utc_now() + timedelta(seconds=60)
    async with hub.database.write() as session:
        small = await issue_token(
            session,
            alice.id,
            name="small",
            actions=["account", "read"],
            environments=["alice/one"],
            expires_at=ends,
        )
    client = await hub.client(small.text)
    got = await principal_of(hub, await device_token(hub, client))
    assert got.actions == {"account", "read"}
    assert got.environments == ("alice/one",)
    assert got.expires_at == ends
    whole = await principal_of(hub, await device_token(hub, alice.http))
    assert (whole.environments, whole.expires_at) == (("*",), None)
    assert "admin" not in whole.actions


async def test_a_password_in_the_browser_lets_a_device_in_for_good(small_hub):
    from hub_server.accounts.service import create_user

    async with small_hub.database.write() as session:
        await create_user(session, "alice", password="correct horse")
    started = (await small_hub.http.post("/api/v1/oauth/device")).json()
    form = {"code": started["user_code"], "username": "alice", "password": "correct horse"}
    assert (await small_hub.http.post("/dashboard/tokens/challenge", data=form)).is_success
    poll = {"grant_type": GRANT, "device_code": started["device_code"]}
    text = (await small_hub.http.post("/api/v1/oauth/token", data=poll)).json()["access_token"]
    got = await principal_of(small_hub, text)
    assert (got.environments, got.expires_at) == (("*",), None)


@pytest.mark.parametrize(
    "environments",
    [[], ["*"], ["*/*"], ["alice/*"], ["alice/on*"], ["alice/two"], ["a*"], ["?/one"]],
)
async def test_a_bound_token_makes_none_for_other_environments(small_hub, environments):
    alice = await small_hub.person("alice", environments=["alice/one"])
    answer = await alice.http.post("/api/v1/tokens", json={"environments": environments})
    assert answer.status_code in (400, 403, 422), answer.text
    with pytest.raises(BadRequest):
        async with small_hub.database.write() as session:
            await issue_token(session, alice.id, name="x", environments=[])


async def test_a_token_makes_one_for_a_part_of_its_environments(small_hub):
    alice = await small_hub.person("alice", environments=["alice/o*"])
    for pattern in ("alice/o*", "alice/one", "alice/One_2", "alice/on*"):
        answer = await alice.http.post("/api/v1/tokens", json={"environments": [pattern]})
        assert answer.status_code == 200, answer.text
        child = await small_hub.client(answer.json()["data"]["token"])
        assert (await child.get("/api/v1/user/whoami")).status_code == 200


async def test_a_session_makes_no_token_that_outlives_it(small_hub):
    from hub_server.accounts.service import create_user

    async with small_hub.database.write() as session:
        await create_user(session, "alice", password="correct horse")
    login = {"username": "alice", "password": "correct horse"}
    opened = (await small_hub.http.post("/api/v1/login", json=login)).json()["data"]
    client = await small_hub.client(opened["token"])
    for wanted in ({}, {"expires_in_s": 10**8}):
        made = (await client.post("/api/v1/tokens", json=wanted)).json()["data"]
        assert made["expires_at"] == opened["expires_at"]


async def test_a_bound_token_ends_itself_and_no_other(small_hub):
    alice = await small_hub.person("alice")
    made = (await alice.http.post("/api/v1/tokens", json={"name": "other"})).json()["data"]
    small = {"actions": ["account", "read"], "environments": ["alice/one"]}
    bound = (await alice.http.post("/api/v1/tokens", json=small)).json()["data"]
    client = await small_hub.client(bound["token"])
    assert (await client.delete(f"/api/v1/tokens/{made['id']}")).status_code == 403
    assert (await client.get("/api/v1/tokens")).status_code == 403
    assert (await client.delete(f"/api/v1/tokens/{bound['id']}")).status_code == 200


async def test_looking_at_a_private_environment_again_and_again_stores_one_token(hub, wheel):
    from sqlalchemy import func, select

    from hub_server.accounts.models import Token

    alice = await hub.person("alice")
    await alice.push(wheel(), visibility="PRIVATE")
    urls = set()
    for _ in range(5):
        details = await alice.http.get(f"{API}/alice/demo-env/@latest")
        urls.add(details.json()["data"]["wheel_url"])
    async with hub.database.read() as session:
        query = select(func.count()).where(Token.kind == "install")
        count = await session.scalar(query)
    assert count == len(urls) <= 2, "two when the half hour ended in between"


async def test_an_install_token_of_a_bound_token_reads_only_what_that_is_for(small_hub, wheel):
    alice = await small_hub.person("alice")
    for name in ("one-env", "two-env"):
        await alice.upload(wheel(name=name, files={f"{name[:3]}_env.py": b""}))
    bound = await small_hub.person("alice", environments=["alice/one-env"])
    for names in (["alice/one-env", "alice/two-env"], ["alice/two-env"]):
        body = {"environments": names}
        answer = await bound.http.post(f"{API}/install-token", json=body)
        got = await principal_of(small_hub, answer.json()["data"]["token"])
        assert (got.environments, got.actions) == (("alice/one-env",), {"read"})

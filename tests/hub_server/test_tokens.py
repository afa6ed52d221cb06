"""API tokens: what they look like, what they allow, and when they end."""

from datetime import timedelta

import pytest

from hub_server.accounts import tokens
from hub_server.accounts.authorisation import Action, Place, Principal, may
from hub_server.accounts.service import issue_token
from hub_server.database import utc_now

API = "/api/v1/environmentshub"


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

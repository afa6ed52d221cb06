"""Teams and their roles, names and who may have them, and the audit log."""

import pytest

API = "/api/v1/environmentshub"


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
    assert (taken.status_code, "already taken" in taken.text) == (409, True)
    found = (await bob.http.get(f"{API}/alice/demo-env/@latest")).json()["data"]
    assert found["owner"]["name"] == "alicia"
    assert (await bob.http.get("/alicia/simple/demo-env/")).status_code == 200


async def test_the_audit_log_tells_people_about_themselves_and_administrators_all(small_hub, wheel):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    root = await small_hub.person("root-admin", admin=True)
    await alice.upload(wheel())
    mine = (await alice.http.get("/api/v1/audit")).json()["data"]
    assert {"version.publish", "environment.create"} <= {entry["action"] for entry in mine}
    assert (await bob.http.get("/api/v1/audit")).json()["data"] == []
    assert len((await root.http.get("/api/v1/audit")).json()["data"]) == len(mine)
    assert (await small_hub.http.get("/api/v1/audit")).status_code == 401


# --- visibility of new environments ---------------------------------------------------------------


async def test_a_hub_can_make_new_environments_private(open_small_hub, wheel):
    async with open_small_hub(default_visibility="PRIVATE") as hub:
        alice = await hub.person("alice")
        answer = await alice.http.post(f"{API}/resolve", json={"name": "pushed-env"})
        assert answer.json()["data"]["visibility"] == "PRIVATE"
        uploaded = wheel(name="uploaded-env", files={"uploaded_env.py": b""})
        assert (await alice.upload(uploaded)).status_code == 200
        body = {"files": [{"filename": "a_env-1-py3-none-any.whl", "sha256": "0" * 64, "size": 1}]}
        assert (await alice.http.post("/api/v1/hub/alice/a-env/reserve", json=body)).is_success
        for name in ("uploaded-env", "a-env"):
            status = (await alice.http.get(f"{API}/alice/{name}/status")).json()["data"]
            assert status["visibility"] == "PRIVATE"
        wanted = {"name": "open-env", "visibility": "PUBLIC"}
        answer = await alice.http.post(f"{API}/resolve", json=wanted)
        assert answer.json()["data"]["visibility"] == "PUBLIC"


async def test_a_private_environment_stays_private_when_it_is_published_for_a_team(small_hub):
    alice, bob = await small_hub.person("alice"), await small_hub.person("bob")
    assert (await alice.http.post("/api/v1/teams", json={"slug": "acme"})).is_success
    hidden = {"name": "secret-env", "visibility": "PRIVATE"}
    assert (await alice.http.post(f"{API}/resolve", json=hidden)).is_success
    for_team = {"name": "Secret_Env", "team_slug": "acme"}
    answer = await alice.http.post(f"{API}/resolve", json=for_team)
    assert answer.json()["data"]["visibility"] == "PRIVATE"
    # What others keep private is no concern of bob's, and bob learns nothing of it.
    answer = await bob.http.post(f"{API}/resolve", json={"name": "secret-env"})
    assert answer.json()["data"]["visibility"] == "PUBLIC"


async def test_a_reader_of_a_private_environment_cannot_fork_it(small_hub, wheel):
    """The owner of a copy can make it public; that is for those who may do so with the original."""
    alice = await small_hub.person("alice")
    people = {
        role: await small_hub.person(f"{role}-person") for role in ("reader", "member", "admin")
    }
    team = (await alice.http.post("/api/v1/teams", json={"slug": "acme"})).json()["data"]["teamId"]
    for role, person in people.items():
        body = {"user": person.slug, "role": role}
        await alice.http.post(f"/api/v1/teams/{team}/members", json=body)
    await alice.push(wheel(), team_slug="acme", visibility="PRIVATE")
    statuses = {}
    for role in people:
        person = await small_hub.person(f"{role}-person")
        answer = await person.http.post(f"{API}/acme/demo-env/fork", json={})
        statuses[role] = answer.status_code
    assert statuses == {"reader": 403, "member": 403, "admin": 200}
    await alice.http.patch(f"{API}/acme/demo-env", json={"visibility": "PUBLIC"})
    reader = await small_hub.person("reader-person")
    assert (await reader.http.post(f"{API}/acme/demo-env/fork", json={})).status_code == 200


async def test_a_team_has_a_largest_number_of_members(small_hub, monkeypatch):
    from hub_server.accounts import service

    monkeypatch.setattr(service, "MAX_MEMBERS", 2)
    alice = await small_hub.person("alice")
    for name in ("bob", "carol"):
        await small_hub.person(name)
    team = (await alice.http.post("/api/v1/teams", json={"slug": "acme"})).json()["data"]["teamId"]
    members = f"/api/v1/teams/{team}/members"
    statuses = [
        (await alice.http.post(members, json={"user": name})).status_code
        for name in ("bob", "bob", "carol")
    ]
    assert statuses == [200, 200, 413]

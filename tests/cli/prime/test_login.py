"""Getting a key by the browser, and saying whose it is."""

import os
from types import SimpleNamespace

import httpx
import pytest

from verifiers.hub.client import HubClient
from verifiers.hub.config import HubConfigFile, HubSettings
from verifiers.hub.login import LoginDenied, LoginExpired, _challenge, log_in


def at(hub) -> HubSettings:
    return HubSettings(hub.url, None, None, hub.url, "production")


async def approve(hub, code: str) -> None:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {hub.token}"}) as http:
        answer = await http.post(f"{hub.url}/api/v1/auth_challenge/approve", json={"code": code})
        assert answer.status_code == 200


@pytest.mark.parametrize("way", [log_in, _challenge])
async def test_a_person_lets_the_client_in_and_it_gets_a_working_key(hub, way):
    invited = []
    waits = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:  # once it has asked in vain
            await approve(hub, invited[0].code)

    async with HubClient(at(hub)) as client:
        key = await way(client, invited.append, sleep)
    assert key.startswith("vfh_")
    assert waits[0] >= 1
    assert invited[0].url.startswith(f"{hub.url}/dashboard/tokens/challenge?code=")
    async with HubClient(at(hub)._replace(api_key=key)) as client:
        assert (await client.get("/user/whoami"))["data"]["slug"] == "alice"


async def test_a_person_refuses_the_client_and_it_says_so(hub):
    invited = []

    async def sleep(_: float) -> None:
        form = {"code": invited[0].code, "answer": "deny"}
        async with httpx.AsyncClient() as http:
            await http.post(f"{hub.url}/dashboard/tokens/challenge", data=form)

    async with HubClient(at(hub)) as client:
        with pytest.raises(LoginDenied, match="refused in the browser"):
            await log_in(client, invited.append, sleep)


async def test_a_login_that_nobody_approves_ends(hub, monkeypatch):
    moments = iter([0.0, 1.0, 10_000.0])
    clock = SimpleNamespace(monotonic=lambda: next(moments))
    monkeypatch.setattr("verifiers.hub.login.time", clock)

    async def sleep(_: float) -> None:
        pass

    async with HubClient(at(hub)) as client:
        with pytest.raises(LoginExpired, match="prime login"):
            await log_in(client, lambda _: None, sleep)


def test_login_keeps_the_key_beside_its_hub_and_logout_forgets_it(prime, hub, monkeypatch):
    import verifiers.hub.login as module

    async def sleep(_: float) -> None:
        await approve(hub, invited[0].code)

    invited = []

    async def quick(client, invite):
        def note(invitation):
            invited.append(invitation)
            invite(invitation)

        return await log_in(client, note, sleep)

    monkeypatch.setattr(module, "log_in", quick)
    monkeypatch.setenv("PRIME_API_BASE_URL", hub.url)
    done = prime("login", "--headless", "--json")
    assert done.code == 0, done.err
    assert invited[0].code in done.err
    assert done.json["user"] == "alice"
    monkeypatch.delenv("PRIME_API_BASE_URL")
    values = HubConfigFile().read()
    assert (values["base_url"], values["user_name"]) == (hub.url, "alice")
    assert values["api_key"] not in done.out + done.err
    me = prime("whoami", "--json").json
    assert (me["slug"], me["base_url"]) == ("alice", hub.url)
    assert prime("logout").code == 2  # nobody to ask
    assert prime("logout", "--yes").code == 0
    assert HubConfigFile().read()["api_key"] == ""
    assert prime("whoami").code == 2
    assert prime("-c", "production", "login").code == 2


def test_teams_own_what_is_pushed_after_a_switch(prime, hub, alice, make_project):
    slug = "a-team"
    answer = httpx.post(
        f"{hub.url}/api/v1/teams",
        json={"slug": slug, "name": "A team"},
        headers={"Authorization": f"Bearer {hub.token}"},
    )
    assert answer.status_code == 200
    team_id = answer.json()["data"]["teamId"]
    teams = prime("teams", "list", "--json").json
    assert (slug, "owner") in [(t["slug"], t["role"]) for t in teams["teams"]]
    assert "alice" in prime("teams", "members", "--team-id", team_id).out
    assert prime("teams", "members").code == 2
    assert prime("switch", slug).code == 0
    assert HubConfigFile().read()["team_id"] == team_id
    pushed = prime("env", "push", "-p", make_project(), "--json").json
    assert pushed["owner"] == slug
    unknown = prime("switch", "other-team")
    assert (unknown.code, slug in unknown.err) == (2, True)
    assert prime("switch", "personal").code == 0
    assert (
        prime("env", "push", "-p", make_project(), "--team", slug, "--json").json["owner"] == slug
    )
    assert prime("env", "push", "-p", make_project(), "--json").json["owner"] == "alice"


def test_a_team_is_founded_and_its_members_change(prime, hub, alice, token_of, as_person):
    token_of("tina")
    slug = f"team-{os.urandom(4).hex()}"
    founded = prime("teams", "create", slug, "--name", "The team", "--json")
    assert (founded.code, founded.json["slug"]) == (0, slug)
    assert prime("teams", "create", slug).code == 1
    assert prime("teams", "add", slug, "tina", "--role", "reader").code == 0
    assert prime("teams", "add", slug, "tina", "--json").json["role"] == "member"
    known = ("teams", "members", "--team-id", founded.json["teamId"], "--json")
    roles = {row["userName"]: row["role"] for row in prime(*known).json["members"]}
    assert roles == {"alice": "owner", "tina": "member"}
    assert prime("teams", "members", "--team-id", slug, "--json").json["total_count"] == 2
    nobodys = prime("teams", "members", "--team-id", "no-such-team")
    assert (nobodys.code, slug in nobodys.err) == (2, True)
    for arguments, code, said in (
        (("add", slug, "nobody-here"), 1, "nobody-here"),
        (("add", "no-such-team", "tina"), 2, slug),
        (("add", slug, "tina", "--role", "king"), 2, "reader"),
        (("remove", slug, "alice"), 1, "founded"),
        (("remove", slug, "no-body"), 1, "not in this team"),
    ):
        refused = prime("teams", *arguments)
        assert (refused.code, said in refused.err) == (code, True), refused.err
    as_person("tina")
    assert prime("teams", "remove", slug, "alice").code == 1
    as_person("alice")
    assert prime("teams", "remove", slug, "tina").code == 0
    assert len(prime(*known).json["members"]) == 1


@pytest.mark.parametrize("group", [(), ("teams",), ("env",), ("eval",), ("config",)])
def test_a_group_alone_shows_its_help_and_no_empty_error(prime, group):
    shown = prime(*group)
    assert (shown.code, "Usage" in shown.out, shown.err) == (2, True, "")
